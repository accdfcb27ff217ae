"""Kills processes at random moments, with appends under way, and measures how long it takes others to go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polonaise
from polonaise.coordination.zookeeper import SESSION_S
from polonaise.node.local import LocalCluster
from polonaise.redaction import redacted_end
from polonaise_proving.campaigns import journal
from polonaise_proving.campaigns.comparison import FateComparison
from polonaise_proving.campaigns.journal import JournalLine, JournalReader
from polonaise_proving.campaigns.running import PATIENCE_S, GaveUp
from polonaise_proving.kill.ledger import PARTITION, VIEW, KillLedger
from polonaise_proving.kill.verdict import SharedView, judge

T = TypeVar("T")

PROCESSES = ("a", "b", "c")


@dataclass
class KillReport:
    """The events of a campaign, and the mistakes found."""

    take_over_s_max: float
    """The seconds within which others have to go on when what served the log was killed."""
    kills: int = 0
    served_kills: int = 0
    """The number of kills of what served the log: the host of an embedded one, or a server."""
    storage_kills: int = 0
    unacknowledged: int = 0
    """The number of kills of a process that had appends without an answer."""
    take_overs_s: list[float] = field(default_factory=list)
    """Seconds from each kill of what served the log to the first commit of an operation asked for after the kill."""
    late: list[str] = field(default_factory=list)
    """A text for each take-over that took longer than `take_over_s_max`."""
    comparison: FateComparison = field(default_factory=FateComparison)

    @property
    def wrong(self) -> list[str]:
        return [*self.comparison.wrong, *self.late]


class _Process:
    """One of the processes, through all its lives."""

    def __init__(self, directory: Path, name: str, address: str) -> None:
        self._directory = directory
        self._address = address
        self._lives = 0
        self.name = name
        self.lines: list[JournalLine] = []
        """The journal's lines of the process's earlier lives."""
        self.errors = directory / f"{name}.errors"
        self.start()

    def start(self) -> None:
        self._lives += 1
        arguments = [self._address, str(self._directory), self.name, str(self._lives)]
        command = [sys.executable, "-m", "polonaise_proving.kill.client", *arguments]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
        self.journal = JournalReader(self._directory / f"{self.name}.{self._lives}.journal")

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
            raise GaveUp(f"process {self.name} ended by itself: {redacted_end(self.errors.read_text(), 2_000)}")


class KillCampaign(ABC):
    """A campaign of kills among processes that work with one log. Use as a context manager: none outlives it."""

    def __init__(self, directory: Path, seed: int, address: str, take_over_s_max: float) -> None:
        self._address = address
        self._directory = directory
        self._random = random.Random(seed)
        self._processes = [_Process(directory, name, address) for name in PROCESSES]
        self.report = KillReport(take_over_s_max)

    def __enter__(self) -> KillCampaign:
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

    @abstractmethod
    def _kill_one(self) -> None:
        """Kill one process, see that the others go on, and start it again."""

    def _kill_client(self, victim: _Process) -> None:
        victim.kill()
        self.report.kills += 1
        self.report.unacknowledged += bool(victim.journal.pending)

    def _time_take_over(self, others: list[_Process], killed_s: float) -> None:
        """Measure how long it takes until one of these processes has a commit that it asked for after the kill."""
        died_s = time.monotonic()
        first_s = self._wait(lambda: _first_commit_s(others, killed_s), "a commit after what served it was killed")
        took_s = first_s - killed_s
        self.report.served_kills += 1
        self.report.take_overs_s.append(took_s)
        if took_s > self.report.take_over_s_max:
            ended = time.time() - (time.monotonic() - first_s)
            self.report.late.append(
                f"a take-over took {took_s:.2f} s, from {ended - took_s:.3f} to {ended:.3f} "
                f"(the killed process was gone after {died_s - killed_s:.2f} s)"
            )

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

    def _let_run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= until_s, "the passing of time")

    def _wait(self, holds: Callable[[], T | None], what: str) -> T:
        """Wait until this gives something true; return that. Raises `GaveUp`."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            for each in self._processes:
                each.journal.follow()
            if held := holds():
                return held
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
                raise GaveUp(
                    f"process {each.name} stopped with {status}: {redacted_end(each.errors.read_text(), 2_000)}"
                )
            each.journal.follow()
            each.lines += each.journal.lines

    async def compare(self) -> None:
        """After `run`, compare what the processes were told with the log."""
        async with polonaise.connect(self._address) as log:
            bodies = [tx.data async for tx in log.read(PARTITION, timeout=PATIENCE_S)]
        ledger = KillLedger(self._directory / VIEW)
        view = SharedView(*ledger.state())
        await ledger.close()
        lines = [line for each in self._processes for line in each.lines]
        self.report.comparison = judge(bodies, lines, view)


class EmbeddedCampaign(KillCampaign):
    """Kills of processes that share an embedded log, the one that hosts it included."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._log_directory = directory / "log"
        super().__init__(directory, seed, f"embedded:{self._log_directory}", take_over_s_max=2.0)

    def _kill_one(self) -> None:
        victim: _Process | None = None
        while victim is None:
            self._wait(lambda: bool(self._host() and self._open()), "a host")
            host = self._host()
            victim = self._caught_busy(self._random.choice(self._open()))
        killed_s = time.monotonic()
        self._kill_client(victim)
        if victim is host:
            self._time_take_over([each for each in self._processes if each is not victim], killed_s)
        victim.start()

    def _host(self) -> _Process | None:
        """Return the hosting process, by the process id in the lock file."""
        try:
            pid = int((self._log_directory / "host.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return next((each for each in self._open() if each.process.pid == pid), None)


class ClusterCampaign(KillCampaign):
    """Kills of clients, servers and storage nodes. The clients know the servers' addresses and nothing else."""

    def __init__(self, directory: Path, seed: int, cluster: LocalCluster) -> None:
        """The cluster runs, and is the caller's to stop."""
        self._cluster = cluster
        address = "polonaise://" + ",".join(server.address for server in cluster.servers)
        # Others take a server for gone when its session with the coordinator ends.
        super().__init__(directory, seed, address, take_over_s_max=SESSION_S + 1.0)

    def _kill_one(self) -> None:
        kill = self._random.choice([self._kill_busy_client, self._kill_server, self._kill_storage])
        kill()

    def _kill_busy_client(self) -> None:
        victim: _Process | None = None
        while victim is None:
            victim = self._caught_busy(self._random.choice(self._open()))
        self._kill_client(victim)
        victim.start()

    def _kill_server(self) -> None:
        server = self._random.choice(self._cluster.servers)
        killed_s = time.monotonic()
        server.kill()
        self.report.kills += 1
        self._time_take_over(self._processes, killed_s)
        server.start()

    def _kill_storage(self) -> None:
        node = self._random.choice(self._cluster.storage)
        node.kill()
        self.report.kills += 1
        self.report.storage_kills += 1
        node.start()


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
