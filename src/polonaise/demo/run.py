"""Runs the bank: a cluster of real processes, tellers, a kill on the way, the checks, the table."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import polonaise
from polonaise.client.log import Log
from polonaise.demo.bank import PAYMENT, Balances
from polonaise.demo.checks import Verdict, audit, verdicts
from polonaise.demo.payments import Book, Payment
from polonaise.errors import Abandoned, AppendUnknown
from polonaise.node.local import ChildNode, LocalCluster

DOWN_S = 1.0
"""How long the killed storage node stays away."""


@dataclass
class Day:
    """What happened while the payments were made."""

    committed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: int = 0
    """Appends whose fate was learnt only after a deadline."""
    runs: int = 0
    """How often contexts ran; more than payments means conflicts that were run again."""
    latencies_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    killed: str = ""
    half_way: asyncio.Event = field(default_factory=asyncio.Event)
    last: polonaise.Receipt | None = None
    """The latest commit."""


class Bank:
    """Tellers that turn payments into transactions of one log."""

    def __init__(self, log: Log, view: Balances, book: Book, day: Day) -> None:
        self._log = log
        self._view = view
        self._book = book
        self._day = day

    def _transfer(self, tx: polonaise.Draft, payment: Payment) -> None:
        """The transaction context: built on the balances of its accounts, so refused if these have changed since."""
        self._day.runs += 1
        for account in payment.accounts:
            tx.write_lock("account", account)
        if self._book.refuses_overdrafts and payment.source and self._view.of(payment.source) < payment.amount:
            tx.abandon("insufficient funds")
            return
        tx.append(payment.encode(), header=PAYMENT)

    async def teller(self, payments: Sequence[Payment], progress: Progress, bar: int) -> None:
        """Make these payments one after the other."""
        day = self._day
        for payment in payments:
            began = time.perf_counter()
            try:
                receipt = await self._log.run(self._transfer, payment, partition=0, timeout=60)
                day.committed.add(payment.id)
                day.last = receipt if day.last is None or receipt.id > day.last.id else day.last
            except Abandoned:
                day.refused.add(payment.id)
            except AppendUnknown as error:
                day.unknown += 1
                await error.receipt
                day.committed.add(payment.id)
            day.latencies_s.append(time.perf_counter() - began)
            if len(day.latencies_s) >= len(self._book.payments) // 2:
                day.half_way.set()
            progress.advance(bar)  # type: ignore[arg-type]


async def _to_its_end(call: Callable[[], None]) -> None:
    """Run it in a thread. Cancelled, this waits all the same: what is being started has to be stopped, too."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # retrieved: an interrupted start fails, and that is nobody's news
        raise
    task.result()


@contextlib.asynccontextmanager
async def _started(cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """The cluster, stopped at the end whatever that is."""
    try:
        await _to_its_end(cluster.start)
        yield cluster
    finally:
        await _to_its_end(cluster.stop)


async def _kill_half_way(node: ChildNode, day: Day) -> None:
    """Kill a storage node with -9 when half of the payments are made, and start it again."""
    await day.half_way.wait()
    pid = node.pid
    await _to_its_end(node.kill)
    day.killed = f"{node.name} (process {pid}) with -9 after {len(day.committed):,} payments"
    await asyncio.sleep(DOWN_S)
    await _to_its_end(node.start)


async def _make_payments(cluster: LocalCluster, book: Book, tellers: int, console: Console) -> tuple[Day, Balances]:
    day, view = Day(), Balances(book.opening)
    queues: list[list[Payment]] = [[] for _ in range(tellers)]
    for payment in book.payments:
        queues[payment.accounts[0] % tellers].append(payment)
    columns = (TextColumn("payments"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("payments", total=len(book.payments))
        async with polonaise.connect(cluster.coordinator, view=view) as log:
            bank = Bank(log, view, book, day)
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                group.create_task(_kill_half_way(cluster.storage[0], day))
                for queue in queues:
                    group.create_task(bank.teller(queue, progress, bar))
            day.took_s = time.perf_counter() - began
            if day.last is not None:
                await day.last.applied(timeout=60)
    return day, view


async def run_bank(book: Book, tellers: int, console: Console) -> bool:
    """Run the bank in a temporary directory; whether every check holds."""
    for row in book.bad_rows:
        console.print(f"[yellow]not used: {row}")
    for account in book.unchained:
        console.print(f"[yellow]account {account}: its rows do not chain; it is not compared with the bank")
    with tempfile.TemporaryDirectory(prefix="polonaise-demo-") as scratch:
        console.print("starting a server and three storage nodes on loopback")
        async with _started(LocalCluster(Path(scratch), evidence=True)) as cluster:
            day, view = await _make_payments(cluster, book, tellers, console)
            console.print("a client that has seen nothing folds the whole log")
            async with polonaise.connect(cluster.coordinator) as fresh:
                found = await audit(fresh, book)
            results = verdicts(book, found, view, day.committed, day.refused)
    _print(console, book, day, view, results)
    return all(result.holds for result in results)


def _print(console: Console, book: Book, day: Day, view: Balances, results: Sequence[Verdict]) -> None:
    times = sorted(day.latencies_s) or [0.0]
    table = Table(title="The bank on the log", show_header=False)
    rows = {
        "payments": f"{len(book.payments):,} on {len(book.payments_of):,} accounts",
        "made": f"{len(day.committed):,}",
        "refused for lack of money": f"{len(day.refused):,}",
        "rows not used": f"{len(book.bad_rows):,}",
        "conflicts run again": f"{day.runs - len(day.committed) - len(day.refused):,}",
        "fate learnt late": f"{day.unknown:,}",
        "accounts below zero": f"{sum(balance < 0 for balance in view.all().values()):,}",
        "killed": day.killed,
        "throughput": f"{len(book.payments) / max(day.took_s, 1e-9):,.0f} payments/s in {day.took_s:.1f} s",
        "latency": f"median {1e3 * times[len(times) // 2]:.1f} ms, p99 {1e3 * times[len(times) * 99 // 100]:.1f} ms, "
        f"longest {1e3 * times[-1]:.0f} ms",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    checks = Table(title="Checks", show_lines=False)
    checks.add_column("")
    checks.add_column("what must hold")
    checks.add_column("seen")
    for result in results:
        checks.add_row("[green]holds" if result.holds else "[red]FAILS", result.what, result.detail)
    console.print(checks)
