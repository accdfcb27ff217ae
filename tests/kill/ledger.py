"""The bank of the kill test: what an operation does, and a view of all of them in SQLite.

The view moves its high-water mark in the same transaction as the state, so that each operation counts exactly once,
wherever its process is killed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import polonaise

ACCOUNTS = 8
PARTITION = 0


def deposit(operation: str, account: int, amount: int) -> bytes:
    return f"{operation} {account} {account} {amount}".encode()


def transfer(operation: str, source: int, target: int, amount: int) -> bytes:
    return f"{operation} {source} {target} {amount}".encode()


def operation_of(data: bytes) -> str:
    return data.decode().split()[0]


def moves(data: bytes) -> list[tuple[int, int]]:
    """(account, what is added to its balance); a deposit names one account twice."""
    _, source, target, amount = data.decode().split()
    if source == target:
        return [(int(target), int(amount))]
    return [(int(source), -int(amount)), (int(target), int(amount))]


def fold(bodies: Iterable[bytes]) -> dict[int, int]:
    """The balances after these."""
    balances: dict[int, int] = {}
    for data in bodies:
        for account, amount in moves(data):
            balances[account] = balances.get(account, 0) + amount
    return balances


class Ledger:
    """The view. A `polonaise.View`."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")  # what is tried is the death of processes, not of machines
        self._database.execute("CREATE TABLE IF NOT EXISTS mark (id INTEGER NOT NULL)")
        self._database.execute("CREATE TABLE IF NOT EXISTS accounts (account INTEGER PRIMARY KEY, balance INTEGER)")
        self.failure: Exception | None = None

    def high_water_mark(self, partition: int) -> int:
        row = self._database.execute("SELECT id FROM mark").fetchone()
        return row[0] if row else -1

    def apply(self, tx: polonaise.Transaction) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            if database.execute("UPDATE mark SET id = ? WHERE id = ?", (tx.id, tx.id - 1)).rowcount != 1:
                if tx.id or self.high_water_mark(tx.partition) != -1:
                    raise AssertionError(f"transaction {tx.id} on top of {self.high_water_mark(tx.partition)}")
                database.execute("INSERT INTO mark VALUES (0)")
            for account, amount in moves(tx.data):
                database.execute(
                    "INSERT INTO accounts VALUES (?, ?) ON CONFLICT DO UPDATE SET balance = balance + ?",
                    (account, amount, amount),
                )
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failure = error

    def balance(self, account: int) -> int:
        row = self._database.execute("SELECT balance FROM accounts WHERE account = ?", (account,)).fetchone()
        return row[0] if row else 0

    def balances(self) -> dict[int, int]:
        return dict(self._database.execute("SELECT account, balance FROM accounts"))

    def close(self) -> None:
        self._database.close()
