"""`make kill-test`: processes that share a log are killed with -9, over and over, those that serve it included.

Clients of a bank with one view for all of them are killed with appends under way, and started again. It is measured how
long it takes others to go on, and `judges.histories` compares what they were told with what is in the log and in the
view.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polonaise
from polonaise.coordination.zookeeper import SESSION_S
from polonaise.node.local import LocalCluster
from polonaise_proving.judges.histories import LOG_CHECKS, violations
from polonaise_proving.record.bankledger import BankLedger, database_of
from polonaise_proving.record.evidence import read_log
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.history import Fates, LineKind, PartitionHistory
from polonaise_proving.record.journal import lines_of
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.arguments import at_least_one
from polonaise_proving.scenarios.running import Figures
from polonaise_proving.stages.hosts.clientjob import GO, QUIET, ClientJob
from polonaise_proving.stages.hosts.parts import ClientPart
from polonaise_proving.stages.processes import state_of, wait_until

T = TypeVar("T")

PROCESSES = ("a", "b", "c")
RATE = 200.0
"""The most operations that each of them begins in a second, on average: the test is of kills, not of speed."""
VIEW = "view"
"""The name of the database that they share."""


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
    fates: Fates = field(default_factory=Fates)
    broken: list[str] = field(default_factory=list)
    """The promises that were broken, each with how."""

    @property
    def wrong(self) -> list[str]:
        return [*self.broken, *self.late]

    def figures(self) -> list[Figures]:
        told = self.fates
        took_s = sorted(self.take_overs_s)
        figures: dict[str, int | str] = {
            "kills": self.kills,
            "of them, of what served the log": self.served_kills,
            "of them, of storage nodes": self.storage_kills,
            "with appends of the killed process unacknowledged": self.unacknowledged,
            "operations asked for": told.asked,
            "acknowledged": told.acknowledged,
            "reported failed, or abandoned": told.refused,
            "never answered: killed first": told.unknown,
            "transactions in the log": told.transactions,
        }
        if took_s:
            figures["take-over, median"] = f"{1e3 * statistics.median(took_s):.0f} ms"
            figures["take-over, 95 %"] = f"{1e3 * took_s[len(took_s) * 95 // 100]:.0f} ms"
            figures[f"take-over, longest (bound {self.take_over_s_max:g} s)"] = f"{1e3 * took_s[-1]:.0f} ms"
        figures["wrong"] = len(self.wrong)
        return [Figures("Kills of processes that share a log", figures)]


class KillCampaign(ABC):
    """A campaign of kills among processes that work with one log. Use as a context manager: none outlives it."""

    def __init__(self, directory: Path, seed: int, address: str, take_over_s_max: float) -> None:
        self._address = address
        self._directory = directory
        self._random = random.Random(seed)
        self._database = database_of(directory, VIEW)
        jobs = [ClientJob(address, str(directory), self._database, name, 0, seed, RATE) for name in PROCESSES]
        self._processes = [ClientPart(job, directory / f"{job.name}.errors") for job in jobs]
        for each in self._processes:
            each.start()
            each.tell(GO)
        self.report = KillReport(take_over_s_max)

    def __enter__(self) -> KillCampaign:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.kill()

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

    def _kill_client(self, victim: ClientPart) -> None:
        victim.kill()
        victim.follow()
        self.report.kills += 1
        self.report.unacknowledged += victim.pending

    def _time_take_over(self, others: list[ClientPart], killed_s: float) -> None:
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

    def _open(self) -> list[ClientPart]:
        return [each for each in self._processes if each.is_open]

    def _caught_busy(self, process: ClientPart) -> ClientPart | None:
        """Stop the process. Return it if it has appends without an answer; else let it go on, and return None."""
        process.signal(signal.SIGSTOP)
        self._wait(lambda: state_of(process.pid or 0) == "T", f"process {process.name} to stop")
        process.follow()
        if process.pending:
            return process
        process.signal(signal.SIGCONT)
        return None

    def _let_run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= until_s, "the passing of time")

    def _wait(self, holds: Callable[[], T | None], what: str) -> T:
        """Wait until this gives something true; return that. Raises `GaveUp`."""

        def looked() -> T | None:
            for each in self._processes:
                each.follow()
            if held := holds():
                return held
            for each in self._processes:
                if how := each.ended():
                    raise GaveUp(f"process {each.name} ended by itself: {how}")
            return None

        return wait_until(looked, what)

    # ------------------------------------------------------------------ the end

    def _stop(self) -> None:
        for each in self._processes:
            each.tell(QUIET)
        self._wait(lambda: all(each.is_quiet for each in self._processes), "answers to all appends")
        for each in self._processes:
            each.stop()
        self._wait(lambda: all(each.is_through for each in self._processes), "the end of all processes")

    async def compare(self) -> None:
        """After `run`, compare what the processes were told with the log, and with their view."""
        lines = [line for each in self._processes for line in lines_of(self._directory, each.name, each.life)]
        ledger = BankLedger(self._database, create=False)
        async with polonaise.connect(self._address) as log:
            for partition in range(log.partition_count):
                history = PartitionHistory(partition, copies=0)
                await read_log(log, history)
                history.without_evidence = 0  # these servers write none
                history.lines = [line for line in lines if line.partition == partition or line.kind is LineKind.QUIET]
                history.fed = {VIEW: ledger.all_fed(partition)}
                history.views = {VIEW: ledger.all_balances(partition)}
                self.report.fates.add(history)
                self.report.broken += [f"{each.promise}: {each.text}" for each in violations(history, LOG_CHECKS)]
        await ledger.close()


class EmbeddedCampaign(KillCampaign):
    """Kills of processes that share an embedded log, the one that hosts it included."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._log_directory = directory / "log"
        super().__init__(directory, seed, f"embedded:{self._log_directory}", take_over_s_max=2.0)

    def _kill_one(self) -> None:
        victim: ClientPart | None = None
        while victim is None:
            self._wait(lambda: bool(self._host() and self._open()), "a host")
            host = self._host()
            victim = self._caught_busy(self._random.choice(self._open()))
        killed_s = time.monotonic()
        self._kill_client(victim)
        if victim is host:
            self._time_take_over([each for each in self._processes if each is not victim], killed_s)
        victim.start()

    def _host(self) -> ClientPart | None:
        """Return the hosting process, by the process id in the lock file."""
        try:
            pid = int((self._log_directory / "host.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return next((each for each in self._open() if each.pid == pid), None)


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
        victim: ClientPart | None = None
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


def _first_commit_s(processes: list[ClientPart], after_s: float) -> float | None:
    """Return when the first operation asked for after `after_s` was known to be committed; None if none was."""
    return min((at_s for each in processes for asked_s, at_s in each.recent if asked_s > after_s), default=None)


def main() -> int:
    parser = running.options("kill", "make kill-test KILLS=200 SEED=1, both without and with --cluster", __doc__)
    parser.add_argument("--kills", type=at_least_one, default=200)
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="kill the nodes of a cluster with ZooKeeper, too, in place of an embedded log",
    )
    options = running.parsed(parser)

    def campaign(directory: Path, progress: running.Progressed) -> KillReport:
        with _cluster_in(directory) if options.cluster else nullcontext() as cluster:
            begun: KillCampaign
            if cluster is None:
                begun = EmbeddedCampaign(directory, options.seed)
            else:
                begun = ClusterCampaign(directory, options.seed, cluster)
            with begun:
                begun.run(options.kills, progress)
                asyncio.run(begun.compare())
            return begun.report

    return running.carry_out(options, options.kills, "kills", campaign)


def _cluster_in(directory: Path) -> LocalCluster:
    # Loaded late: it takes as long as all the rest, which Ctrl-C would break off with a traceback.
    from polonaise.admin.localplan import LocalPlan, Wanted

    plan = LocalPlan.new(Wanted(servers=2))
    home = directory / "cluster"
    home.mkdir()
    return LocalCluster(home, addresses=plan.addresses)


if __name__ == "__main__":
    sys.exit(main())
