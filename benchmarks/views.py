"""How fast are views in SQL databases? One server, three storage processes, one partition, every commit synced.

    python benchmarks/views.py [--quick] [--seconds 20] [--transactions 1000000] [--only NAME] [--write]

Measures transaction contexts that read a balance from the view, and catching up with an existing log. Processor time
is that of this process (client, view and the application's own code) and, where given, of the cluster's four beside it.
With `--write` the figures replace the ones in docs/performance.md; nobody types them. `--quick` is a smoke run: its
figures mean little.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, bindparam, func, select

import polonaise
from document import arguments, command, table, write_figures
from loads import keep
from polonaise.node.local import LocalCluster

ACCOUNTS = 10_000
START = 1_000_000

PAYMENT = struct.Struct("<iq")

schema = MetaData()
accounts = Table(
    "accounts",
    schema,
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
CREDIT = (
    accounts.update()
    .where(accounts.c.account == bindparam("at"))
    .values(balance=accounts.c.balance + bindparam("amount"))
)
BALANCE = select(accounts.c.balance).where(accounts.c.account == bindparam("at"))


class OneByOne(polonaise.SqlView):
    """A view that applies each transaction by a statement of its own."""

    metadata = schema

    def apply(self, tx: polonaise.Transaction, db: Connection) -> None:
        account, amount = PAYMENT.unpack(tx.data)
        db.execute(CREDIT, {"at": account, "amount": amount})


class Grouped(OneByOne):
    """A view that adds up a run's changes of each account, and writes the sums in one statement."""

    def apply_many(self, transactions: Sequence[polonaise.Transaction], db: Connection) -> None:
        sums: Counter[int] = Counter()
        for account, amount in map(PAYMENT.unpack, [tx.data for tx in transactions]):
            sums[account] += amount
        # In one order everywhere, so that partitions can't lock each other out.
        db.execute(CREDIT, [{"at": account, "amount": sums[account]} for account in sorted(sums)])


@dataclass
class Result:
    """The figures of one load."""

    per_second: float
    processor_us: float
    """Processor time of this process in microseconds, per transaction."""
    p50_ms: float = 0.0
    cluster_us: float = 0.0
    """Processor time of the cluster's processes in microseconds, per transaction."""


def cluster_s(cluster: LocalCluster) -> float:
    """Return the processor seconds that the cluster's processes have used so far."""
    assert cluster.server is not None
    ticks = 0
    for node in (cluster.server, *cluster.storage):
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def database(kind: str, directory: Path) -> Iterator[str]:
    """Yield the URL of a new database; end its server, if it has one, afterwards."""
    if kind == "SQLite":
        yield f"sqlite:///{directory / 'view.db'}"
        return
    # The tests' own server: a real one, from a wheel.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from rigs.databases import PostgreSQL

    server = PostgreSQL(synced=True)
    try:
        server.start()
        yield server.database()
    finally:
        server.close()


def open_accounts(view: polonaise.SqlView, url: str) -> None:
    from sqlalchemy import create_engine

    view.prepare()
    engine = create_engine(url)
    with engine.begin() as db:
        db.execute(accounts.insert(), [{"account": number, "balance": START} for number in range(ACCOUNTS)])
    engine.dispose()


async def contexts(cluster: LocalCluster, url: str, outstanding: int, seconds: float) -> Result:
    """Run withdrawals that read the balance from the view, with a WRITE lock each.

    SQLite is read by plain functions, in the event loop; a database server by coroutines, in threads, so that the event
    loop goes on.
    """
    view = Grouped(url)
    open_accounts(view, url)

    def balance(db: Connection, account: int) -> int:
        return int(db.execute(BALANCE, {"at": account}).scalar_one())

    def withdraw(tx: polonaise.Draft, account: int) -> None:
        tx.write_lock("account", account)
        with view.reading() as db:
            decide(tx, account, balance(db, account))

    async def withdraw_from_server(tx: polonaise.Draft, account: int) -> None:
        tx.write_lock("account", account)
        decide(tx, account, await view.read(balance, account))

    def decide(tx: polonaise.Draft, account: int, balance: int) -> None:
        if balance < 1:
            tx.abandon("insufficient funds")
        else:
            tx.append(PAYMENT.pack(account, -1))

    context = withdraw if url.startswith("sqlite") else withdraw_from_server

    async with polonaise.connect(cluster.coordinator, view=view) as log:
        await log.ready(0)
        processor, others = time.process_time(), cluster_s(cluster)
        load = await keep(lambda: log.run(context, random.randrange(ACCOUNTS), partition=0), outstanding, seconds)
        processor, others = time.process_time() - processor, cluster_s(cluster) - others
        await log.wait_applied(await log.flush(0), 0)
        total = await view.read(lambda db: db.execute(select(func.sum(accounts.c.balance))).scalar_one())
        assert total == START * ACCOUNTS - load.count, "each withdrawal counts once"
    return Result(load.per_second, 1e6 * processor / load.count, load.p50_ms, 1e6 * others / load.count)


async def fill(cluster: LocalCluster, count: int) -> None:
    async with polonaise.connect(cluster.coordinator) as log:
        for start in range(0, count, 2_000):
            bodies = [PAYMENT.pack(number % ACCOUNTS, 1) for number in range(start, min(count, start + 2_000))]
            await asyncio.gather(*(log.append(body, partition=0) for body in bodies))


async def catch_up(cluster: LocalCluster, view: polonaise.SqlView, url: str, count: int) -> Result:
    """Run a new view until it has applied the whole log of `count` transactions."""
    open_accounts(view, url)
    began, processor = time.perf_counter(), time.process_time()
    async with polonaise.connect(cluster.coordinator, view=view) as log:
        await log.wait_applied(count - 1, 0)
        took, processor = time.perf_counter() - began, time.process_time() - processor
        total = await view.read(lambda db: db.execute(select(func.sum(accounts.c.balance))).scalar_one())
        assert total == START * ACCOUNTS + count, "each transaction counts once"
    return Result(count / took, 1e6 * processor / count)


async def measure(seconds: float, count: int, plain_count: int, only: str) -> dict[str, Result]:
    figures: dict[str, Result] = {}

    def told(name: str, result: Result) -> None:
        figures[name] = result
        latency = f", median {result.p50_ms:.1f} ms" if result.p50_ms else ""
        cluster = f" + {result.cluster_us:.0f}" if result.cluster_us else ""
        print(f"{name}: {result.per_second:,.0f}/s, {result.processor_us:.0f}{cluster} µs each{latency}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for number, (kind, outstanding) in enumerate(
            [("SQLite", 256), ("SQLite", 1_024), ("PostgreSQL", 1_024)],
        ):
            name = f"contexts, {kind}, {outstanding:,} outstanding"
            if only in name:
                directory = root / f"contexts-{number}"
                with LocalCluster(directory) as cluster, database(kind, directory) as url:
                    told(name, await contexts(cluster, url, outstanding, seconds))
        for length, view in ((count, Grouped), (plain_count, OneByOne)):
            how = "apply_many" if view is Grouped else "plain apply"
            names = {kind: f"catching up, {kind}, {how}, {length:,}" for kind in ("SQLite", "PostgreSQL")}
            if not any(only in name for name in names.values()):
                continue
            directory = root / f"catching-up-{how}"
            with LocalCluster(directory) as cluster:
                await fill(cluster, length)
                for kind, name in names.items():
                    if only in name:
                        with database(kind, directory) as url:
                            told(name, await catch_up(cluster, view(url), url, length))
    return figures


def main() -> None:
    options = arguments(__doc__, seconds=20.0, transactions=1_000_000, only="", quick=False)
    seconds, count = (2.0, 20_000) if options.quick else (options.seconds, options.transactions)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(seconds, count, max(10_000, count // 10), options.only))
    if options.write:
        write_figures("views.py", page(figures, seconds, count))


def page(figures: dict[str, Result], seconds: float, count: int) -> list[str]:
    rows = [
        (
            name,
            f"{result.per_second:,.0f}",
            f"{result.processor_us:.0f}",
            f"{result.cluster_us:.0f}" if result.cluster_us else "",
            f"{result.p50_ms:.1f}" if result.p50_ms else "",
        )
        for name, result in figures.items()
    ]
    return [
        f"{command('views.py', seconds=seconds, transactions=count)}, load {os.getloadavg()[1]:.0f} over the last "
        "minutes. Processor time per transaction: of this process (client, view and application), and of the "
        "cluster's four.",
        "",
        *table(["load", "transactions/s", "processor µs", "cluster's µs", "median ms"], rows),
    ]


if __name__ == "__main__":
    main()
