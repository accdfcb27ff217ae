"""Programs as processes on this machine, or on a host of their own: started, killed, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from polonaise.redaction import redacted_end
from polonaise_proving.stages.waiting import PATIENCE_S, GaveUp

_WORDS_MAX: Final = 2_000
"""The most characters of a log that are told."""


class Program:
    """One module of Python as a process in a session of its own, through all its lives."""

    def __init__(
        self, name: str, log: Path, prefix: Sequence[str] = (), *, speaks: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Start nothing yet. `prefix` is a command that runs another one in its place, such as `ip netns exec NAME`.

        What one that `speaks` writes to standard output is for this process; what others write is in `log`, as their
        errors are.
        """
        self.name = name
        self._log = log
        self._prefix = list(prefix)
        self._speaks = speaks
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process that was started last; None before that, and once `kill` or `wait_ended` has seen its end."""
        return self._process.pid if self._process is not None else None

    @property
    def status(self) -> int | None:
        """The exit status; None before the start, while the process runs, and once its end was waited for."""
        return self._process.poll() if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether the process that was started last runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """All that its lives have written to the log."""
        return self._log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        """What to tell of that."""
        return last_words(self.output)

    def launch(self, arguments: Sequence[str]) -> None:
        """Start the module that the first argument names, and do not wait. Raises `OSError`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._speaks else log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def first_line(self) -> str:
        """Return the first line that it says. Raises `GaveUp`."""
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if not line:
            raise GaveUp(f"{self.name} did not start: {self.last_words}")
        return line

    def say(self, line: str) -> None:
        """Write a line to its standard input, which may have ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it with -9, also while it is stopped, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait_ended()

    def wait_ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait until it has ended; return its exit status, 0 if it does not run. Raises `GaveUp`."""
        if self._process is None:
            return 0
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise GaveUp(f"{self.name} does not stop: {self.last_words}") from None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process = None
        return status


def last_words(log: str) -> str:
    """Return what to tell of a log when a process has ended otherwise than it should have."""
    return redacted_end(log, _WORDS_MAX) or "it printed nothing"


def state_of(pid: int) -> str:
    """Return a process's state, as `ps` writes it: T if it is stopped; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def session_of(leader: int) -> Iterator[int]:
    """Yield the living processes of a session: of a Spark driver's its Python, its JVM, and their Python workers."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == leader and state not in "ZX":
                yield int(entry.name)


def signal_session(leader: int, number: signal.Signals) -> int:
    """Send a signal to all of a session's processes. Return their number."""
    count = 0
    for pid in session_of(leader):
        count += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return count
