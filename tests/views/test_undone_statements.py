"""A statement that waited for a lock too long is done in the end, also if `apply` caught its error and went on.

MariaDB undoes that statement alone: committed with the mark, the others would be all that is ever done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError

from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from rigs.bankview import Bank, accounts, check_fold, open_accounts, schema, transactions
from rigs.databases import MariaDB, engine_at
from rigs.deliverycalls import batch_of, stream
from rigs.lacking import lacking


@pytest.fixture(scope="module")
def usual_mariadb() -> Iterator[MariaDB]:
    """A MariaDB as it comes: the one of other tests is told to end the transaction on a lock timeout."""
    if MariaDB.program() is None:
        lacking("no `mariadbd` on this machine: Debian's package mariadb-server-core has it")
    with contextlib.closing(MariaDB()) as server:
        server.start()
        yield server


@pytest.fixture
def mariadb_url(usual_mariadb: MariaDB) -> str:
    return usual_mariadb.database()


READS: dict[str, Callable[[Bank], Any]] = {
    "a view": lambda view: view.apply_run(transactions(2)),
    "a worker's view": lambda view: _under_an_epoch(view),
}


async def _under_an_epoch(view: Bank) -> int:
    _, epoch = await view.take_over(0)
    return await view.apply_run_under(epoch, transactions(2))


class Locked:
    """Another writer, which has locked account 0 until somebody has waited for it in vain.

    From before the waiting transaction on: later, MariaDB would say that the row has changed, and end the transaction.
    """

    def __init__(self, url: str, held: contextlib.ExitStack) -> None:
        self._is_postgresql = url.startswith("postgresql")
        self._held = held
        self.times = 0
        other = held.enter_context(held.enter_context(engine_at(url)).connect())
        other.execute(accounts.update().where(accounts.c.account == 0).values(balance=accounts.c.balance + 0))

    def meets(self, db: Connection, change: Callable[[], None]) -> None:
        """Make a change, the first time while it is locked."""
        self.times += 1
        if self.times == 1:
            db.execute(
                text("SET LOCAL lock_timeout = 1" if self._is_postgresql else "SET innodb_lock_wait_timeout = 0")
            )
        try:
            change()
        finally:
            self._held.close()


class CatchingBank(Bank):
    """A bank whose `apply` catches what the database tells it, and goes on, or raises an error of its own."""

    locked: Locked
    raises = False
    nested = False

    def apply(self, tx: Transaction, db: Connection) -> None:
        apply = super().apply
        try:
            with db.begin_nested() if self.nested else contextlib.nullcontext():
                self.locked.meets(db, lambda: apply(tx, db))
        except DBAPIError:
            if self.raises:
                raise ValueError("the balance is not what it should be") from None


async def applied_over_a_lock(url: str, how: str = "a view", **said: bool) -> CatchingBank:
    """Apply two transactions, the first of which waits for a lock in vain."""
    open_accounts(url)
    view = CatchingBank(url)
    for name, value in said.items():
        setattr(view, name, value)
    with contextlib.ExitStack() as held:
        view.locked = Locked(url, held)
        try:
            await view.high_water_mark(0)
            assert await READS[how](view) == 1
        finally:
            await view.close()
    return view


@pytest.mark.parametrize("raises", [False, True], ids=["and goes on", "and raises an error of its own"])
@pytest.mark.parametrize("how", READS)
async def test_a_lock_timeout_that_apply_caught_is_tried_again(server_url: str, how: str, raises: bool) -> None:
    view = await applied_over_a_lock(server_url, how, raises=raises)
    assert (view.locked.times, view.failures) == (3 if raises else 4, [])
    check_fold(server_url, {0: 2})


@pytest.mark.slow
async def test_planted_without_its_error_kept_the_statement_is_never_done(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "in_nested_transaction", lambda _: True)
    await applied_over_a_lock(mariadb_url)
    with pytest.raises(AssertionError):
        check_fold(mariadb_url, {0: 2})


async def test_what_apply_tries_in_begin_nested_it_may_leave_undone(server_url: str) -> None:
    view = await applied_over_a_lock(server_url, nested=True)
    assert view.locked.times == 2
    with pytest.raises(AssertionError, match="each once"):
        check_fold(server_url, {0: 2})


@pytest.mark.parametrize("raises", [False, True], ids=["and goes on", "and raises an error of its own"])
async def test_a_lock_timeout_that_a_target_caught_is_tried_again(server_url: str, raises: bool) -> None:
    open_accounts(server_url)
    held = contextlib.ExitStack()
    locked = Locked(server_url, held)

    class Deposits(SqlDeliveryTarget):
        metadata = schema

        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            mine = accounts.c.account == 0
            deposit = accounts.update().where(mine).values(balance=accounts.c.balance + 1)
            try:
                locked.meets(db, lambda: db.execute(deposit) and None)
            except DBAPIError:
                if raises:
                    raise ValueError("the balance is not what it should be") from None

    target = Deposits(server_url)
    try:
        session = await stream(target)
        applied = await session.take(batch_of(-1, ("a", "b"), 0))
    finally:
        held.close()
        await target.close()
    assert (applied.last, applied.refusal) == (1, "")
    with engine_at(server_url) as engine, engine.connect() as db:
        assert db.execute(select(accounts.c.balance).where(accounts.c.account == 0)).scalar_one() == 2
