"""The processes of the soak: started, killed, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from polonaise.link.connection import Connection
from polonaise.redaction import redacted_end
from polonaise_proving.campaigns.journal import JournalLine, JournalReader
from polonaise_proving.campaigns.running import PATIENCE_S, GaveUp


class SoakProcess:
    """One process, through all its lives."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.life = 0
        self._directory = directory
        self._errors = directory / f"{name}.errors"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def log(self) -> str:
        """Return the end of what the process wrote to standard error, over all its lives."""
        return redacted_end(self._errors.read_text(errors="replace"), 3_000)

    @property
    def failed(self) -> bool:
        """Whether the process has ever written of a fault that no code handled."""
        return "Traceback" in self._errors.read_text(errors="replace")

    def _begin(self, module: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        self.life += 1
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"polonaise_proving.soak.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        return self._process

    def check(self) -> None:
        """Check that the process runs. Raises `GaveUp` if it has ended by itself."""
        if self._process is not None and not self._stopping and self._process.poll() is not None:
            raise GaveUp(f"{self.name} ended by itself with {self._process.returncode}: {self.log}")

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            self.check()
            if time.monotonic() >= until_s:
                raise GaveUp(f"{self.name}: {what} did not come about within {PATIENCE_S:g} s: {self.log}")
            await asyncio.sleep(0.02)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def go_on(self) -> None:
        """Let the process go on after a SIGSTOP, if it got one."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with -9, also while it is stopped."""
        if self._process is not None:
            self._process.kill()
            self._gone()

    async def stop(self) -> None:
        """Ask the process to stop. Raises `GaveUp` if it does not, or ends with an error."""
        if self._process is None:
            return
        process = self._process
        self._stopping = True  # or `check` could see it ended before this does
        process.terminate()
        until_s = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            if time.monotonic() >= until_s:
                raise GaveUp(f"{self.name} does not stop: {self.log}")
            await asyncio.sleep(0.02)
        status = self._gone()
        if status:
            raise GaveUp(f"{self.name} stopped with {status}: {self.log}")

    def _gone(self) -> int:
        process, self._process = self._process, None
        self._stopping = False
        assert process is not None
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return status


class NodeProcess(SoakProcess):
    """A storage node or a server; see `node`."""

    def __init__(self, directory: Path, name: str, arguments: list[str]) -> None:
        super().__init__(directory, name)
        self._arguments = arguments
        self.address = ""
        self.asked: Connection | None = None
        """The connection on which the server of this life is asked for its health."""

    async def start(self) -> None:
        pipe = self._begin("node", self._arguments).stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        printed = b""

        def listens() -> bool:
            nonlocal printed
            with contextlib.suppress(BlockingIOError):
                printed += os.read(pipe.fileno(), 256)
            return printed.endswith(b"\n")

        await self.until(listens, "its address")
        self.address = printed.decode().removeprefix("listening ").strip()

    def _gone(self) -> int:
        if self.asked is not None:
            self.asked.close()
            self.asked = None
        return super()._gone()


class ClientProcess(SoakProcess):
    """A client; see `client`."""

    def __init__(self, directory: Path, name: str, coordinator: str, leak: str) -> None:
        super().__init__(directory, name)
        self._arguments = [str(directory), coordinator, name[-1]]
        self._leak = leak
        self._earlier: list[JournalLine] = []
        self.journal = JournalReader(Path())

    @property
    def lines(self) -> list[JournalLine]:
        """Return the journal's lines of all the client's lives."""
        return [*self._earlier, *self.journal.lines]

    async def start(self) -> None:
        self._earlier = self.lines
        life = str(self.life + 1)
        self.journal = reader = JournalReader(self._directory / f"{self.name[-1]}.{life}.journal")
        self._begin("client", [*self._arguments, life, self._leak])

        def opened() -> bool:
            reader.follow()
            return reader.opened

        await self.until(opened, "an open log")

    def _gone(self) -> int:
        status = super()._gone()
        self.journal.follow()
        return status
