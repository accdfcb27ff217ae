"""A row that another transaction has written at the same moment: no transaction is told to be at fault for it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, schema, transactions
from rigs.deliverycalls import batch_of, stream

DOCUMENT = Path(__file__).parents[2] / "docs" / "applications.md"


def overtaken(db: Connection, url: str, times: list[int], account: int) -> None:
    """Update the account, else insert it; another connection inserts it in between, the first times."""
    mine = accounts.c.account == account
    if db.execute(accounts.update().where(mine).values(balance=accounts.c.balance + 1)).rowcount:
        return
    if times and times.pop():
        with engine_at(url) as engine, engine.begin() as other:
            other.execute(accounts.insert(), {"account": account, "balance": 100})
    db.execute(accounts.insert(), {"account": account, "balance": 1})


def balances(url: str) -> dict[int, int]:
    with engine_at(url) as engine, engine.connect() as db:
        return dict(map(tuple, db.execute(select(accounts.c.account, accounts.c.balance))))


class Overtaken(Bank):
    """A bank whose every transaction updates or inserts the account of its id, and is overtaken the first times."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.times = [1, 1]
        self.change: Callable[[Connection, Transaction], None] = lambda db, tx: overtaken(db, url, self.times, tx.id)

    def apply(self, tx: Transaction, db: Connection) -> None:
        self.change(db, tx)


async def applied_singly(view: Bank, under_an_epoch: bool) -> None:
    """Apply two transactions one by one, as after a run that failed."""
    try:
        if not under_an_epoch:
            await view.high_water_mark(0)
            for tx in transactions(2):
                assert await view.apply_run([tx]) == tx.id
        else:
            _, epoch = await view.take_over(0)
            for tx in transactions(2):
                assert await view.apply_run_under(epoch, [tx]) == tx.id
    finally:
        await view.close()


@pytest.mark.slow
@pytest.mark.parametrize("under_an_epoch", [False, True], ids=["a view", "a worker's view"])
async def test_a_row_that_another_transaction_was_quicker_to_insert_is_updated(
    server_url: str, under_an_epoch: bool
) -> None:
    view = Overtaken(server_url)
    await applied_singly(view, under_an_epoch)
    assert not view.times
    assert balances(server_url) == {0: 101, 1: 101}


async def test_a_row_that_was_there_before_is_told_as_the_transaction_s_own(url: str) -> None:
    view = Overtaken(url)
    view.times.clear()
    view.change = lambda db, tx: db.execute(accounts.insert(), [{"account": 1, "balance": 0}] * 2) and None
    with pytest.raises(IntegrityError):
        await applied_singly(view, under_an_epoch=False)


class Entries(SqlDeliveryTarget):
    """A target whose entry `twice` inserts a row twice; each other one is overtaken the first times."""

    metadata = schema
    times: ClassVar[list[int]] = []
    address: ClassVar[str]

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        if entry.payload == b"twice":
            db.execute(accounts.insert(), [{"account": 7, "balance": 0}] * 2)
        overtaken(db, self.address, self.times, entry.id)


@pytest.mark.slow
async def test_an_entry_is_not_refused_for_a_row_that_another_transaction_was_quicker_to_insert(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Entries, "times", [1, 1, 1])
    monkeypatch.setattr(Entries, "address", server_url, raising=False)
    async with contextlib.AsyncExitStack() as stack:
        target = Entries(server_url)
        stack.push_async_callback(target.close)
        session = await stream(target)
        applied = await session.take(batch_of(-1, ("a", "b", "c", "twice")))
    assert applied.last == 2
    assert "UniqueViolation" in applied.refusal or "IntegrityError" in applied.refusal
    assert balances(server_url) == {0: 101, 1: 101, 2: 101}


def upsert(kind: str) -> Any:
    """Return the function of the page's example for this kind of database."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if f"sqlalchemy.dialects.{kind}" in block]
    defined: dict[str, Any] = {"accounts": accounts}
    exec(compile(code, str(DOCUMENT), "exec"), defined)
    return defined["deposit"]


async def test_the_upserts_that_the_documentation_shows_add_to_a_row_or_make_it(url: str) -> None:
    view = Overtaken(url)
    kind = "mysql" if url.startswith("mariadb") else "postgresql"
    deposit = upsert(kind)
    if url.startswith("sqlite"):
        # The same in the dialect of SQLite, as the page says.
        deposit.__globals__["insert"] = __import__("sqlalchemy.dialects.sqlite", fromlist=["insert"]).insert
    view.change = lambda db, tx: deposit(db, 1, 5)
    await applied_singly(view, under_an_epoch=False)
    assert balances(url) == {1: 10}
