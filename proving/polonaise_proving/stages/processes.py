"""Programs as processes on this machine, or on a host of their own: started, heard, killed, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Literal, TypeVar

from polonaise.redaction import redacted_end
from polonaise_proving.record.failures import GaveUp

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""Seconds that any wait may take before a run gives up: long, because the machine may be busy."""
_WORDS_MAX: Final = 2_000
"""The most characters of a log that are told."""


def wait_until(holds: Callable[[], T | None], what: str, within_s: float = PATIENCE_S, every_s: float = 0.005) -> T:
    """Wait until this gives something true, and return that. Raises `GaveUp`."""
    until_s = time.monotonic() + within_s
    while not (held := holds()):
        if time.monotonic() >= until_s:
            raise GaveUp(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
    return held


async def to_its_end(call: Callable[[], object]) -> None:
    """Run `call` in a thread, and wait for its end even if cancelled: what it starts has to be stopped, too."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # avoids "exception was never retrieved": an interrupted start may fail
        raise
    task.result()


def end_as_by_control_c() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: with all processes that it has started."""
    # A script's job in the background ignores SIGINT: the one that is raised below would do nothing.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signals.remove(signal.SIGHUP)  # started by nohup, to go on when its terminal is gone

    def end(*_: object) -> None:
        # Both the shell and the system may send SIGHUP: a second one would break off the clean end.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)

    for number in signals:
        signal.signal(number, end)


class Program:
    """One module of Python as a process, through all its lives. Its standard input ends with this process."""

    def __init__(
        self, name: str, log: Path, prefix: Sequence[str] = (), *, command: Sequence[str] = (), speaks: bool = False,
        apart: Literal["session", "group", ""] = "session", environment: Mapping[str, str] | None = None,
        hear: Callable[[str | None], None] | None = None,
    ) -> None:  # fmt: skip
        """Start nothing yet. `prefix` is a command that runs another one in its place, such as `ip netns exec NAME`.

        `command` is the module that `start` starts, with its arguments. What one that `speaks` writes to standard
        output is for this process; what others write is in `log`, as their errors are. `hear` is called with each line
        of it, in a thread, and with None at the end. One that is not `apart` is in the session and the group of this
        process: Ctrl-C at a terminal reaches it, too. Of a group of its own, all are killed together.
        """
        self.name = name
        self.command = list(command)
        self.said: list[str] = []
        """The whole lines that its present life has said so far."""
        self.silent = False
        """Whether that says nothing more."""
        self._log = log
        self._prefix = list(prefix)
        self._speaks = speaks
        self._apart = apart
        self._environment = environment
        self._hear = hear
        self._heard = threading.Condition()
        self._reader: threading.Thread | None = None
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

    def ended(self) -> str:
        """Return how its present life has ended by itself, with its last words; empty if it has not."""
        return "" if self.status is None else f"exit status {self.status}: {self.last_words}"

    @property
    def output(self) -> str:
        """All that its lives have written to the log."""
        return self._log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        """What to tell of that."""
        return last_words(self.output)

    def start(self) -> None:
        """Start it by its command, and do not wait. An earlier life that was asked to end has its time for that.

        Raises `OSError`, and `GaveUp` if that time is over.
        """
        self.wait_ended()
        self.launch(self.command)

    def launch(self, arguments: Sequence[str]) -> None:
        """Start the module that the first argument names, and do not wait. Raises `OSError`."""
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._speaks else log,
                stderr=log,
                env=self._environment,
                start_new_session=self._apart == "session",
                process_group=0 if self._apart == "group" else None,
            )
        if process.stdout is not None:
            self.said, self.silent = [], False
            self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
            self._reader.start()

    def _read(self, stdout: IO[bytes]) -> None:
        for raw in stdout:
            if raw.endswith(b"\n"):  # if not, it was killed while it wrote the line
                line = raw.decode(errors="replace").strip()
                with self._heard:
                    self.said.append(line)
                    self._heard.notify_all()
                if self._hear is not None:
                    self._hear(line)
        with self._heard:
            self.silent = True
            self._heard.notify_all()
        if self._hear is not None:
            self._hear(None)

    def says(self, beginning: str = "", after: int = 0, within_s: float = PATIENCE_S) -> str:
        """Wait for a line that begins like this, and return it; the first `after` ones don't count. Raises `GaveUp`."""

        def found() -> str | None:
            return next((line for line in self.said[after:] if line.startswith(beginning)), None)

        with self._heard:
            self._heard.wait_for(lambda: self.silent or found() is not None, within_s)
            if (line := found()) is not None:
                return line
        raise GaveUp(f"{self.name} did not say {beginning!r}: {self.last_words}")

    def say(self, line: str) -> None:
        """Write a line to its standard input, which may have ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is None or not self.alive:
            return
        if self._apart == "group":
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it with -9, also while it is stopped, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait_ended()

    def end(self, within_s: float) -> None:
        """Have it end by the end of its standard input; kill it if it does not in time."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self.wait_ended(within_s)
        except GaveUp:
            self.kill()

    def wait_ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait until it has ended; return its exit status, 0 if it does not run. Raises `GaveUp`."""
        process = self._process
        if process is None:
            return 0
        try:
            status = process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise GaveUp(f"{self.name} does not stop: {self.last_words}") from None
        if self._reader is not None:
            self._reader.join(within_s)
        for pipe in (process.stdin, process.stdout if self.silent else None):
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
