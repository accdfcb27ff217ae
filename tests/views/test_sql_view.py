"""A SQL view on real databases: each transaction once, together with its mark, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, event, func, select
from sqlalchemy.exc import DatabaseError, OperationalError

import polonaise
from polonaise import testing
from polonaise.errors import BadOption, ViewUnavailable, ViewUnfit
from polonaise.terms import Transaction
from polonaise.views.marks import Marks
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, body, check_fold, counted, journal, open_accounts, transactions
from rigs.databases import execute
from rigs.programs import output_of, run_python
from rigs.waiting import wait_until

OWN = ["polonaise_marks", "polonaise_marks_given"]
"""A view's own tables."""


async def test_a_run_is_applied_with_its_mark(url: str, view: Bank) -> None:
    assert await view.apply_run(transactions(10)) == 9
    assert await view.apply_run(transactions(1, first=10)) == 10
    assert await view.high_water_mark(0) == 10
    check_fold(url, {0: 11})
    assert view.runs == [(0, 0, 9), (0, 10, 10)]


async def test_a_run_that_fails_leaves_nothing_behind(url: str, view: Bank) -> None:
    view.poison = {(0, 5)}
    with pytest.raises(ValueError, match="no stomach for 5"):
        await view.apply_run(transactions(10))
    check_fold(url, {0: 0})
    assert await view.apply_run(transactions(5)) == 4
    view.poison.clear()
    assert await view.apply_run(transactions(5, first=5)) == 9
    check_fold(url, {0: 10})


async def test_what_somebody_else_has_applied_is_skipped(url: str, views: Callable[..., Bank]) -> None:
    one, other = views(url), views(url)
    await one.high_water_mark(0)
    await other.high_water_mark(0)
    assert await one.apply_run(transactions(6)) == 5
    assert await other.apply_run(transactions(4)) == 5
    assert await other.apply_run(transactions(10)) == 5
    assert not other.runs
    assert await other.apply_run(transactions(4, first=6)) == 9
    check_fold(url, {0: 10})


@pytest.mark.slow
async def test_two_that_apply_the_same_at_once_apply_it_once(url: str, views: Callable[..., Bank]) -> None:
    both = [views(url), views(url)]
    await asyncio.gather(*(view.high_water_mark(0) for view in both))

    async def apply_all(view: Bank) -> None:
        mark = -1
        while mark < 59:
            mark = await view.apply_run(transactions(min(3, 59 - mark), first=mark + 1))

    await asyncio.gather(*map(apply_all, both))
    check_fold(url, {0: 60})


async def test_many_views_begin_with_an_empty_database_at_once(url: str, views: Callable[..., Bank]) -> None:
    several = [views(url) for _ in range(6)]
    assert await asyncio.gather(*(view.high_water_mark(0) for view in several)) == [-1] * 6
    check_fold(url, {0: 0})


async def test_an_older_database_says_where_it_stands(url: str, view: Bank) -> None:
    await view.apply_run(transactions(4))
    with engine_at(url) as engine, engine.begin() as db:
        db.execute(journal.delete().where(journal.c.id > 1))
        db.execute(accounts.delete())
        db.execute(view.marks.update().values(high_water_mark=1))
    assert await view.apply_run(transactions(2, first=4)) == 1


# ------------------------------------------------------------------ what `apply` may do


class Careless(Bank):
    """Ends the SQL transaction that is not its own."""

    how = "commit"

    def apply(self, tx: Transaction, db: Connection) -> None:
        super().apply(tx, db)
        getattr(db, self.how)()
        super().apply(tx._replace(id=tx.id + 1_000), db)


@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
async def test_apply_may_not_end_its_transaction(url: str, views: Callable[..., Any], how: str) -> None:
    view = views(url, Careless)
    view.how = how
    await view.high_water_mark(0)
    with pytest.raises(BadOption, match=r"may not end its SQL transaction"):
        await view.apply_run(transactions(2))
    check_fold(url, {0: 0})
    view.how = "get_transaction"
    assert await view.high_water_mark(0) == -1


ROLLS_BACK_ITSELF = "INSERT OR ROLLBACK INTO accounts VALUES (0, 0)"
"""There is an account 0: SQLite ends the whole transaction, and the statement fails."""


@pytest.mark.parametrize(
    "statements",
    [["COMMIT"], ["ROLLBACK"], ["ROLLBACK", "BEGIN"], ["COMMIT", "BEGIN IMMEDIATE"], ["END"], [ROLLS_BACK_ITSELF]],
    ids=" ".join,
)
@pytest.mark.parametrize("behind", [False, True], ids=["through SQLAlchemy", "behind its back"])
async def test_on_sqlite_no_way_to_end_the_transaction_goes_unnoticed(
    tmp_path: Path, statements: list[str], behind: bool
) -> None:
    class Sly(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            for statement in statements:
                with contextlib.suppress(DatabaseError, sqlite3.DatabaseError):
                    if behind:
                        db.connection.dbapi_connection.execute(statement)  # type: ignore[union-attr]
                    else:
                        db.exec_driver_sql(statement)
            super().apply(tx._replace(id=tx.id + 1_000), db)

    url = f"sqlite:///{tmp_path / 'view.db'}"
    open_accounts(url, 1)
    view = Sly(url)
    told: list[str] = []
    try:
        for _ in range(3):
            try:
                assert await view.apply_run(transactions(2)) == 1, "refused statements change nothing"
            except BadOption as error:
                told.append(error.text)
    finally:
        await view.close()
    assert all("may not end its SQL transaction" in text for text in told)
    with engine_at(url) as engine, engine.begin() as db:
        applied = db.execute(select(func.count()).select_from(journal)).scalar_one()
        mark = db.execute(select(view.marks.c.high_water_mark)).scalar_one()
    assert (mark, applied) in ((-1, 0), (1, 4)), "the tables are as the mark says, also after several tries"


async def test_a_database_of_another_log_is_refused(url: str, views: Callable[..., Bank]) -> None:
    view = views(url)
    view.belongs_to(b"a" * 16)
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    other = views(url)
    other.belongs_to(b"b" * 16)
    with pytest.raises(ViewUnfit, match=f"marks of another log, {'61' * 16}; this log is {'62' * 16}"):
        await other.high_water_mark(0)
    again = views(url)
    again.belongs_to(b"a" * 16)
    assert await again.high_water_mark(0) == 2


def make_marks_that_may_be_null(url: str) -> None:
    """Make the table of marks as somebody else might: what is missing in a row of it is NULL."""
    partition = "`partition`" if "mariadb" in url else "partition"
    columns = f"{partition} INTEGER PRIMARY KEY, high_water_mark BIGINT, cluster VARCHAR(32)"
    execute(url, f"CREATE TABLE polonaise_marks ({columns})")


@pytest.mark.parametrize("kept", ["62" * 16, "", "NULL"], ids=["another", "none", "null"])
async def test_marks_that_become_those_of_another_log_take_nothing_more(
    url: str, views: Callable[..., Bank], kept: str
) -> None:
    """As when the database of another log is put in place of the view's. Without a log's key nothing is compared."""
    if kept == "NULL":
        make_marks_that_may_be_null(url)
    view = views(url)
    view.belongs_to(b"a" * 16)
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    value = kept if kept == "NULL" else f"'{kept}'"
    execute(url, f"UPDATE polonaise_marks SET cluster = {value}")
    if kept == "62" * 16:
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=f"marks of another log, {kept}; this log is {'61' * 16}"):
                await view.apply_run(transactions(2, first=3))
        execute(url, f"UPDATE polonaise_marks SET cluster = '{'61' * 16}'")
    assert await view.apply_run(transactions(2, first=3)) == 4


async def test_a_mark_that_is_no_id_is_refused_by_its_table(sqlite_url: str, views: Callable[..., Bank]) -> None:
    """SQLite keeps a text in a column of numbers."""
    await views(sqlite_url).high_water_mark(0)
    execute(sqlite_url, "UPDATE polonaise_marks SET high_water_mark = 'zz'")
    with pytest.raises(ViewUnfit, match="table polonaise_marks says 'zz' of partition 0, which is no id: another"):
        await views(sqlite_url).high_water_mark(0)


async def test_a_mark_that_is_null_is_named_by_its_table(url: str, views: Callable[..., Bank]) -> None:
    make_marks_that_may_be_null(url)
    view = views(url)
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    execute(url, "UPDATE polonaise_marks SET high_water_mark = NULL")
    told = r"table polonaise_marks has a row of partition 0 without a high_water_mark \(NULL\), .*: set it to"
    for asked in view.stepped_back, lambda: view.high_water_mark(0), lambda: views(url).high_water_mark(0):
        with pytest.raises(ViewUnavailable, match=told):
            await asked()
    execute(url, "UPDATE polonaise_marks SET high_water_mark = 2")
    assert await view.high_water_mark(0) == 2


async def test_apply_may_use_savepoints(url: str, views: Callable[..., Any]) -> None:
    class Tentative(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            savepoint = db.begin_nested()
            super().apply(tx, db)
            savepoint.rollback()
            with db.begin_nested():
                super().apply(tx, db)

    view = views(url, Tentative)
    await view.high_water_mark(0)
    assert await view.apply_run(transactions(3)) == 2
    check_fold(url, {0: 3})


async def test_sql_runs_in_threads_that_end_with_the_view(url: str) -> None:
    threads: set[str] = set()

    class Watching(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            threads.add(threading.current_thread().name)

    view = Watching(url, workers_max=3)
    for partition in range(6):
        await view.high_water_mark(partition)
        await view.apply_run(transactions(1, partition=partition))
    assert len(threads) == (1 if url.startswith("sqlite") else 3)
    assert threading.current_thread().name not in threads
    await view.read(lambda db: None)
    await view.close()
    await wait_until(lambda: not any(each.name.startswith("polonaise-view") for each in threading.enumerate()))
    assert not threads & {thread.name for thread in threading.enumerate()}
    assert await view.high_water_mark(0) == 0, "and it can be used again"
    await view.close()


def test_a_coroutine_for_apply_is_refused(sqlite_url: str) -> None:
    class Wrong(SqlView):
        async def apply(self, tx: Transaction, db: Connection) -> None:  # type: ignore[override]
            pass

    with pytest.raises(BadOption, match="coroutine"):
        Wrong(sqlite_url)


async def test_a_view_without_apply_says_so(sqlite_url: str, views: Callable[..., Any]) -> None:
    view = views(sqlite_url, SqlView)
    assert await view.high_water_mark(0) == -1
    with pytest.raises(NotImplementedError, match="SqlView has to define how"):
        await view.apply_run(transactions(1))


# ------------------------------------------------------------------ reading


async def test_a_reading_sees_one_state_which_begins_after_it_was_asked_for(url: str, view: Bank) -> None:
    await view.apply_run(transactions(8))
    with view.reading() as db:
        await view.apply_run(transactions(1, first=8))
        first = db.execute(select(view.marks.c.high_water_mark)).scalar_one()
        await view.apply_run(transactions(1, first=9))
        again = db.execute(select(view.marks.c.high_water_mark)).scalar_one()
    assert (first, again) == (7, 7)
    assert await view.read(lambda db, table: db.execute(select(table.c.high_water_mark)).scalar_one(), view.marks) == 9


def rows_of(db: Connection) -> int:
    return db.execute(select(func.count()).select_from(journal)).scalar_one()


async def test_a_database_that_has_stepped_back_is_not_read_until_it_has_caught_up(url: str, view: Bank) -> None:
    await view.apply_run(transactions(10))
    assert await view.high_water_mark(1) == -1
    execute(
        url,
        "UPDATE polonaise_marks SET high_water_mark = 4 WHERE high_water_mark = 9",
        "DELETE FROM journal WHERE id > 4",
    )
    for _ in range(2):
        with pytest.raises(ViewUnavailable, match=r"stepped back: .* up to 9, and .* says 4"):
            await view.read(rows_of)
        # A context that has begun at 9 may still be running: it may not read this, though the client knows by now.
        assert await view.high_water_mark(0) == 4
    assert list(await view.stepped_back()) == [0]
    assert await view.apply_run(transactions(5, first=5)) == 9
    assert await view.read(rows_of) == 10
    execute(url, "DELETE FROM polonaise_marks")
    with pytest.raises(ViewUnavailable, match="up to 9, and table polonaise_marks says -1"):
        await view.read(rows_of)
    execute(url, "DROP TABLE polonaise_marks")
    with pytest.raises(ViewUnavailable, match="table polonaise_marks, which says what was applied, can't be read"):
        await view.read(rows_of)


async def test_a_view_that_is_used_again_reads_what_is_there(url: str, view: Bank) -> None:
    await view.apply_run(transactions(10))
    await view.close()
    execute(url, "UPDATE polonaise_marks SET high_water_mark = 4", "DELETE FROM journal WHERE id > 4")
    assert await view.read(rows_of) == 5
    assert await view.high_water_mark(0) == 4
    assert await view.read(rows_of) == 5


async def test_what_is_written_in_a_reading_is_lost(url: str, view: Bank) -> None:
    await view.apply_run(transactions(3))
    with view.reading() as db:
        db.execute(journal.delete())
    check_fold(url, {0: 3})


# ------------------------------------------------------------------ engines


async def test_the_applications_engine_stays_as_it_was(url: str, views: Callable[..., Any]) -> None:
    with engine_at(url) as engine:
        view = Bank(engine)
        await view.high_water_mark(0)
        await view.apply_run(transactions(2))
        with engine.connect() as db:
            if engine.dialect.name == "sqlite":
                assert db.connection.driver_connection.isolation_level == ""
        await view.close()
        with engine.begin() as db:
            assert db.execute(select(journal.c.id)).scalars().all() == [0, 1]


async def test_an_engine_that_commits_by_itself_can_be_used(url: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    view = Bank(engine)
    await view.high_water_mark(0)
    view.poison = {(0, 1)}
    with pytest.raises(ValueError, match="no stomach"):
        await view.apply_run(transactions(2))
    await view.close()
    engine.dispose()
    check_fold(url, {0: 0})


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED"])
@pytest.mark.parametrize("later", [False, True])
async def test_a_reading_sees_one_state_whatever_the_engine_is_set_to(url: str, level: str, later: bool) -> None:
    if url.startswith("sqlite") and level == "READ COMMITTED":
        level = "READ UNCOMMITTED"  # SQLite lacks the other
    if later:
        engine = create_engine(url).execution_options(isolation_level=level)
    else:
        engine = create_engine(url, isolation_level=level)
    view = Bank(engine)
    await view.high_water_mark(0)
    await view.apply_run(transactions(8))
    for first in (8, 9):  # also with a connection that was used and given back
        with view.reading() as db:
            seen = db.execute(select(view.marks.c.high_water_mark)).scalar_one()
            await view.apply_run(transactions(1, first=first))
            assert db.execute(select(view.marks.c.high_water_mark)).scalar_one() == seen
    await view.close()
    engine.dispose()


async def test_an_sqlite_engine_that_begins_by_itself_can_be_used(sqlite_url: str) -> None:
    """SQLAlchemy's own advice for transactions that include SELECT and DDL."""
    with engine_at(sqlite_url) as engine:

        @event.listens_for(engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begun(db: Connection) -> None:
            db.exec_driver_sql("BEGIN")

        view = Bank(engine)
        await view.high_water_mark(0)
        assert await view.apply_run(transactions(2)) == 1
        with view.reading() as db:
            assert db.execute(select(journal.c.id)).scalars().all() == [0, 1]
        await view.close()


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sqlite://", "kept in memory"),
        ("sqlite:///:memory:", "kept in memory"),
        ("nonsense", "invalid URL nonsense"),
        ("nosuch://host/db", "no SQL dialect"),
        ("postgresql+psycopg2://host/db", r"driver psycopg2 can't be used .* postgresql\+psycopg://"),
        ("postgresql+pg8000://host/db", r"driver pg8000 can't be used .* postgresql\+psycopg://"),
        ("postgresql+asyncpg://host/db", r"driver asyncpg can't be used .* postgresql\+psycopg://"),
        ("mysql://host/db", r"driver mysqldb can't be used .* mysql\+pymysql://"),
        ("mariadb+mysqldb://host/db", r"driver mysqldb can't be used .* mariadb\+pymysql://"),
        ("mariadb+mariadbconnector://host/db", r"can't be used .* mariadb\+pymysql://"),
        ("mysql+mysqlconnector://host/db", r"can't be used .* mysql\+pymysql://"),
        ("mysql+aiomysql://host/db", r"can't be used .* mysql\+pymysql://"),
        ("sqlite+aiosqlite:///file", r"driver aiosqlite can't be used .* sqlite:///"),
        ("sqlite+pysqlcipher:///file", r"driver pysqlcipher can't be used .* sqlite:///"),
        ("mssql+pyodbc://host/db", "need PostgreSQL, MariaDB or SQLite; this engine is for mssql"),
        ("oracle://host/db", "this engine is for oracle"),
    ],
)
def test_engines_that_cannot_serve_are_refused(engine: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        Bank(engine)


async def test_a_database_that_is_not_there_is_unavailable(tmp_path: Any, views: Callable[..., Bank]) -> None:
    for url in (f"sqlite:///{tmp_path}/nowhere/x.db", f"postgresql+psycopg://postgres@/x?host={tmp_path}"):
        view = views(url)
        with pytest.raises(ViewUnavailable, match="can't connect") as told:
            await view.high_water_mark(0)
        assert told.value.text.startswith("can't connect"), "once, and not within another error's text"
        with pytest.raises(ViewUnavailable, match="can't connect"), view.reading():
            pass


# ------------------------------------------------------------------ tables of another kind


async def test_tables_are_not_made_unless_asked_for(url: str, views: Callable[..., Bank]) -> None:
    view = views(url, create=False)
    with pytest.raises(ViewUnfit, match="table polonaise_marks is missing"):
        await view.high_water_mark(0)
    with pytest.raises(ViewUnfit, match="missing"):
        view.prepare()
    with engine_at(url) as engine:
        view.marks.metadata.create_all(engine)
        with pytest.raises(ViewUnfit, match="table accounts is missing"):
            await view.high_water_mark(0)
        Bank.metadata.create_all(engine)
    assert await view.high_water_mark(0) == -1


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE accounts (account INTEGER PRIMARY KEY)", "table accounts .* column balance is missing"),
        (
            "CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT, owner INTEGER NOT NULL)",
            "table accounts .* column owner is not declared",
        ),
        (
            "CREATE TABLE accounts (account VARCHAR(9) PRIMARY KEY, balance BIGINT)",
            "table accounts .* column account is VARCHAR.* and has to be INTEGER",
        ),
        (
            "CREATE TABLE polonaise_marks (high_water_mark BIGINT NOT NULL)",
            "table polonaise_marks .* column partition is missing",
        ),
        (
            "CREATE TABLE polonaise_marks (`partition` INTEGER, high_water_mark BIGINT, cluster VARCHAR(32))",
            r"table polonaise_marks .* exactly \(partition\), .*; it has no such key: alter it",
        ),
        (
            "CREATE TABLE polonaise_marks (`partition` INTEGER PRIMARY KEY, high_water_mark VARCHAR(9), cluster TEXT)",
            "table polonaise_marks .* column high_water_mark is VARCHAR",
        ),
    ],
)
async def test_a_table_of_another_shape_is_named_with_its_columns(
    url: str, views: Callable[..., Bank], statement: str, words: str
) -> None:
    execute(url, statement.replace("`", '"') if "postgresql" in url else statement)
    with pytest.raises(ViewUnfit, match=words):
        await views(url).high_water_mark(0)


async def test_more_columns_than_the_view_knows_are_no_harm(url: str, views: Callable[..., Bank]) -> None:
    more = "note INTEGER, kind INTEGER NOT NULL DEFAULT 1"
    execute(url, f"CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT, {more})")
    view = views(url)
    await view.high_water_mark(0)
    assert await view.apply_run(transactions(2)) == 1


async def test_unlogged_tables_are_refused(postgresql_url: str, views: Callable[..., Bank]) -> None:
    execute(postgresql_url, "CREATE UNLOGGED TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT)")
    with pytest.raises(ViewUnfit, match="table accounts is unlogged"):
        await views(postgresql_url).high_water_mark(0)


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", ["MyISAM", "Aria", "MEMORY"])
async def test_tables_without_transactions_are_refused(
    mariadb_url: str, views: Callable[..., Bank], engine_name: str
) -> None:
    statement = f"CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT) ENGINE={engine_name}"
    execute(mariadb_url, statement)
    with pytest.raises(ViewUnfit, match=f"table accounts is of the engine {engine_name}"):
        await views(mariadb_url).high_water_mark(0)


async def test_views_share_a_database_with_marks_of_their_own(url: str, views: Callable[..., Any]) -> None:
    class Other(SqlView):
        metadata = MetaData()
        seen = Table("seen", metadata, Column("id", Integer, primary_key=True, autoincrement=False))

        def apply(self, tx: Transaction, db: Connection) -> None:
            db.execute(self.seen.insert(), {"id": tx.id})

    bank, other = views(url), views(url, Other, marks_table="other_marks")
    for view in (bank, other):
        await view.high_water_mark(0)
    assert await bank.apply_run(transactions(4)) == 3
    assert await other.apply_run(transactions(2)) == 1
    check_fold(url, {0: 4})
    assert counted(url, Other.seen) == 2


@pytest.mark.slow
def test_the_package_does_not_import_sqlalchemy_until_it_is_used() -> None:
    program = "import sys, polonaise, polonaise.client.log; assert 'sqlalchemy' not in sys.modules; polonaise.SqlView"
    output_of(run_python("-c", program))
    assert polonaise.SqlView is SqlView


async def test_the_mark_passes_over_the_librarys_own_which_apply_is_not_given(
    url: str, views: Callable[..., Bank]
) -> None:
    view = views(url)
    async with testing.log(view=view) as log:
        for number in range(2):
            producer = await log.producer(f"billing {number}")
            await producer.append(0, body(number))
        await log.producer("the last")
        await log.wait_applied(4, timeout=10)
        assert (await view.high_water_mark(0), view.failures) == (4, [])
    with engine_at(url) as engine, engine.connect() as db:
        assert db.execute(select(journal.c.id).order_by(journal.c.id)).scalars().all() == [1, 3]


# ------------------------------------------------------------------ a database that comes back


@contextlib.contextmanager
def away_once() -> Iterator[None]:
    """Have the next commit's mark fail as it does when the database is away."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    with pytest.MonkeyPatch.context() as patched:

        def move(*_: Any) -> bool:
            raise OperationalError("UPDATE polonaise_marks", None, error)

        patched.setattr(Marks, "move", move)
        yield


async def test_tables_are_looked_at_again_after_the_database_was_away(
    sqlite_url: str, views: Callable[..., Bank]
) -> None:
    view = views(sqlite_url)
    assert await view.high_water_mark(0) == -1
    assert await view.apply_run(transactions(2)) == 1
    with away_once(), pytest.raises(ViewUnavailable):
        await view.apply_run(transactions(1, first=2))
    # What comes back is another one: with the same mark, and without what a transaction changes.
    execute(sqlite_url, "DROP TABLE journal", "CREATE TABLE journal (id INTEGER PRIMARY KEY, partition INTEGER)")
    with pytest.raises(ViewUnavailable, match="table journal is of another shape: column account is missing"):
        await view.apply_run(transactions(1, first=2))
    assert view.failures == []
    # A table that is missing now had rows, which nobody has lost yet if it is being restored.
    execute(sqlite_url, "DROP TABLE journal")
    with pytest.raises(ViewUnavailable, match=r"journal was there and is gone, .* put it back"):
        await view.apply_run(transactions(1, first=2))
    with engine_at(sqlite_url) as engine:
        journal.create(engine)
    assert await view.apply_run(transactions(1, first=2)) == 2


async def test_tables_are_not_looked_at_with_each_run(sqlite_url: str, views: Callable[..., Bank]) -> None:
    view = views(sqlite_url)
    with pytest.MonkeyPatch.context() as patched:
        looks: list[int] = []
        patched.setattr("polonaise.views.tablesbeside.check_tables", lambda *_: looks.append(1))
        assert await view.high_water_mark(0) == -1
        assert await view.apply_run(transactions(2)) == 1
        assert await view.apply_run(transactions(1, first=2)) == 2
    assert len(looks) == 1


# ------------------------------------------------------------------ what lost its data


async def test_marks_that_were_lost_while_rows_are_there_are_refused(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    """Beginning as new would apply a second time what is there."""
    await view.apply_run(transactions(4))
    execute(url, "DELETE FROM polonaise_marks")
    for again in (views(url), views(url)):
        with pytest.raises(ViewUnfit, match=r"partition 0 had a high-water mark .* while (accounts|journal) holds"):
            await again.high_water_mark(0)
    check_rows(url, 4)


async def test_marks_that_are_lost_under_way_are_refused(url: str, view: Bank) -> None:
    await view.apply_run(transactions(4))
    execute(url, "DELETE FROM polonaise_marks")
    with pytest.raises(ViewUnavailable, match="would apply it a second time"):
        await view.apply_run(transactions(2, first=4))
    check_rows(url, 4)


async def test_marks_that_were_put_aside_are_missed_by_all_and_made_by_none(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(4))
    execute(url, "ALTER TABLE polonaise_marks RENAME TO aside")
    for _ in range(2):
        with pytest.raises(ViewUnavailable, match=r"polonaise_marks was there and is gone"):
            await view.apply_run(transactions(2, first=4))
    with pytest.raises(ViewUnfit, match=r"polonaise_marks is gone, .*, while (accounts|journal) holds it"):
        await views(url).high_water_mark(0)
    execute(url, "ALTER TABLE aside RENAME TO polonaise_marks")
    assert await view.apply_run(transactions(2, first=4)) == 5
    check_fold(url, {0: 6})


async def test_tables_that_were_emptied_with_their_marks_are_filled_anew(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(4))
    with engine_at(url) as engine, engine.begin() as db:
        for table in (journal, accounts, view.marks):
            db.execute(table.delete())
    again = views(url)
    assert await again.high_water_mark(0) == -1
    assert await again.apply_run(transactions(4)) == 3
    check_fold(url, {0: 4})


async def test_marks_without_any_of_the_views_tables_are_refused(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(4))
    with engine_at(url) as engine:
        assert Bank.metadata is not None
        Bank.metadata.drop_all(engine)
    with pytest.raises(ViewUnfit, match=r"none of the tables .* is there, and polonaise_marks says"):
        await views(url).high_water_mark(0)


@pytest.mark.parametrize("how", ["DROP TABLE {0}", "ALTER TABLE {0} RENAME TO aside_{0}"], ids=["drop", "rename"])
@pytest.mark.parametrize("gone", [OWN, [*OWN, "accounts", "journal"]], ids=["its own", "all"])
async def test_tables_that_go_under_a_view_are_made_by_the_next_process_only(
    url: str, view: Bank, gone: list[str], how: str
) -> None:
    await view.apply_run(transactions(4))
    execute(url, *(how.format(name) for name in gone))
    for _ in range(2):
        with pytest.raises(ViewUnavailable, match=r"polonaise_marks.* there and (is|are) gone, and .* not made again"):
            await view.high_water_mark(0)
        with pytest.raises(ViewUnavailable, match=r"polonaise_marks.* there and (is|are) gone, and .* not made again"):
            await view.apply_run(transactions(2, first=4))
    if "RENAME" in how:
        execute(url, *(f"ALTER TABLE aside_{name} RENAME TO {name}" for name in gone))
        assert await view.apply_run(transactions(2, first=4)) == 5
        check_fold(url, {0: 6})
    elif "journal" in gone:
        await view.close()
        assert await view.high_water_mark(0) == -1
        assert await view.apply_run(transactions(4)) == 3
        check_fold(url, {0: 4})


async def test_own_tables_that_are_emptied_under_a_view_are_missed_while_rows_are_there(url: str, view: Bank) -> None:
    await view.apply_run(transactions(4))
    execute(url, *(f"DELETE FROM {name}" for name in OWN))
    with pytest.raises(ViewUnavailable, match=r"partition 0 had a high-water mark .* while (accounts|journal) holds"):
        await view.apply_run(transactions(2, first=4))
    check_rows(url, 4)


@pytest.mark.parametrize("rows", ["(0, 1, ''), (0, 1, '')", "(0, NULL, '')"], ids=["two", "of no number"])
async def test_marks_of_another_shape_that_are_made_under_a_view_are_refused(
    sqlite_url: str, views: Callable[..., Bank], rows: str
) -> None:
    view = views(sqlite_url)
    await view.high_water_mark(0)
    execute(
        sqlite_url,
        "DROP TABLE polonaise_marks",
        "CREATE TABLE polonaise_marks (partition INT, high_water_mark BIGINT, cluster TEXT)",
        f"INSERT INTO polonaise_marks VALUES {rows}",
    )
    for _ in range(2):
        with pytest.raises(ViewUnavailable, match="table polonaise_marks is of another shape"):
            await view.high_water_mark(0)
    with pytest.raises(ViewUnfit, match="table polonaise_marks is of another shape"):
        await views(sqlite_url).high_water_mark(0)


async def test_marks_of_an_earlier_version_are_remembered_when_they_are_read(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(4))
    await view.close()
    execute(url, "DROP TABLE polonaise_marks_given")
    assert await views(url).high_water_mark(0) == 3
    execute(url, "DELETE FROM polonaise_marks")
    with pytest.raises(ViewUnfit, match="would apply it a second time"):
        await views(url).high_water_mark(0)


async def test_where_the_table_of_given_marks_can_not_be_had_a_view_serves_without_it(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(4))
    await view.close()
    execute(url, "DROP TABLE polonaise_marks_given")
    other = views(url, create=False)
    assert await other.high_water_mark(0) == 3
    assert await other.high_water_mark(1) == -1


def check_rows(url: str, count: int) -> None:
    with engine_at(url) as engine, engine.connect() as db:
        assert db.execute(select(func.count()).select_from(journal)).scalar() == count
