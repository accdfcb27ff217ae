"""Child processes that are asked things in lines of JSON: both sides. Needs no Polonaise."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.loads import Missing
from benchmarks.peers.processes import ending_with_us

LINE_BYTES_MAX = 2**30
ANSWER_S = 60.0
"""The longest that a child may take for an answer, unless more is given to it."""
STOP_S = 20.0
ROOT = Path(__file__).parent.parent.parent


class Child:
    """A child process that answers questions. It ends with `stop`, or when this process ends in any way."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, program: str, *, python: Path | str = sys.executable) -> Self:
        """Start a program of this package by its module's name."""
        process = await asyncio.create_subprocess_exec(
            *ending_with_us([python, "-m", f"benchmarks.deliveries.{program}"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            cwd=ROOT,
        )
        return cls(program, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, what: str, *, within_s: float = ANSWER_S, **about: Any) -> Any:
        """Return the answer. Raises `Missing` if the child can't give it, has ended, or takes longer than allowed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(within_s):
                stdin.write(json.dumps({"what": what, "about": about}).encode() + b"\n")
                await stdin.drain()
                line = await stdout.readline()
        except TimeoutError:
            raise Missing(f"{self.name} did not answer {what!r} within {within_s:g} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise Missing(f"{self.name} has ended; what it said is above")
        answer = json.loads(line)
        if "error" in answer:
            raise Missing(f"{self.name}, asked for {what!r}: {answer['error']}")
        return answer["answer"]

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    async def stop(self) -> None:
        """Have the process end, and wait for it; kill it after `STOP_S`."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


Handler = Callable[..., Awaitable[Any]]


async def answer(handlers: Mapping[str, Handler], close: Callable[[], Awaitable[None]]) -> None:
    """Be a child: answer questions one after the other until the parent closes its end, then call `close`."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    gc.collect()
    gc.freeze()  # what is loaded stays: no collection need look at it
    try:
        while line := await reader.readline():
            question = json.loads(line)
            try:
                given: dict[str, Any] = {"answer": await handlers[question["what"]](**question["about"])}
            except Exception as error:  # noqa: BLE001 - the parent is told
                traceback.print_exc()
                given = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(given) + "\n")
            sys.stdout.flush()
    finally:
        await close()


async def usage() -> dict[str, float]:
    """Return the processor time of this process so far, in seconds, and its resident memory, in MB."""
    return {"processor_s": time.process_time(), "memory_mb": resident_mb(os.getpid())}


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
