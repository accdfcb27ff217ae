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

_SAYS_S: Final = 60.0
_STOPS_S: Final = 15.0
"""Longer than a process takes that hands over what it was doing."""
_LOG_END: Final = 2_000
"""Characters of a process's errors that are told when it did not say what it should."""


class TalkingProcess:
    """One process at a time, begun anew after a kill. It ends with this one: its standard input is a pipe of ours."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], errors: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, *arguments]
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None

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

    async def says(self, beginning: str) -> str:
        """Wait for the next line that begins like this, and return it. Raises `StartFailed`."""
        invariant(self._process is not None, "the process was started")
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SAYS_S):
                while raw := await self._process.stdout.readline():
                    line = raw.decode(errors="replace").strip()
                    if line.startswith(beginning):
                        return line
        except TimeoutError:
            pass
        printed = self._errors.read_text(errors="replace")[-_LOG_END:].strip()
        raise StartFailed(f"{self.name} did not say {beginning!r}: {printed or 'it printed nothing'}")

    async def kill(self) -> None:
        """Kill the process with -9, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()

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
