"""The processes of the soak: watched while they live, and told to end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from polonaise.link.connection import Connection
from polonaise_proving.record.history import Line
from polonaise_proving.record.journal import Follower, journal_of, lines_of
from polonaise_proving.stages.processes import Program
from polonaise_proving.stages.waiting import PATIENCE_S, GaveUp


class SoakProcess(Program):
    """One process, through all its lives."""

    def __init__(self, directory: Path, name: str, arguments: list[str], *, speaks: bool = False) -> None:
        super().__init__(name, directory / f"{name}.errors", speaks=speaks)
        self.life = 0
        self._arguments = arguments
        self._stopping = False

    @property
    def failed(self) -> bool:
        """Whether the process has ever written of a fault that no code handled."""
        return "Traceback" in self.output

    def check(self) -> None:
        """Check that the process runs. Raises `GaveUp` if it has ended by itself."""
        if not self._stopping and self.status is not None:
            raise GaveUp(f"{self.name} ended by itself with {self.status}: {self.last_words}")

    async def stop(self) -> None:
        """Ask the process to stop. Raises `GaveUp` if it does not, or ends with an error."""
        self._stopping = True  # or `check` could see it ended before this does
        self.signal(signal.SIGTERM)
        status = await asyncio.to_thread(self.wait_ended)
        self._stopping = False
        if status:
            raise GaveUp(f"{self.name} stopped with {status}: {self.last_words}")


class NodeProcess(SoakProcess):
    """A storage node or a server; see `node`."""

    def __init__(self, directory: Path, name: str, arguments: list[str]) -> None:
        super().__init__(directory, name, ["polonaise_proving.stages.soaknode", *arguments], speaks=True)
        self.address = ""
        self.asked: Connection | None = None
        """The connection on which the server of this life is asked for its health."""

    async def start(self) -> None:
        if self.asked is not None:
            self.asked.close()
            self.asked = None
        self.life += 1
        self.launch(self._arguments)
        self.address = (await asyncio.to_thread(self.first_line)).removeprefix("listening ")


class ClientProcess(SoakProcess):
    """A client; see `client`."""

    def __init__(self, directory: Path, name: str, coordinator: str, leak: str) -> None:
        arguments = ["polonaise_proving.work.soakclient", str(directory), coordinator, name[-1], leak]
        super().__init__(directory, name, arguments)
        self._directory = directory
        self.journal = Follower(Path())

    @property
    def lines(self) -> list[Line]:
        """The journal's lines of all the client's lives."""
        return lines_of(self._directory, self.name[-1], self.life)

    async def start(self) -> None:
        self.life += 1
        self.journal = reader = Follower(journal_of(self._directory, self.name[-1], self.life))
        self.launch([*self._arguments, str(self.life)])

        def opened() -> bool:
            reader.follow()
            return reader.opened

        await self._until(opened, "an open log")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            self.check()
            if time.monotonic() >= until_s:
                raise GaveUp(f"{self.name}: {what}: not within {PATIENCE_S:g} s: {self.last_words}")
            await asyncio.sleep(0.02)
