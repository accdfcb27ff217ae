"""What an error of each database means: the database away, others in the way, too much at once, or the transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from polonaise.views.databaseerrors import Trouble, is_taken, trouble_in
from polonaise_proving.stages.databaseservers import engine_at
from rigs.databases import execute

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
