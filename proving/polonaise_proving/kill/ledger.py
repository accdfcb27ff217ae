"""The bank of the kill test: what an operation does, and a view of all of them in one SQLite database."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, MetaData, Table, select

import polonaise

ACCOUNTS = 8
PARTITION = 0
VIEW = "view.sqlite"
"""The database's name in the test's directory."""

schema = MetaData()
accounts = Table(
    "accounts",
    schema,
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", Integer, nullable=False),
)


def deposit(operation: str, account: int, amount: int) -> bytes:
    return f"{operation} {account} {account} {amount}".encode()


def transfer(operation: str, source: int, target: int, amount: int) -> bytes:
    return f"{operation} {source} {target} {amount}".encode()


def moves(data: bytes) -> list[tuple[int, int]]:
    """Return the pairs (account, change of its balance). A deposit has the same account as source and target."""
    _, source, target, amount = data.decode().split()
    if source == target:
        return [(int(target), int(amount))]
    return [(int(source), -int(amount)), (int(target), int(amount))]


def fold(bodies: Iterable[bytes]) -> dict[int, int]:
    """Return the balances after these operations."""
    balances: dict[int, int] = {}
    for data in bodies:
        for account, amount in moves(data):
            balances[account] = balances.get(account, 0) + amount
    return balances


class KillLedger(polonaise.SqlView):
    """The view, which all processes share."""

    metadata = schema

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}", busy_s=30.0)
        self.failure: Exception | None = None

    def apply(self, tx: polonaise.Transaction, db: Connection) -> None:
        for account, amount in moves(tx.data):
            credit = accounts.update().where(accounts.c.account == account)
            if not db.execute(credit.values(balance=accounts.c.balance + amount)).rowcount:
                db.execute(accounts.insert().values(account=account, balance=amount))

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failure = error

    def balance(self, account: int) -> int:
        with self.reading() as db:
            return db.execute(select(accounts.c.balance).where(accounts.c.account == account)).scalar() or 0

    def state(self) -> tuple[int, dict[int, int]]:
        """Return the applied high-water mark, and the balances at it."""
        with self.reading() as db:
            mark = db.execute(select(self.marks.c.high_water_mark)).scalar_one()
            return mark, {row.account: row.balance for row in db.execute(select(accounts))}
