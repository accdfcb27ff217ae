"""A run that its database can't take at once: it gets smaller, down to one, which is then named."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, func, select, text
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from polonaise.errors import ViewUnavailable
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from polonaise.views import retrying, worker
from polonaise.views.retrying import Next, Portion
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import closed_after
from rigs.databases import execute, small_packets_of
from rigs.deliverycalls import batch_of, stream

schema = MetaData()
kept = Table(
    "kept",
    schema,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary().with_variant(mysql.LONGBLOB(), "mariadb")),
)


class Kept(SqlView):
    metadata = schema

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        db.execute(kept.insert().values([{"id": tx.id, "data": tx.data} for tx in transactions]))


class Spoiled(Kept):
    """A view whose attempts to apply are noted, by their sizes, and then spoiled by what is given."""

    def __init__(self, url: str, spoil: Callable[[Sequence[Transaction], Connection], None]) -> None:
        super().__init__(url)
        self.tried: list[int] = []
        self._spoil = spoil

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        self.tried.append(len(transactions))
        super().apply_many(transactions, db)
        self._spoil(transactions, db)


class KeptEntries(SqlDeliveryTarget):
    metadata = schema

    def apply_entries(self, partition: int, entries: Sequence[RoutedEntry], db: Connection) -> None:
        db.execute(kept.insert().values([{"id": entry.id, "data": entry.payload} for entry in entries]))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gets smaller at once, however slow the machine is."""
    monkeypatch.setattr(retrying, "_UNTOLD_S_MAX", 600.0)


@pytest.fixture
def small_packets(mariadb_url: str) -> Iterator[str]:
    with small_packets_of(mariadb_url):
        yield mariadb_url


def run(*sizes: int) -> list[Transaction]:
    return [Transaction(0, id, 0, bytes(size), 1_000, 1, 1, id) for id, size in enumerate(sizes)]


def counted(url: str) -> int:
    with engine_at(url) as engine, engine.connect() as db:
        return int(db.execute(select(func.count()).select_from(kept)).scalar_one())


async def applied_through(view: SqlView, whole: list[Transaction]) -> int:
    mark = -1
    while mark < whole[-1].id:
        mark = await view.apply_run(whole[mark + 1 :])
    return mark


@pytest.mark.slow
async def test_a_run_that_is_too_large_for_the_database_is_applied_in_parts(small_packets: str) -> None:
    async with closed_after(Kept(small_packets)) as view:
        await view.high_water_mark(0)
        assert await applied_through(view, run(*[60_000] * 8)) == 7
    assert counted(small_packets) == 8


@pytest.mark.slow
async def test_one_that_is_too_large_is_named_and_all_before_it_are_applied(small_packets: str) -> None:
    view, whole = Kept(small_packets), run(10, 10, 10, 300_000, 10)
    told: list[Exception] = []
    try:
        await view.high_water_mark(0)
        while not told or isinstance(told[-1], ViewUnavailable):
            try:
                await applied_through(view, whole[await view.high_water_mark(0) + 1 :])
            except (ViewUnavailable, DBAPIError) as error:
                told.append(error)
    finally:
        await view.close()
    assert len(told) == 3, "the database may have been the trouble twice"
    assert isinstance(told[-1], DBAPIError)
    assert counted(small_packets) == 3


@pytest.mark.slow
async def test_a_target_applies_in_parts_and_refuses_what_is_too_large(small_packets: str) -> None:
    target = KeptEntries(small_packets)
    session = await stream(target)
    applied: Any = await session.take(batch_of(-1, tuple("x" * 100_000 for _ in range(5)), 0))
    assert (applied.last, applied.refusal) == (4, "")
    for _ in range(2):
        with pytest.raises(ViewUnavailable):
            await session.take(batch_of(4, ("x" * 600_000,), 0))
    applied = await session.take(batch_of(4, ("x" * 600_000,), 0))
    await target.close()
    assert applied.last == 4
    assert "OperationalError" in applied.refusal
    assert counted(small_packets) == 5


async def test_a_view_that_others_keep_waiting_for_long_says_so_before_all_tries(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: Sequence[Transaction], __: Connection) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    monkeypatch.setattr(worker, "TRIED_S_MAX", 0.0)
    async with closed_after(Spoiled(sqlite_url, wait)) as view:
        await view.high_water_mark(0)
        with pytest.raises(ViewUnavailable, match="other transactions stand in the way again and again"):
            await view.apply_run(run(10))
    assert view.tried == [1]


LIMITS = ["statement_timeout", "idle_in_transaction_session_timeout"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_run_that_takes_too_long_for_the_database_is_applied_in_parts(postgresql_url: str, limit: str) -> None:
    def be_slow(transactions: Sequence[Transaction], db: Connection) -> None:
        if len(transactions) > 2:
            if limit == "statement_timeout":
                db.execute(text("SELECT pg_sleep(20)"))
            else:
                lose(db)

    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    execute(postgresql_url, f"ALTER DATABASE {name} SET {limit} = '200ms'")
    async with closed_after(Spoiled(postgresql_url, be_slow)) as view:
        await view.high_water_mark(0)
        assert await applied_through(view, run(*[10] * 8)) == 7
    assert view.tried[0] == 8
    assert counted(postgresql_url) == 8


_LOSES: dict[str, str] = {
    "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
    "mariadb": "KILL CONNECTION CONNECTION_ID()",
}
"""What a server's own limit of idle transactions does, at once."""


def lose(db: Connection) -> None:
    if db.dialect.name in _LOSES:
        db.execute(text(_LOSES[db.dialect.name]))
        return
    db.invalidate()
    error = sqlite3.OperationalError("interrupted")
    error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
    raise DBAPIError("INSERT", None, error, connection_invalidated=True)


@pytest.mark.slow
@pytest.mark.parametrize("fenced", [False, True])
async def test_a_run_that_loses_its_connection_is_made_smaller_at_once(url: str, fenced: bool) -> None:
    def lose_at_seven(transactions: Sequence[Transaction], db: Connection) -> None:
        if transactions[-1].id >= 7:
            lose(db)

    view, whole = Spoiled(url, lose_at_seven), run(*[10] * 20)
    try:
        if fenced:
            _, epoch = await view.take_over(0)
            assert await view.apply_run_under(epoch, whole) == 4
        else:
            await view.high_water_mark(0)
            assert await view.apply_run(whole) == 4
        assert view.tried == [20, 20, 10, 5], "twice, since the connection may have been closed while it was idle"
        while view._workers.portions[0].most > 1:
            with contextlib.suppress(ViewUnavailable):
                await view.apply_run(whole[counted(url) :])
        view.tried.clear()
        with pytest.raises(ViewUnavailable):
            await view.apply_run(whole[counted(url) :])
        with pytest.raises(DBAPIError):
            await view.apply_run(whole[counted(url) :])
        assert view.tried == [1, 1], "tried alone three times in a row, it is at fault"
    finally:
        await view.close()
    assert counted(url) == 7


async def test_mixed_partitions_have_portions_of_their_own(sqlite_url: str) -> None:
    view = Kept(sqlite_url)
    view._workers.portions[1] = Portion()
    view._workers.portions[1].most = 1
    await asyncio.gather(view.high_water_mark(0), view.high_water_mark(1))
    assert await view.apply_run(run(1, 1, 1)) == 2
    await view.close()


def test_a_portion_is_halved_down_to_one_which_is_named_the_third_time() -> None:
    portion = Portion()
    assert [portion.driven_away(count) for count in (8, 4, 2)] == [Next.SMALLER] * 3
    assert portion.most == 1
    assert [portion.driven_away(1) for _ in range(3)] == [Next.LATER, Next.LATER, Next.NAMED]
    portion.taken(1)
    assert portion.driven_away(1) is Next.LATER, "in a row"


def test_a_portion_grows_again_after_many_went_well() -> None:
    portion = Portion()
    portion.driven_away(8)
    assert portion.most == 4
    for _ in range(15):
        portion.taken(4)
    portion.taken(3)
    assert portion.most == 4
    portion.taken(4)
    assert portion.most == 8
