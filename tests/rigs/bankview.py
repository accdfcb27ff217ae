"""A view whose contents tell whether each transaction was applied exactly once, and transactions to give it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, func, select

from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at

V = TypeVar("V", bound=SqlView)
ACCOUNTS = 8

schema = MetaData()
accounts = Table(
    "accounts",
    schema,
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
journal = Table(
    "journal",
    schema,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("account", Integer, nullable=False),
    Column("amount", BigInteger, nullable=False),
)
"""The table with one row per applied transaction: applying it twice breaks the key, not at all leaves a gap."""


class Bank(SqlView):
    """A view of balances, with a journal of what was applied. `poison`: (partition, id)s that it can't apply."""

    metadata = schema

    def __init__(self, engine: Engine | str, **options: Any) -> None:
        super().__init__(engine, **options)
        self.poison: set[tuple[PartitionId, TransactionId]] = set()
        self.failures: list[tuple[PartitionId, TransactionId, str]] = []
        self.runs: list[tuple[PartitionId, TransactionId, TransactionId]] = []

    def apply(self, tx: Transaction, db: Connection) -> None:
        account, amount = (int(part) for part in tx.data.split())
        db.execute(journal.insert(), {"partition": tx.partition, "id": tx.id, "account": account, "amount": amount})
        mine = accounts.c.account == account
        changed = db.execute(accounts.update().where(mine).values(balance=accounts.c.balance + amount))
        if not changed.rowcount:
            db.execute(accounts.insert(), {"account": account, "balance": amount})
        if (tx.partition, tx.id) in self.poison:
            raise ValueError(f"no stomach for {tx.id}")

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        self.runs.append((transactions[0].partition, transactions[0].id, transactions[-1].id))
        super().apply_many(transactions, db)

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        self.failures.append((partition, id, str(error)))


@asynccontextmanager
async def closed_after(view: V) -> AsyncIterator[V]:
    try:
        yield view
    finally:
        await view.close()


def body(number: int) -> bytes:
    return b"%d %d" % (number % ACCOUNTS, number % 5 + 1)


def transactions(count: int, *, first: TransactionId = 0, partition: PartitionId = 0) -> list[Transaction]:
    return [Transaction(partition, id, 0, body(id), 1_000, 1, 1, id) for id in range(first, first + count)]


def open_accounts(url: str, partitions: int = 1) -> None:
    """Make the tables, the rows of marks and all accounts at 0, so that appliers of several partitions only update."""
    view = Bank(url)
    view.prepare()
    with engine_at(url) as engine, engine.begin() as db:
        db.execute(accounts.insert(), [{"account": number, "balance": 0} for number in range(ACCOUNTS)])
        db.execute(view.marks.insert(), [{"partition": number, "high_water_mark": -1} for number in range(partitions)])


def check_fold(url: str, lengths: dict[PartitionId, int]) -> None:
    """Check that the database holds exactly the result of the first so many transactions of each partition."""
    with engine_at(url) as engine, engine.connect() as db:
        marks = Bank(engine).marks
        found = {row.partition: row.high_water_mark for row in db.execute(select(marks))}
        assert found == {partition: length - 1 for partition, length in lengths.items()}
        for partition, length in lengths.items():
            rows = db.execute(select(journal).where(journal.c.partition == partition).order_by(journal.c.id)).all()
            assert [row.id for row in rows] == list(range(length)), f"partition {partition}: each once"
        expected: Counter[int] = Counter()
        for row in db.execute(select(journal)):
            expected[row.account] += row.amount
        balances = {row.account: row.balance for row in db.execute(select(accounts)) if row.balance}
        assert balances == dict(expected), "the balances are what the journal adds up to"


def put_back(url: str, mark: TransactionId) -> None:
    """Put the database back to when partition 0 was applied up to this id, in one SQL transaction."""
    with engine_at(url) as engine, engine.begin() as db:
        marks = Bank(engine).marks
        db.execute(marks.update().where(marks.c.partition == 0).values(high_water_mark=mark))
        db.execute(journal.delete().where(journal.c.id > mark))
        db.execute(accounts.delete())
        rows = db.execute(select(journal)).all()
        for account in {row.account for row in rows}:
            balance = sum(row.amount for row in rows if row.account == account)
            db.execute(accounts.insert(), {"account": account, "balance": balance})


def counted(url: str, table: Table) -> int:
    with engine_at(url) as engine, engine.connect() as db:
        return db.execute(select(func.count()).select_from(table)).scalar_one()
