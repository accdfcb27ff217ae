"""Texts in tables that Polonaise makes: compared by their bytes on each database, whatever its defaults are."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, select

from polonaise.errors import BadOption, ViewFailed, ViewUnfit
from polonaise.terms import Transaction
from polonaise.views.marks import dead_letters
from polonaise.views.sql import SqlView
from polonaise.views.tables import Field, MarkedTable, Shape, snapshot
from polonaise_proving.stages.databaseservers import MariaDB, engine_at
from rigs.databases import execute
from rigs.lacking import lacking

NAMES = [
    "Alice", "ALICE", "alice", "Zoë", "Zoe", "Zoe\N{COMBINING DIAERESIS}", "x", "x ", "straße", "strasse", "😀", "𝒜",
]  # fmt: skip
OWNERS = Shape(
    "owners",
    (Field("name", "string"), Field("amount", "bigint"), Field("least", "string"), Field("most", "string")),
    key=("name",),
    merge={"amount": "sum", "least": "min", "most": "max"},
)
LOG = "aa" * 16


def made(url: str) -> MarkedTable:
    table = MarkedTable(url, OWNERS, LOG, "by name")
    table.prepare()
    return table


def held(url: str) -> list[tuple[object, ...]]:
    with snapshot(url, OWNERS.fields, OWNERS.name, marks_table=None) as (_, parts):
        return sorted(row for part in parts for row in part)


def test_texts_of_other_bytes_are_other_keys(url: str) -> None:
    with contextlib.closing(made(url)) as table:
        rows = [{"name": name, "amount": 1, "least": name, "most": name} for name in NAMES]
        for first in (0, 1):
            assert table.merge(lambda: [rows], {} if not first else {0: 0}, {0: first})
    assert held(url) == sorted((name, 2, name, name) for name in NAMES)


def test_least_and_most_are_those_by_bytes(url: str) -> None:
    ordered = sorted(NAMES, key=str.encode)
    with contextlib.closing(made(url)) as table:
        rows = [{"name": "all", "amount": 1, "least": name, "most": name} for name in NAMES]
        assert table.merge(lambda: [[row] for row in rows], {}, {0: 0})
    assert held(url) == [("all", len(NAMES), ordered[0], ordered[-1])]


def test_numbers_are_read_with_all_their_digits(url: str, request: pytest.FixtureRequest) -> None:
    floats = Shape("floats", (Field("n", "bigint"), Field("x", "double")), key=("n",))
    values = [0.1234567890123456, 1e22, 12345678.9, 5e-324, -1.7976931348623157e308]
    if "postgresql" in url:
        name = url.partition("?")[0].rpartition("/")[2]
        execute(url, f'ALTER DATABASE "{name}" SET extra_float_digits = -12')
    with contextlib.closing(MarkedTable(url, floats, LOG, "by number")) as table:
        table.prepare()
        rows = [{"n": n, "x": x} for n, x in enumerate(values)]
        assert table.replace(lambda: [rows], {}, {0: 0})
    with snapshot(url, floats.fields, floats.name, marks_table=None) as (_, parts):
        assert sorted(row for part in parts for row in part) == list(enumerate(values))


@pytest.mark.slow
def test_a_binary_log_of_statements_is_named_with_what_can_be_set() -> None:
    class Counted(SqlView):
        def apply(self, tx: Transaction, db: Connection) -> None: ...

    if MariaDB.program() is None:
        lacking("no `mariadbd` on this machine: Debian's package mariadb-server-core has it")
    options = {"log-bin": "log", "binlog-format": "STATEMENT", "transaction-isolation": "READ-COMMITTED"}
    options["max-join-size"] = "1"
    with contextlib.closing(MariaDB(options)) as server:
        server.start()
        url = server.database()
        with pytest.raises(ViewUnfit, match="binlog_format to MIXED or ROW"):
            Counted(url).prepare()
        Counted.isolation_level = "REPEATABLE READ"
        Counted(url).prepare()


@pytest.mark.parametrize(
    "wrong",
    [
        "mariadb+pymysql://u@h/db?nosuch=1",
        "mariadb+pymysql://u@h/db?ssl_key=/no&ssl_ca=/no",
        "postgresql+psycopg://u@127.0.0.1:1/d?x=1",
    ],
)
def test_a_wrong_option_of_a_url_is_told_as_that(wrong: str) -> None:
    class Counted(SqlView):
        def apply(self, tx: Transaction, db: Connection) -> None: ...

    with pytest.raises(BadOption, match="correct the options of the URL"):
        Counted(wrong).prepare()


@pytest.mark.slow
def test_what_is_too_long_for_a_key_is_refused_and_never_cut(mariadb_url: str) -> None:
    with contextlib.closing(made(mariadb_url)) as table:
        rows = [{"name": "x" * 256, "amount": 1, "least": "", "most": ""}]
        with pytest.raises(ViewFailed, match="Data too long"):
            table.merge(lambda: [rows], {}, {0: 0})
    assert held(mariadb_url) == []


@pytest.mark.slow
def test_a_table_whose_keys_are_compared_otherwise_is_refused(mariadb_url: str) -> None:
    columns = "name VARCHAR(255) PRIMARY KEY, amount BIGINT, least LONGTEXT, most LONGTEXT"
    execute(
        mariadb_url,
        f"CREATE TABLE owners ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci ROW_FORMAT=DYNAMIC",
    )
    with pytest.raises(ViewUnfit, match=r"different keys for the same one, .* name \(utf8mb4_general_ci\): drop it"):
        made(mariadb_url)


@pytest.mark.slow
def test_letters_hold_reasons_and_bodies_of_all_kinds(mariadb_url: str) -> None:
    letters = dead_letters("owners")
    data = bytes(range(256))
    letter = {
        "partition": 0, "transaction_id": 1, "timestamp": datetime(2025, 1, 2, tzinfo=UTC), "header": 0,
        "reason": "wrong: \\ 'é' 😀", "data": data,
    }  # fmt: skip
    with contextlib.closing(made(mariadb_url)) as table:
        assert table.merge(list, {}, {0: 0}, letters=lambda: [[letter]])
    with engine_at(mariadb_url) as engine, engine.connect() as db:
        row = db.execute(select(letters.table)).one()
    assert (row.reason, row.data, row.timestamp.replace(tzinfo=UTC)) == (letter["reason"], data, letter["timestamp"])
