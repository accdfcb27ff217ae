"""The processes of the campaign that are not nodes of the log, and what ends all of them with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from polonaise.redaction import redacted_end
from polonaise_proving.campaigns.running import PATIENCE_S, SOURCES, GaveUp


class Watchdog:
    """Kills the sessions that it was told of when this process dies: also processes that are stopped just then."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "polonaise_proving.torture.watchdog"]
        self._process = subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE)

    def tell(self, pid: int | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"+{pid}\n".encode())
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class TorturedProgram:
    """One program in a session of its own, through all its lives."""

    def __init__(self, name: str, command: list[str], log: Path, watchdog: Watchdog, *, speaks: bool = True) -> None:
        """`speaks` is False for one of which no line is waited for."""
        self.name = name
        self._speaks = speaks
        self.log = log
        self.command = command
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it, and do not wait. An earlier life that was asked to end has its time for that."""
        self.wait_ended()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._speaks else log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog.tell(self._process.pid)

    def first_line(self) -> str:
        """Return the first line that it prints. Raises `GaveUp`."""
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if not line:
            raise GaveUp(f"{self.name} did not start: {self.told()}")
        return line

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait_ended(self) -> int:
        """Wait until it has ended; return its exit status. Raises `GaveUp`."""
        if self._process is None:
            return 0
        try:
            status = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise GaveUp(f"{self.name} does not stop: {self.told()}") from None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return status

    def told(self) -> str:
        return redacted_end(self.log.read_text(errors="replace"), 2_000)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}
