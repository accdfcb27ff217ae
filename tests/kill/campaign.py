"""Kills processes at random moments, with appends under way, and measures how long a new host takes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns import journal
from tests.campaigns.comparison import Comparison
from tests.campaigns.journal import Line, Reader
from tests.campaigns.running import PATIENCE_S, ROOT, GaveUp

import polonaise

from .ledger import PARTITION, VIEW, Ledger
from .verdict import View, judge

PROCESSES = ("a", "b", "c")
TAKE_OVER_S_MAX = 2.0


@dataclass
class Report:
    """The events of a campaign, and the mistakes found."""

    kills: int = 0
    host_kills: int = 0
    unacknowledged: int = 0
    """The number of kills of a process that had appends without an answer."""
    take_overs_s: list[float] = field(default_factory=list)
    """Seconds from each kill of the host to the first commit of an operation that was asked for after the kill."""
    late: list[str] = field(default_factory=list)
    """A text for each take-over that took longer than `TAKE_OVER_S_MAX`."""
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def wrong(self) -> list[str]:
        return [*self.comparison.wrong, *self.late]


class _Process:
    """One of the processes, through all its lives."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._lives = 0
        self.name = name
        self.lines: list[Line] = []
        """The journal's lines of the process's earlier lives."""
        self.errors = directory / f"{name}.errors"
        self.start()

    def start(self) -> None:
        self._lives += 1
        command = [sys.executable, "-m", "tests.kill.client", str(self._directory), self.name, str(self._lives)]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors)
        self.journal = Reader(self._directory / f"{self.name}.{self._lives}.journal")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.journal.follow()
        self.lines += self.journal.lines

    def stopped(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def check_alive(self) -> None:
        if self.process.poll() not in (None, -signal.SIGKILL):
            raise GaveUp(f"process {self.name} ended by itself: {self.errors.read_text()[-2000:]}")


class Campaign:
    """A campaign of kills. Use as a context manager: no process outlives it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._log_directory = directory / "log"
        self._directory = directory
        self._random = random.Random(seed)
        self._processes = [_Process(directory, name) for name in PROCESSES]
        self.report = Report()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()

    def run(self, kills: int, progress: Callable[[int], None] = lambda done: None) -> None:
        """Kill `kills` times, stop all processes cleanly, and compare. Raises `GaveUp`."""
        for done in range(kills):
            self._wait(lambda: len(self._open()) >= 2, "two processes with the log open")
            self._let_run(self._random.uniform(0.05, 0.5))
            self._kill_one()
            progress(done + 1)
        self._wait(lambda: len(self._open()) == len(PROCESSES), "all processes with the log open")
        self._stop()

    # ------------------------------------------------------------------ killing

    def _kill_one(self) -> None:
        victim: _Process | None = None
        while victim is None:
            self._wait(lambda: bool(self._host() and self._open()), "a host")
            host = self._host()
            victim = self._caught_busy(self._random.choice(self._open()))
        killed_s = time.monotonic()
        victim.kill()
        died_s = time.monotonic()
        self.report.kills += 1
        self.report.unacknowledged += bool(victim.journal.pending)
        others = [each for each in self._processes if each is not victim]
        if victim is host:
            self.report.host_kills += 1
            self._wait(lambda: _first_commit_s(others, killed_s) is not None, "a commit after the host was killed")
            first_s = _first_commit_s(others, killed_s)
            assert first_s is not None
            took_s = first_s - killed_s
            self.report.take_overs_s.append(took_s)
            if took_s > TAKE_OVER_S_MAX:
                ended = time.time() - (time.monotonic() - first_s)
                self.report.late.append(
                    f"a take-over took {took_s:.2f} s, from {ended - took_s:.3f} to {ended:.3f} "
                    f"(the killed process was gone after {died_s - killed_s:.2f} s)"
                )
        victim.start()

    def _open(self) -> list[_Process]:
        return [each for each in self._processes if each.journal.opened]

    def _caught_busy(self, process: _Process) -> _Process | None:
        """Stop the process. Return it if it has appends without an answer; else let it go on, and return None."""
        process.process.send_signal(signal.SIGSTOP)
        self._wait(process.stopped, f"process {process.name} to stop")
        process.journal.follow()
        if process.journal.pending:
            return process
        process.process.send_signal(signal.SIGCONT)
        return None

    def _host(self) -> _Process | None:
        """Return the hosting process, by the process id in the lock file."""
        try:
            pid = int((self._log_directory / "host.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return next((each for each in self._open() if each.process.pid == pid), None)

    def _let_run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= until_s, "the passing of time")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            for each in self._processes:
                each.journal.follow()
            if holds():
                return
            for each in self._processes:
                each.check_alive()
            if time.monotonic() >= give_up_s:
                raise GaveUp(f"{what}: not within {PATIENCE_S:g} s")
            time.sleep(0.005)

    # ------------------------------------------------------------------ the end

    def _stop(self) -> None:
        for each in self._processes:
            os.kill(each.process.pid, signal.SIGTERM)
        for each in self._processes:
            try:
                status = each.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise GaveUp(f"process {each.name} does not stop") from None
            if status:
                raise GaveUp(f"process {each.name} stopped with {status}: {each.errors.read_text()[-2000:]}")
            each.journal.follow()
            each.lines += each.journal.lines

    async def compare(self) -> None:
        """After `run`, compare what the processes were told with the log."""
        async with polonaise.connect(f"embedded:{self._log_directory}") as log:
            bodies = [tx.data async for tx in log.read(PARTITION, timeout=PATIENCE_S)]
        ledger = Ledger(self._directory / VIEW)
        view = View(*ledger.state())
        await ledger.close()
        lines = [line for each in self._processes for line in each.lines]
        self.report.comparison = judge(bodies, lines, view)


def _first_commit_s(processes: list[_Process], after_s: float) -> float | None:
    """Return when the first operation asked for after `after_s` was known to be committed; None if none was."""
    first: float | None = None
    for each in processes:
        asked: set[str] = set()
        for line in each.journal.lines:
            if line.at_s > after_s:
                if line.kind == journal.ASK:
                    asked.add(line.operation)
                elif line.kind == journal.ACK and line.operation in asked:
                    first = line.at_s if first is None else min(first, line.at_s)
                    break
    return first
