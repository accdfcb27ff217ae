"""The tellers' processes from outside: start them, hear them, kill them, and restart them with what is left to do."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from polonaise.errors import PolonaiseError
from polonaise_proving.demo.payments import Payment
from polonaise_proving.demo.teller import Job, TellerReport
from polonaise_proving.stages.processes import last_words

_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the longest line that is read: generous for what one teller reports of a tenth of a second."""
_ENDS_S: Final = 1.0
"""Seconds that a process may take to end after its work is done, or after Ctrl-C has reached it and this process."""


class TellerFailed(PolonaiseError):
    """A teller's process ended before its work was done. The message ends with the last that it wrote to its log."""

    code = "teller_failed"


class TellerProcess:
    """One teller: its payments, the process that makes them now, and the killed ones before it."""

    def __init__(self, name: str, job: Job, directory: Path, on_progress: Callable[[TellerReport], None]) -> None:
        self.name = name
        self._job = job
        self._path = directory / f"{name}.json"
        self._errors = directory / f"{name}.log"
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._left = {payment.id: payment for payment in job.payments}
        self._killed = False

    @property
    def left(self) -> int:
        """Number of payments whose outcome the teller has not told."""
        return len(self._left)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def work(self) -> None:
        """Run the teller's process until every payment has an outcome; after a `kill`, another one for what is left.

        Raises `TellerFailed`.
        """
        while True:
            await self._live()
            if not self._killed:
                break
            self._killed = False
        if self._left:
            printed = last_words(self._errors.read_text(errors="replace"))
            raise TellerFailed(f"{self.name} ended with {len(self._left)} payments left: {printed}")

    def kill(self) -> bool:
        """Kill the process with -9; `work` starts another one for what is left.

        Return False, with nothing done, if no process is running or no payment is left to it.
        """
        if self._process is None or self._process.returncode is not None or not self._left:
            return False
        self._killed = True
        self._process.kill()
        return True

    async def _live(self) -> None:
        """Run one process, from its start to its end."""
        replace(self._job, payments=list(self._left.values())).write(self._path)
        with self._errors.open("ab") as errors:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "polonaise_proving.demo.teller", str(self._path),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=_LINE_BYTES_MAX,
            )  # fmt: skip
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if line.endswith(b"\n"):  # if not, the process was killed while it wrote the line
                    self._heard(TellerReport.decode(line))
        finally:
            await _ended(process)

    def _heard(self, report: TellerReport) -> None:
        for payment in (*report.made, *report.found_made, *report.refused):
            del self._left[payment]
        self._on_progress(report)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the process's end, and kill it if it does not end in time.

    Not killed at once: killing first checks whether the process is there, and if it has just ended, that takes its
    status away from asyncio, which then complains of an unknown child.
    """
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _ENDS_S)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def shares(payments: Sequence[Payment], tellers: int) -> list[list[Payment]]:
    """Divide the payments among tellers, in their order: all with the same first account go to one teller.

    The first account is the one that pays, or the one that gets money from outside. Two tellers may touch the same
    account where it is the second one of a payment: then the log refuses one of two payments that conflict, and its
    context runs again.
    """
    shared: list[list[Payment]] = [[] for _ in range(tellers)]
    for payment in payments:
        shared[payment.accounts[0] % tellers].append(payment)
    return shared
