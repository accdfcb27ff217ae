"""A process of the demo that tells its states line by line, and that is killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from polonaise.errors import invariant
from polonaise.node.local import StartFailed
from polonaise_proving.stages.processes import last_words

_SAYS_S: Final = 60.0
_STOPS_S: Final = 15.0
"""Longer than a process takes that hands over what it was doing."""


class TalkingProcess:
    """One process at a time, begun anew after a kill. It ends with this one: its standard input is a pipe of ours."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], errors: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, *arguments]
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._heard = asyncio.Condition()
        self._is_silent = False
        """Whether the process says nothing more."""
        self.said: list[str] = []
        """The lines that the process that was started last has said so far."""

    @property
    def pid(self) -> int:
        """The id of the process that runs."""
        invariant(self._process is not None, "the process was started")
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the process, and do not wait for what it says."""
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        assert self._process.stdout is not None
        self.said, self._is_silent = [], False
        self._reading = asyncio.create_task(self._read(self._process.stdout), name=f"read what {self.name} says")

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        raw = b"-"
        while raw:
            raw = await stdout.readline()
            async with self._heard:
                if raw:
                    self.said.append(raw.decode(errors="replace").strip())
                self._is_silent = not raw
                self._heard.notify_all()

    async def says(self, beginning: str, after: int = 0) -> str:
        """Wait for a line that begins like this, and return it; the first `after` lines don't count.

        Raises `StartFailed`.
        """

        def found() -> str | None:
            return next((line for line in self.said[after:] if line.startswith(beginning)), None)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SAYS_S), self._heard:
                await self._heard.wait_for(lambda: self._is_silent or found() is not None)
                if (line := found()) is not None:
                    return line
        printed = last_words(self._errors.read_text(errors="replace"))
        raise StartFailed(f"{self.name} did not say {beginning!r}: {printed}")

    async def kill(self) -> None:
        """Kill the process with -9, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
            assert self._reading is not None
            await self._reading

    async def stop(self) -> None:
        """Have the process stop, and wait until it has ended; kill it after 15 seconds."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOPS_S)
        await self.kill()
