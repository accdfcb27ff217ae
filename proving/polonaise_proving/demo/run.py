"""Run the bank: a cluster of real processes, tellers, two kills on the way, the checks, and then Spark."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

import polonaise
from polonaise.errors import BadOption
from polonaise.host.tls import VARIABLES
from polonaise.node.local import ChildNode, LocalCluster, StartFailed
from polonaise_proving.demo.bank import OPENING, PARTITION, Accounts, encode_opening
from polonaise_proving.demo.checks import DayFindings, DemoVerdict, SparkFindings, fold, verdicts
from polonaise_proving.demo.payments import Book
from polonaise_proving.demo.teller import Job, TellerProcess, TellerReport, shares
from polonaise_proving.record.evidence import replicas
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.processes import Program, to_its_end

AT_A_TIME: Final = 96
"""Payments under way at the same time, of all tellers together."""
DOWN_S: Final = 1.0
"""Seconds that the killed storage node stays away."""
_MARKER: Final = "polonaise-demo"
_TELLER_KILLED_AT: Final = 0.25
_STORAGE_KILLED_AT: Final = 0.5
_CAUGHT_UP_S: Final = 60.0
SPARK_S: Final = 3_600.0
"""Seconds that Spark may take for the day. A million payments take minutes."""


@dataclass
class Day:
    """What happened while the payments were made."""

    made: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    found_made: int = 0
    """Number of payments that a killed teller had made and not reported, and that its next process found made."""
    unknown: int = 0
    """Number of appends whose fate was learnt only after a deadline."""
    runs: int = 0
    """The number of times that contexts ran: once for each payment that was begun, and again after each conflict or
    failed append."""
    latencies_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    killed: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Number of payments that have an outcome."""
        return len(self.made) + len(self.refused)

    def add(self, report: TellerReport) -> None:
        self.made.update(report.made, report.found_made)
        self.refused.update(report.refused)
        self.found_made += len(report.found_made)
        self.unknown += report.unknown
        self.runs += report.runs
        self.latencies_s += report.latencies_s


class Bank:
    """One day of the bank."""

    def __init__(self, cluster: LocalCluster, book: Book, tellers: int, directory: Path) -> None:
        self._cluster = cluster
        self._book = book
        self._directory = directory
        self.database = f"sqlite:///{directory / 'view.db'}"
        self._at_a_time = max(1, AT_A_TIME // tellers)
        self._progressed = asyncio.Event()
        self._on_progress: Callable[[int], None] = lambda done: None
        self.day = Day()
        self.tellers = [
            TellerProcess(
                f"teller-{number}",
                Job(cluster.coordinator, self.database, self._at_a_time, book.refuses_overdrafts, payments),
                directory,
                self._heard,
            )
            for number, payments in enumerate(shares(book.payments, tellers))
            if payments
        ]

    async def open_accounts(self) -> None:
        """Open every account with a transaction of its own: a view can be made only of what is in the log."""

        def opens(tx: polonaise.Draft, account: int, balance: int) -> None:
            tx.write_lock("account", account)
            tx.append(encode_opening(account, balance), header=OPENING)

        async with polonaise.connect(self._cluster.coordinator) as log:
            await asyncio.gather(
                *(
                    log.run(opens, account, balance, partition=PARTITION, timeout=_CAUGHT_UP_S)
                    for account, balance in self._book.opening.items()
                )
            )

    async def make_payments(self, on_progress: Callable[[int], None]) -> None:
        """Let the tellers make all payments. On the way, kill one teller and one storage node."""
        self._on_progress = on_progress
        began_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._kill_teller())
                group.create_task(self._kill_storage(self._cluster.storage[0]))
                await asyncio.wait([group.create_task(teller.work()) for teller in self.tellers])
                self.day.took_s = time.perf_counter() - began_s
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def findings(self) -> DayFindings:
        """Collect what the day has left behind, for the checks."""
        day = self.day
        async with polonaise.connect(self._cluster.coordinator) as log:
            folded = await fold(log)
        balances, payments = await self._caught_up(self.database, folded.last)
        rebuilt, rebuilt_payments = await self._caught_up(f"sqlite:///{self._directory / 'rebuilt.db'}", folded.last)
        directories = {path.name: path for path in self._cluster.storage_directories}
        return DayFindings(
            made=day.made,
            refused=day.refused,
            view=balances,
            view_payments=payments,
            rebuilt=rebuilt,
            rebuilt_payments=rebuilt_payments,
            folded=folded,
            replicas=await replicas(directories, PARTITION, folded.last),
            storage_nodes=len(directories),
        )

    async def _caught_up(self, database: str, last: int) -> tuple[dict[int, int], Counter[int]]:
        """Return balances and payments in this database, once it holds the log up to `last`."""
        view = Accounts(database)
        async with polonaise.connect(self._cluster.coordinator, view=view) as log:
            await log.wait_applied(last, PARTITION, timeout=_CAUGHT_UP_S)
            return view.balances(), view.payments()

    def _heard(self, report: TellerReport) -> None:
        self.day.add(report)
        self._progressed.set()
        self._on_progress(self.day.done)

    async def reached(self, part: float) -> None:
        """Wait until so large a part of the payments has an outcome."""
        while self.day.done < part * len(self._book.payments):
            self._progressed.clear()
            await self._progressed.wait()

    async def _kill_teller(self) -> None:
        await self.reached(_TELLER_KILLED_AT)
        for teller in reversed(self.tellers):
            pid = teller.pid
            if teller.kill():
                done, unfinished = self.day.done, teller.left
                self.day.killed.append(
                    f"{teller.name} (process {pid}) with -9 after {done:,} payments, {unfinished:,} left to it"
                )
                return
        self.day.killed.append("no teller: all was done before")

    async def _kill_storage(self, node: ChildNode) -> None:
        await self.reached(_STORAGE_KILLED_AT)
        pid = node.pid
        await to_its_end(node.kill)
        self.day.killed.append(f"{node.name} (process {pid}) with -9 after {self.day.done:,} payments")
        await asyncio.sleep(DOWN_S)
        await to_its_end(node.start)


@contextlib.asynccontextmanager
async def started(cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Start the cluster, and stop it at the end, whatever happens."""
    try:
        await to_its_end(cluster.start)
        yield cluster
    finally:
        await to_its_end(cluster.stop)


async def run_bank(book: Book, tellers: int, console: Console, output: Path) -> bool:
    """Run the bank in a temporary directory. Return whether every check holds.

    What Spark makes of the log goes to `output`, replacing an earlier day's: the archive, tables, and report.html.
    Raises `BadOption` if something else is there or it can't be written to, `StartFailed` for a node or for Spark, and
    `GaveUp`.
    """
    _make_room(output)
    for row in book.bad_rows:
        console.print(Text(f"not used: {row}", style="yellow"))  # a Text: what a file contains is no markup
    for account in book.unchained:
        console.print(f"[yellow]account {account}: its rows do not chain; it is not compared with the bank")
    with without_tls(), tempfile.TemporaryDirectory(prefix="polonaise-demo-") as scratch:
        directory = Path(scratch)
        console.print("starting a server and three storage nodes on loopback")
        async with started(LocalCluster(directory / "cluster", evidence=True)) as cluster:
            bank = Bank(cluster, book, tellers, directory)
            console.print(f"opening {len(book.opening):,} accounts, then {len(bank.tellers)} tellers begin")
            await bank.open_accounts()
            with payments_shown(book, console) as show:
                await bank.make_payments(show)
            console.print("folding the log, and building a second view from it")
            findings = await bank.findings()
            results = verdicts(book, findings)
            console.print("archiving the log, building tables and a report on Spark, auditing the tellers' database")
            history = await _run_spark_jobs(cluster.coordinator, bank.database, findings, output)
    if history.lacking:
        console.print(Text(f"no pipeline: {history.lacking}", style="yellow"))
    _print(console, book, bank.day, findings, results + history.verdicts)
    if history.page:
        console.print(Text(f"the report: {history.page}"), soft_wrap=True)
    results += history.verdicts
    return all(result.holds for result in results)


@contextlib.contextmanager
def payments_shown(book: Book, console: Console) -> Iterator[Callable[[int], None]]:
    """Show a bar of the payments that have an outcome, whose number is given to what this yields."""
    columns = (TextColumn("payments"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=console) as bar:
        shown = bar.add_task("payments", total=len(book.payments))
        yield lambda done: bar.update(shown, completed=done)


@contextlib.contextmanager
def without_tls() -> Iterator[None]:
    """Hide the TLS files that the environment names: they are for another cluster than the demo's."""
    hidden = {name: os.environ.pop(name) for name in VARIABLES.values() if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _make_room(output: Path) -> None:
    marker = output / _MARKER
    try:
        output = output.resolve()  # a link to it stays
        if output.exists() and not marker.exists() and any(output.iterdir()):
            raise BadOption(f"{output} holds something else than a day of this bank: choose another --output")
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        marker.write_text("What `polonaise demo bank` has written; its next run replaces it.\n")
    except OSError as error:
        raise BadOption(f"{output} can't be written to: {error.strerror or error}: choose another --output") from error


async def _run_spark_jobs(log: str, database: str, findings: DayFindings, output: Path) -> SparkFindings:
    """Run Spark's part of the day in a process of its own, so that everything Spark has started ends with it."""
    if find_spec("pyspark") is None:
        return SparkFindings(lacking="PySpark is not installed: pip install 'polonaise[spark]'")
    command = ["polonaise_proving.demo.sparkjobs", log, database, str(output)]
    spark = Program("Spark", output / "spark.log", command=command, speaks=True, apart="group")
    spark.start()
    try:
        request = json.dumps({"last": findings.folded.last, "balances": findings.folded.balances})
        async with asyncio.timeout(SPARK_S):
            await asyncio.to_thread(spark.say, request)  # more than a pipe holds: it blocks until Spark reads it
        status = await asyncio.to_thread(spark.wait_ended, SPARK_S)
    except (GaveUp, TimeoutError):
        raise StartFailed(
            f"Spark did not end within {SPARK_S:g} s on the bank's log: {output / 'spark.log'} says how far it "
            "got; run the demo again with fewer payments, or when the machine has less to do"
        ) from None
    finally:
        spark.kill()
    if status:
        raise StartFailed(f"Spark failed on the bank's log: {output / 'spark.log'} says why")
    return SparkFindings.decode(spark.said[-1])


def _print(console: Console, book: Book, day: Day, findings: DayFindings, results: Sequence[DemoVerdict]) -> None:
    times = sorted(day.latencies_s) or [0.0]
    table = Table(title="The bank on the log", show_header=False)
    rows = {
        "payments": f"{len(book.payments):,} on {len(book.payments_of):,} accounts",
        "made": f"{len(day.made):,}",
        "refused for lack of money": f"{len(day.refused):,}",
        "rows not used": f"{len(book.bad_rows):,}",
        "conflicts run again": f"{max(0, day.runs - len(times)):,}",
        "fate learnt late": f"{day.unknown:,}",
        "made by a killed teller that could not say so": f"{day.found_made:,}",
        "accounts below zero": f"{sum(balance < 0 for balance in findings.view.values()):,}",
        "killed": "\n".join(day.killed),
        "throughput": f"{len(book.payments) / max(day.took_s, 1e-9):,.0f} payments/s in {day.took_s:.1f} s",
        "latency": f"median {1e3 * times[len(times) // 2]:.1f} ms, p99 {1e3 * times[len(times) * 99 // 100]:.1f} ms, "
        f"longest {1e3 * times[-1]:.0f} ms",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    print_verdicts(console, results)


def print_verdicts(console: Console, results: Sequence[DemoVerdict]) -> None:
    """Print what must hold, and what was seen."""
    checks = Table(title="Checks", show_lines=False)
    checks.add_column("")
    checks.add_column("what must hold")
    checks.add_column("seen")
    for result in results:
        checks.add_row("[green]holds" if result.holds else "[red]FAILS", result.what, Text(result.detail))
    console.print(checks)
