"""What an error of each database means; how often work is repeated, and a transaction that takes no changes."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, cast

import psycopg
import pymysql
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from polonaise.errors import BadOption, Closed, ViewUnavailable, ViewUnfit
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from polonaise.views import retrying
from polonaise.views.databaseerrors import Trouble, is_taken, trouble_in
from polonaise.views.retrying import _TAKEN, _TRIES, DrivenAway, Portion, RetryingWriter
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, closed_after, open_accounts, transactions
from rigs.databases import execute
from rigs.deliverycalls import batch_of, stream


class Held:
    """A database whose one connection is always usable."""

    usable = True

    def is_elsewhere(self, _: Any) -> bool:
        return False

    def writer(self) -> Held:
        return self


def in_the_way(_: object) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    raise error


def test_nothing_is_waited_for_after_the_last_attempt() -> None:
    pauses: list[float] = []
    with pytest.raises(ViewUnavailable, match="again and again"):
        RetryingWriter(cast(Any, Held()), pauses.append, lost=pytest.fail).do(in_the_way)
    assert len(pauses) == _TRIES - 1


@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_what_other_transactions_keep_from_being_done_for_long_is_told_before_all_is_tried(seconds: float) -> None:
    tries: list[object] = []

    def work(connection: object) -> None:
        tries.append(connection)
        in_the_way(connection)

    writer = RetryingWriter(cast(Any, Held()), lambda _: None, pytest.fail, tried_s_max=seconds)
    with pytest.raises(ViewUnavailable, match=r"again and again.*database is locked"):
        writer.do(work)
    assert len(tries) == (1 if seconds == 0.0 else _TRIES)


class Restarted(Held):
    """A database that ends the first connection as soon as it is used."""

    def __init__(self) -> None:
        self.given: list[Ended] = []

    def is_elsewhere(self, _: Any) -> bool:
        return False

    def writer(self) -> Any:
        self.given.append(Ended())
        return self.given[-1]


class Ended:
    """A connection that the database can end."""

    usable = True

    def close(self) -> None:
        self.usable = False


def test_that_a_connection_was_lost_is_told_before_another_one_is_used() -> None:
    database, told = Restarted(), list[str]()
    writer = RetryingWriter(cast(Any, database), time.sleep, lambda: told.append("lost"))

    def work(connection: Any) -> str:
        if connection is database.given[0]:
            driven_away(connection)
        return "done after " + " ".join(told)

    writer.do(id)
    assert writer.do(work) == "done after lost"


def driven_away(connection: Any, *, lost: bool = True) -> None:
    connection.usable = not lost
    error = sqlite3.OperationalError("interrupted")
    error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
    raise DBAPIError("SELECT 1", None, error, connection_invalidated=lost)


def test_a_connection_counts_as_closed_while_it_was_idle_only_if_it_was_there_before() -> None:
    database = Restarted()
    writer = RetryingWriter(cast(Any, database), time.sleep, lambda: None)
    for expected in (1, 2):
        with pytest.raises(DrivenAway, match="interrupted"):
            writer.do(driven_away)
        assert len(database.given) == expected, "opened for this work"
    writer.do(id)
    with pytest.raises(DrivenAway, match="interrupted"):
        writer.do(driven_away)
    assert len(database.given) == 4, "and once more for the one that was there before"


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "at-a-limit"])
def test_what_drives_the_database_away_is_not_repeated_after_the_end(lost: bool) -> None:
    tried: list[int] = []

    def work(connection: Any, some: Any) -> None:
        tried.append(len(some))
        driven_away(connection, lost=lost)

    def ended(_: float) -> None:
        raise Closed("ended")

    writer = RetryingWriter(cast(Any, Restarted()), ended, lambda: None)
    writer.do(id)
    with pytest.raises(Closed):
        writer.do_some(range(8), Portion(), work)
    assert tried == [8]


def test_why_less_of_a_run_is_tried_is_told_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def work(connection: Any, some: Any) -> int:
        tried.append(len(some))
        if len(some) > 2:
            driven_away(connection)
        return len(some)

    writer, portion = RetryingWriter(cast(Any, Restarted()), time.sleep, lambda: None), Portion()
    monkeypatch.setattr(retrying, "_UNTOLD_S_MAX", -1.0)
    for _ in range(2):
        with pytest.raises(DrivenAway, match="interrupted"):
            writer.do_some(range(8), portion, work)
    assert writer.do_some(range(8), portion, work) == 2
    assert tried == [8, 4, 2]


class Taken:
    """Work that meets rows of the same key as its own, each in one attempt, and wraps what the database says."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tried: list[int] = []

    def __call__(self, _: Any, some: Any) -> int:
        self.tried.append(len(some))
        if len(self.tried) > self.rows:
            return len(some)
        error = psycopg.errors.UniqueViolation("a row of this key is there")
        error.sqlstate = "23505"
        raise LookupError("no account") from DBAPIError("INSERT", None, error)


def done_alone(work: Any, of: int = 1) -> int:
    return RetryingWriter(cast(Any, Held()), lambda _: None, lambda: None).do_some(range(of), Portion(), work)


def test_one_alone_is_tried_again_when_another_transaction_has_written_a_row_of_its_key() -> None:
    assert done_alone(work := Taken(3)) == 1
    assert work.tried == [1, 1, 1, 1]


def test_one_alone_that_meets_a_row_of_its_key_each_time_is_told_as_at_fault() -> None:
    work = Taken(1000)
    with pytest.raises(LookupError, match="no account"):
        done_alone(work)
    assert len(work.tried) == _TAKEN


def test_a_run_that_meets_a_row_of_its_key_is_not_repeated_whole() -> None:
    work = Taken(1)
    with pytest.raises(LookupError):
        done_alone(work, 8)
    assert work.tried == [8]


def test_what_the_library_says_of_a_row_that_is_there_is_told_at_once() -> None:
    tried: list[object] = []

    def work(connection: object, some: object) -> None:
        tried.append(some)
        try:
            Taken(1)(connection, range(1))
        except LookupError as error:
            raise ViewUnfit("another program writes this table") from error

    with pytest.raises(ViewUnfit):
        done_alone(work)
    assert len(tried) == 1


AWAY, PASSING, DRIVEN = Trouble.AWAY, Trouble.PASSING, Trouble.DRIVEN

POSTGRESQL = {
    "40001": PASSING, "40P01": PASSING, "55P03": PASSING, "26000": PASSING, "42P05": PASSING,
    "53100": AWAY, "53300": AWAY, "57P03": AWAY, "58030": AWAY, "25006": AWAY,
    "53200": DRIVEN, "57014": DRIVEN, "25P03": DRIVEN, "25P04": DRIVEN, "57P01": DRIVEN, "57P02": DRIVEN,
    "08006": DRIVEN, "08P01": DRIVEN,
    "23505": None, "22021": None, "22001": None, "54000": None, "42P01": None, "25P02": None,
}  # fmt: skip
MARIADB = {
    1213: PASSING, 1205: PASSING, 1020: PASSING, 1412: PASSING, 3101: PASSING, 1684: PASSING,
    1047: AWAY, 1040: AWAY, 1021: AWAY, 2003: AWAY,
    1153: DRIVEN, 1030: DRIVEN, 1969: DRIVEN, 1197: DRIVEN, 2006: DRIVEN, 2013: DRIVEN, 1927: DRIVEN,
    1062: None, 1406: None, 1366: None, 1264: None, 1305: None, 1290: None,
    1792: Trouble.READ_ONLY,
}  # fmt: skip


def wrapped(original: Exception) -> DBAPIError:
    return DBAPIError("INSERT", {}, original)


@pytest.mark.parametrize(("state", "trouble"), POSTGRESQL.items())
def test_postgresql_by_its_state(state: str, trouble: Trouble | None) -> None:
    error = psycopg.OperationalError("said in any language")
    error.sqlstate = state
    assert trouble_in(wrapped(error)) is trouble


def test_a_row_of_the_same_key_is_known_by_its_code() -> None:
    for state in POSTGRESQL:
        error = psycopg.IntegrityError("said in any language")
        error.sqlstate = state
        assert is_taken(wrapped(error)) is is_taken(error) is (state == "23505")
    for number in MARIADB:
        assert is_taken(wrapped(pymysql.IntegrityError(number, "said in any language"))) is (number == 1062)
    assert not is_taken(ValueError(1062, "another's number"))


@pytest.mark.parametrize(("number", "trouble"), MARIADB.items())
@pytest.mark.parametrize("state", [None, "HY000"])
def test_mariadb_by_its_number_whether_or_not_the_driver_brings_a_state(
    number: int, trouble: Trouble | None, state: str | None
) -> None:
    error: Any = pymysql.OperationalError(number, "said in any language")
    error.sqlstate = state
    assert trouble_in(wrapped(error)) is trouble


@pytest.mark.parametrize(
    ("message", "trouble"),
    [
        ("The MariaDB server is running with the --read-only option so it cannot execute this statement", AWAY),
        ("Der MariaDB-Server läuft mit der Option --innodb_read_only und kann diese Anweisung nicht ausführen", AWAY),
        ("The MariaDB server is running with the --secure-file-priv option so it cannot execute it", None),
    ],
)
def test_what_an_option_of_mariadb_forbids_passes_only_if_the_server_is_read_only(
    message: str, trouble: Trouble | None
) -> None:
    assert trouble_in(wrapped(pymysql.OperationalError(1290, message))) is trouble


@pytest.mark.parametrize(
    ("code", "trouble"),
    [(sqlite3.SQLITE_READONLY, Trouble.READ_ONLY), (sqlite3.SQLITE_READONLY_DBMOVED, AWAY)],
)
def test_a_file_of_sqlites_that_takes_no_changes_is_away(code: int, trouble: Trouble) -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = code
    assert trouble_in(wrapped(error)) is trouble


def test_a_plan_that_an_altered_table_made_stale_passes(postgresql_url: str) -> None:
    with engine_at(postgresql_url) as engine, engine.connect() as db:
        db.execute(text("CREATE TABLE t (a int)"))
        db.commit()
        raw: Any = db.connection.dbapi_connection
        raw.execute("SELECT * FROM t", prepare=True)
        raw.commit()
        execute(postgresql_url, "ALTER TABLE t ADD b int")
        with pytest.raises(psycopg.errors.FeatureNotSupported) as told, contextlib.closing(raw):
            raw.execute("SELECT * FROM t", prepare=True)
    assert trouble_in(wrapped(told.value)) is PASSING


FORBIDS = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "mariadb": "SHOW GRANTS",  # which the option --skip-grant-tables prevents
}
TOLD = {"sqlite": "read-only.*readonly", "postgresql": "read-only.*read-only", "mariadb": "skip-grant-tables"}


def kind_of(url: str) -> str:
    return url.partition("+")[0].partition(":")[0]


class Careless(Bank):
    """A bank that makes the transaction of a payment read-only, before or after it applies it."""

    careless = True
    first = True

    def apply(self, tx: Transaction, db: Connection) -> None:
        if not self.careless or self.first:
            super().apply(tx, db)
        if self.careless:
            db.execute(text(FORBIDS[db.dialect.name]))
            super().apply(tx, db)


class CarelessTarget(SqlDeliveryTarget):
    def apply_entries(self, partition: int, entries: Sequence[RoutedEntry], db: Connection) -> None:
        db.execute(text(FORBIDS[db.dialect.name]))
        db.execute(text("CREATE TABLE kept (id INTEGER)"))


@pytest.mark.parametrize("first", [True, False])
async def test_what_makes_its_own_transaction_read_only_is_told_and_the_database_is_not_blamed(
    url: str, first: bool
) -> None:
    view = Careless(url)
    view.first = first
    open_accounts(url)
    try:
        assert await view.high_water_mark(0) == -1
        with pytest.raises((BadOption, DBAPIError), match=TOLD[kind_of(url)]):
            await view.apply_run(transactions(1))
        view.careless = False
        assert await view.apply_run(transactions(1)) == 0, "on a connection that takes changes"
    finally:
        await view.close()


async def test_a_target_refuses_an_entry_that_makes_its_transaction_read_only(url: str) -> None:
    async with closed_after(CarelessTarget(url)) as target:
        session = await stream(target)
        applied = await session.take(batch_of(-1, ("x",), 0))
        assert applied.last == -1
        assert "read-only" in applied.refusal or "skip-grant-tables" in applied.refusal


async def test_a_database_that_takes_no_changes_at_all_is_away(postgresql_url: str) -> None:
    view = Bank(postgresql_url)
    open_accounts(postgresql_url)
    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    try:
        await view.high_water_mark(0)
        await view.close()
        execute(postgresql_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(ViewUnavailable, match="read-only"):
            await view.apply_run(transactions(1))
    finally:
        await view.close()
