"""Processes that share an embedded log, and can be stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import polonaise
from polonaise.errors import DirectoryInUse
from polonaise.host.files import try_lock
from rigs.waiting import PATIENCE_S, wait_until

TAKE_OVER_S_MAX = 2.0
SILENCE_S = 2.0
"""Seconds after which these processes call a silent peer dead; the default for applications is 5 s."""
CHILD = Path(__file__).with_name("attached.py")


class Attached:
    """A process with the log open."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def tell(self, verb: str, given: Any = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, given]).encode() + b"\n")
        await self._process.stdin.drain()

    async def answer(self, within_s: float = PATIENCE_S) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            line = await self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    async def ask(self, verb: str, given: Any = None) -> Any:
        await self.tell(verb, given)
        return await self.answer()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def stop(self) -> None:
        """Stop the process, and wait until it is: its threads go on until one of them has taken the signal."""
        self.signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")

        def is_stopped() -> bool:
            return all(each.read_text().rpartition(") ")[2].startswith("T") for each in threads.glob("*/stat"))

        await wait_until(is_stopped)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def close(self) -> int:
        """Let the process close its log and end. Return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            return await self._process.wait()


class Processes:
    """All processes that a test has started; none outlives the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[Attached] = []
        self.strangers: list[int] = []
        """Process ids of children of the processes, which are killed at the end."""

    async def start(self, options: str = "", *, wait: bool = True) -> Attached:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(CHILD), f"embedded:{self.directory}{options}", str(SILENCE_S),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        attached = Attached(process)
        self._started.append(attached)
        if wait:
            assert await attached.answer() == "open"
        return attached

    async def end(self) -> None:
        for attached in self._started:
            await attached.kill()
        for pid in self.strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[Processes]:
    group = Processes(directory)
    try:
        yield group
    finally:
        await group.end()


async def append_once(address: str) -> None:
    """Open a log, which is made if it is not there yet, append one transaction, and close it."""
    async with polonaise.connect(address) as log:
        await log.append(b"x", partition=0)


def host_of(directory: Path) -> int | None:
    """Return the process id of the hosting process; None while no process hosts."""
    path = directory / "host.lock"
    if not path.exists():
        return None
    try:
        lock = try_lock(str(path))
    except DirectoryInUse:
        return int(path.read_text() or 0) or None
    lock.release()
    return None


async def until_hosted_by(directory: Path, pid: int) -> None:
    await wait_until(lambda: host_of(directory) == pid, f"process {pid} hosts")
