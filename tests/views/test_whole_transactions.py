"""A SQL transaction that ends under the feet of `apply` commits nothing, and what ended it is told or tried again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from polonaise.errors import BadOption, ViewUnavailable, ViewUnfit
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, check_fold, closed_after, journal, open_accounts, transactions
from rigs.databases import execute, make_procedure
from rigs.deliverycalls import batch_of, stream
from rigs.programs import run_python
from rigs.waiting import block_until


@contextlib.contextmanager
def deadlock_with(url: str) -> Iterator[Callable[[Connection], None]]:
    """Yield a function that makes its transaction the victim of a deadlock, once."""
    holding, asked = threading.Event(), threading.Event()
    left = [1]

    def other() -> None:
        with engine_at(url) as engine, engine.begin() as db:
            looks_after(db, "30s")
            # Many changes: MariaDB ends the transaction with fewer.
            many = [{"partition": 99, "id": number, "account": 1, "amount": 0} for number in range(50)]
            db.execute(journal.insert(), many)
            lock(db, 1)
            holding.set()
            assert asked.wait(20)
            lock(db, 0)
            db.rollback()

    def looks_after(db: Connection, time: str) -> None:
        if "postgresql" in url:  # there the one that looks is the victim
            db.execute(text(f"SET LOCAL deadlock_timeout = '{time}'"))

    def lock(db: Connection, account: int) -> None:
        db.execute(accounts.update().where(accounts.c.account == account).values(balance=accounts.c.balance + 0))

    def fall(db: Connection) -> None:
        if left.pop() if left else None:
            looks_after(db, "1s")
            lock(db, 0)
            assert holding.wait(20)
            asked.set()
            if "postgresql" in url:
                # It looks once, when its time is over: the other one, which waits longer, has to wait by then.
                block_until(other_waits)
            lock(db, 1)

    def other_waits() -> bool:
        with engine_at(url) as engine, engine.connect() as db:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return db.execute(text(waiting)).scalar_one() == 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        yield fall
    finally:
        asked.set()
        thread.join(20)


async def applied_over_a_deadlock(url: str, *, nested: bool = False) -> int:
    """Apply two transactions, the first of which falls into a deadlock, whose error is caught. Return how often."""
    open_accounts(url)
    with deadlock_with(url) as fall:

        class Notes(Bank):
            caught = 0

            def apply(self, tx: Transaction, db: Connection) -> None:
                try:
                    with db.begin_nested() if nested else contextlib.nullcontext():
                        fall(db)
                        if nested:
                            super().apply(tx, db)
                            return
                except DBAPIError:  # "keep a note and go on", as applications do
                    self.caught += 1
                    if nested:
                        return
                with contextlib.suppress(DBAPIError):
                    super().apply(tx, db)

        async with closed_after(Notes(url)) as view:
            await view.high_water_mark(0)
            assert await view.apply_run(transactions(2)) == 1
    return view.caught


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True], ids=["outright", "around begin_nested"])
async def test_a_deadlock_that_apply_caught_is_tried_again(server_url: str, nested: bool) -> None:
    assert await applied_over_a_deadlock(server_url, nested=nested) == 1
    check_fold(server_url, {0: 2})


@pytest.mark.slow
async def test_what_follows_from_a_deadlock_that_apply_caught_is_not_told_instead_of_it(server_url: str) -> None:
    open_accounts(server_url)
    with deadlock_with(server_url) as fall:

        class Wrong(Bank):
            def apply(self, tx: Transaction, db: Connection) -> None:
                try:
                    fall(db)
                except DBAPIError:
                    raise ValueError("can't apply this") from None
                super().apply(tx, db)

        async with closed_after(Wrong(server_url)) as view:
            await view.high_water_mark(0)
            assert await view.apply_run(transactions(2)) == 1
    check_fold(server_url, {0: 2})


@pytest.mark.slow
async def test_an_error_that_apply_caught_in_postgresql_is_raised_at_the_end(postgresql_url: str) -> None:
    """PostgreSQL has failed the transaction by then, and answers COMMIT by rolling it back, without an error."""

    class Doubles(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            with contextlib.suppress(IntegrityError):
                super().apply(tx, db)

    async with closed_after(Doubles(postgresql_url)) as view:
        await view.high_water_mark(0)
        with pytest.raises(IntegrityError, match="duplicate key"):
            await view.apply_run(transactions(1))
        assert await view.high_water_mark(0) == -1
    check_fold(postgresql_url, {0: 0})


@pytest.mark.parametrize("goes_on", [False, True], ids=["and does no more", "and goes on"])
async def test_a_full_disk_on_which_sqlite_rolls_back_is_told_as_that(sqlite_url: str, goes_on: bool) -> None:
    """SQLite ends the transaction with the error, which `apply` catches outside of `begin_nested()`."""
    open_accounts(sqlite_url)
    execute(sqlite_url, "CREATE TABLE more (x BLOB)")
    full = [True]

    class Notes(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            if full and full.pop():
                pages = db.exec_driver_sql("PRAGMA page_count").scalar_one()
                db.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
                with contextlib.suppress(DBAPIError):
                    for _ in range(50):
                        db.execute(text("INSERT INTO more VALUES (zeroblob(20000))"))
            if goes_on or not full:
                super().apply(tx, db)

    async with closed_after(Notes(sqlite_url)) as view:
        with pytest.raises(ViewUnavailable, match="disk is full"):
            await view.apply_run(transactions(2))
        full.clear()
        assert await view.apply_run(transactions(2)) == 1
    check_fold(sqlite_url, {0: 2})


async def test_apply_may_drop_the_driver_s_connection(url: str) -> None:
    """As SQLAlchemy says how to get rid of a bad one: the next try has another."""
    open_accounts(url)
    dropped: list[int] = []

    class Drops(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            if not dropped:
                dropped.append(tx.id)
                db.connection.invalidate()

    async with closed_after(Drops(url)) as view:
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the driver says of a connection that is gone
            await view.apply_run(transactions(2))
        assert await view.high_water_mark(0) == -1
        assert await view.apply_run(transactions(2)) == 1
    check_fold(url, {0: 2})


STATEMENTS = ["COMMIT", "rollback", " /* well */ commit work", " ; COMMIT"]
ON_MARIADB = [
    "/*!COMMIT*/", "/*M!100000 COMMIT */", "# well\nCOMMIT", "SET STATEMENT max_statement_time = 1 FOR COMMIT",
    "CREATE TABLE more (id INT)", "TRUNCATE journal", "SET autocommit = 1", "START TRANSACTION",
    "drop table if exists x",
]  # fmt: skip


def through_sqlalchemy(db: Connection, statement: str) -> None:
    db.exec_driver_sql(statement)


def with_a_cursor(db: Connection, statement: str) -> None:
    with contextlib.closing(db.connection.cursor()) as cursor:
        cursor.execute(statement)


def with_many(db: Connection, statement: str) -> None:
    with contextlib.closing(db.connection.cursor()) as cursor:
        cursor.executemany(statement, [()])


def by_the_driver(db: Connection, statement: str) -> None:
    driver: Any = db.connection.dbapi_connection
    getattr(driver, "rollback" if "rollback" in statement else "commit")()


@pytest.mark.exhaustive  # of statements
@pytest.mark.parametrize("how", [through_sqlalchemy, with_a_cursor, with_many, by_the_driver])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_nobody_else_ends_the_transaction_unnoticed(
    server_url: str, how: Callable[[Connection, str], None], statement: str
) -> None:
    await check_not_ended_by(server_url, how, statement)


@pytest.mark.exhaustive  # of statements
@pytest.mark.slow
@pytest.mark.parametrize("how", [through_sqlalchemy, with_a_cursor])
@pytest.mark.parametrize("statement", ON_MARIADB)
async def test_nobody_ends_it_unnoticed_by_what_ends_one_there_only(
    mariadb_url: str, how: Callable[[Connection, str], None], statement: str
) -> None:
    await check_not_ended_by(mariadb_url, how, statement)


async def check_not_ended_by(url: str, how: Callable[[Connection, str], None], statement: str) -> None:
    class Sly(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            how(db, statement)
            super().apply(tx._replace(id=tx.id + 1_000), db)

    open_accounts(url)
    async with closed_after(Sly(url)) as view:
        with pytest.raises(BadOption, match="may not end its SQL transaction"):
            await view.apply_run(transactions(1))
    with engine_at(url) as engine, engine.connect() as db:
        ids = db.execute(select(journal.c.id)).scalars().all()
    assert ids == []


def commit_unseen(db: Connection) -> None:
    """Commit in a way that nothing on this side of the connection understands, as a stored procedure may."""
    with_a_cursor(db, "SELECT 1; COMMIT" if db.dialect.name == "postgresql" else "EXECUTE IMMEDIATE 'COMMIT'")


def call_settle(db: Connection) -> None:
    """Call a stored procedure of the application, which commits."""
    db.exec_driver_sql("CALL settle()")


@pytest.mark.slow
async def test_a_stored_procedure_that_would_commit_on_postgresql_is_refused_by_it(postgresql_url: str) -> None:
    open_accounts(postgresql_url)
    make_procedure(postgresql_url, "settle", "COMMIT")

    class Sly(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            call_settle(db)

    async with closed_after(Sly(postgresql_url)) as view:
        with pytest.raises(DBAPIError, match="invalid transaction termination"):
            await view.apply_run(transactions(1))
        assert await view.high_water_mark(0) == -1


TESTS = {"PYTHONPATH": str(Path(__file__).parent.parent)}
DYING = """
import asyncio, os, sys
from rigs.bankview import Bank, transactions
from views.test_whole_transactions import call_settle, commit_unseen

class Sly(Bank):
    def apply(self, tx, db):
        super().apply(tx, db)
        if tx.id == 1:
            (call_settle if sys.argv[2] == "procedure" else commit_unseen)(db)
            os._exit(9)

asyncio.run(Sly(sys.argv[1]).apply_run(transactions(4)))
"""


@pytest.mark.slow
async def test_the_next_process_sees_what_one_that_died_had_committed_unseen(server_url: str) -> None:
    """Nobody was left to notice: what was committed itself must tell, or it is applied a second time."""
    await dies_after_its_commit(server_url, "statement")


@pytest.mark.slow
async def test_the_next_process_sees_what_one_that_died_had_committed_by_a_procedure(mariadb_url: str) -> None:
    make_procedure(mariadb_url, "settle", "COMMIT")
    await dies_after_its_commit(mariadb_url, "procedure")


async def dies_after_its_commit(url: str, how: str) -> None:
    open_accounts(url)
    async with closed_after(Bank(url)) as view:
        assert await view.high_water_mark(0) == -1
        died = await asyncio.to_thread(run_python, "-c", DYING, url, how, environment=TESTS)
        assert died.returncode == 9, died.stderr
        with pytest.raises(ViewUnfit, match="committed a part of what leads to id 3 of partition 0"):
            await view.high_water_mark(0)
        with pytest.raises(ViewUnfit, match="committed a part of what leads to id 3 of partition 0"):
            await view.apply_run(transactions(4))
        execute(url, "UPDATE polonaise_marks SET high_water_mark = 1")
        assert await view.apply_run(transactions(4)[2:]) == 3
    check_fold(url, {0: 4})


@pytest.mark.slow
async def test_a_mark_that_says_that_a_run_is_under_way_is_seen_by_nobody_else(server_url: str) -> None:
    open_accounts(server_url)
    seen: list[int] = []

    class Looks(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            with other.reading() as reading:
                seen.append(other._beside.marks.all(reading)[0])

    view, other = Looks(server_url), Bank(server_url)
    try:
        await view.apply_run(transactions(2))
        await view.apply_run(transactions(4)[2:])
        assert await other.high_water_mark(0) == 3
    finally:
        await view.close()
        await other.close()
    assert seen == [-1, -1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("raises", [False, True])
async def test_what_apply_commits_unseen_stops_the_partition_for_every_process(server_url: str, raises: bool) -> None:
    """The mark was committed with a part of the run: what is missing would never be applied."""
    open_accounts(server_url)

    class Sly(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            if tx.id == 1:
                commit_unseen(db)
                if raises:
                    raise KeyError("an error of another kind")

    view, other = Sly(server_url), Bank(server_url)
    try:
        with pytest.raises(KeyError if raises else BadOption):
            await view.apply_run(transactions(4))
        for each in (view, other):
            with pytest.raises(ViewUnfit, match="committed a part of what leads to id 3 of partition 0"):
                await each.high_water_mark(0)
        execute(server_url, "UPDATE polonaise_marks SET high_water_mark = 1")
        assert await other.apply_run(transactions(4)[2:]) == 3
    finally:
        await view.close()
        await other.close()
    check_fold(server_url, {0: 4})


async def test_what_a_target_s_code_commits_unseen_stops_it(server_url: str) -> None:
    target = Lines(server_url)
    session = await stream(target)
    try:
        for _ in range(2):
            with pytest.raises(ViewUnfit, match="committed a part of what leads to id 1 of partition 0"):
                await session.take(batch_of(-1, ("a", "b"), 0))
    finally:
        await target.close()


class Lines(SqlDeliveryTarget):
    metadata = MetaData()
    lines = Table("lines", metadata, Column("id", Integer, primary_key=True, autoincrement=False))

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        commit_unseen(db)
        with contextlib.suppress(DBAPIError):
            db.execute(self.lines.insert(), {"id": entry.id})
