"""Tables that a pipeline finds where it would make its own: of others, or with columns that can't hold its values."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event, make_url, text

from polonaise.errors import BadOption, ViewUnfit
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.views.sql import SqlView
from polonaise.views.tables import Chunks, Field, MarkedTable, Shape, snapshot
from polonaise_proving.stages.databaseservers import engine_at
from rigs.databases import change, execute

LOG = "aa" * 16
SUMS = Shape("sums", (Field("k", "int"), Field("x", "bigint")), ("k",), {"x": "sum"})
LINES = Shape("sums", SUMS.fields)


@contextlib.contextmanager
def prepared(url: str, shape: Shape = SUMS, definition: str = "d") -> Iterator[MarkedTable]:
    with contextlib.closing(MarkedTable(url, shape, LOG, definition)) as table:
        table.prepare()
        yield table


def prepare(url: str, shape: Shape = SUMS) -> None:
    with prepared(url, shape):
        pass


def one(k: int, x: object) -> Chunks:
    return lambda: [[{"k": k, "x": x}]]


def rows(url: str) -> list[tuple[object, ...]]:
    with engine_at(url) as engine, engine.connect() as db:
        return sorted(map(tuple, db.execute(text("SELECT k, x FROM sums"))))


@pytest.mark.parametrize("shape", [SUMS, LINES], ids=["keyed", "keyless"])
def test_rows_without_their_marks_and_their_definition_are_not_counted_twice(url: str, shape: Shape) -> None:
    with prepared(url, shape) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
    for name in ("marks", "definition"):
        execute(url, f"DROP TABLE sums_{name}")
    for _ in range(2):  # the second time these tables are there again, and empty
        with pytest.raises(ViewUnfit, match=r"sums holds rows, and neither sums_marks nor sums_definition.*restore"):
            prepare(url, shape)
    assert rows(url) == [(1, 5)]
    execute(url, "DELETE FROM sums")
    with prepared(url, shape) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
    assert rows(url) == [(1, 5)]


@pytest.mark.parametrize("lost", [("marks",), ("marks", "definition")])
def test_marks_that_are_lost_under_way_do_not_make_the_table_new(url: str, lost: tuple[str, ...]) -> None:
    """As for whoever follows the log: after each commit the marks are read anew."""
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
        for name in lost:
            execute(url, f"DELETE FROM sums_{name}")
        assert table.marks() == {}
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=r"sums_marks.*[Rr]estore"):
                table.merge(one(1, 5), {}, {0: 3})
    assert rows(url) == [(1, 5)]


def test_the_mark_of_one_partition_that_is_lost_does_not_make_the_partition_new(url: str) -> None:
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3, 1: 4})
        assert table.merge(one(1, 5), table.marks(), {0: 3, 1: 4, 2: 8})
        change(url, "DELETE FROM {} WHERE {} = 2", "sums_marks", "partition")
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=r"sums_marks has lost marks.*[Rr]estore"):
                table.merge(one(1, 5), table.marks(), {0: 3, 1: 4, 2: 8})
    assert rows(url) == [(1, 10)]
    with prepared(url) as table:
        with pytest.raises(ViewUnfit, match=r"sums_marks has lost marks.*--rebuild"):
            table.check_marks_kept()
        for begun in table.marks(), {0: 3, 1: 4}:
            with pytest.raises(ViewUnfit, match=r"sums_marks has lost marks.*--rebuild"):
                table.merge(one(1, 5), begun, {0: 3, 1: 4, 2: 8})
        assert rows(url) == [(1, 10)]
        assert table.replace(one(1, 9), table.marks(), {0: 9, 1: 4})
        table.check_marks_kept()
        assert table.merge(one(1, 1), table.marks(), {2: 1}), "which the rebuild has let begin anew"
        change(url, "DELETE FROM {} WHERE {} = 0", "sums_marks", "partition")
        with pytest.raises(ViewUnfit, match=r"sums_marks has lost marks"):
            table.check_marks_kept()
    assert rows(url) == [(1, 10)]


def test_a_table_that_is_gone_is_not_made_anew_beside_its_marks(url: str) -> None:
    """It would lack what was added before."""
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
        execute(url, "DROP TABLE sums")
        table._look_again()  # as with another connection
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=r"sums is there, .*or drop sums_marks and sums_definition, too, and"):
                table.merge(one(1, 6), {0: 3}, {0: 4})
            with pytest.raises(ViewUnfit, match=r"none of the tables sums is there, and sums_marks says"):
                prepare(url)
    for name in ("marks", "definition"):
        execute(url, f"DROP TABLE sums_{name}")
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
    assert rows(url) == [(1, 5)]


@pytest.mark.parametrize("gone", ["undecodable", "refused"])
def test_a_table_of_what_was_left_out_that_is_gone_is_not_made_anew_in_silence(url: str, gone: str) -> None:
    """It would lack what was left out before, which only a rebuild brings again."""
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3}, list, list)
        execute(url, f"DROP TABLE sums_{gone}")
        assert table.merge(one(1, 1), {0: 3}, {0: 4}), "nothing goes there"
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=f"table sums_{gone} was there and is gone.*--rebuild"):
                table.merge(one(1, 6), {0: 4}, {0: 5}, list, list)
        assert rows(url) == [(1, 6)]
        assert table.replace(one(1, 6), {0: 4}, {0: 4}, list, list), "a rebuild makes all of it"
        execute(url, f"DROP TABLE sums_{gone}")
        with pytest.raises(ViewUnfit) as raised:
            table.merge(one(1, 6), {0: 4}, {0: 5}, list, list)
        execute(url, raised.value.text.rpartition(": ")[2])
        assert table.merge(one(1, 6), {0: 4}, {0: 5}, list, list), "as the statement says that the error ends with"


def test_a_table_of_what_was_left_out_is_missed_if_an_earlier_version_made_it(url: str) -> None:
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3}, list)
        change(url, "DELETE FROM {} WHERE {} < 0", "sums_definition", "number")
        assert table.merge(one(1, 5), {0: 3}, {0: 4}, list)
        execute(url, "DROP TABLE sums_undecodable")
        with pytest.raises(ViewUnfit, match="table sums_undecodable was there and is gone"):
            table.merge(one(1, 6), {0: 4}, {0: 5}, list)


def test_marks_that_an_earlier_version_wrote_are_missed_once_they_were_met(url: str) -> None:
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3, 1: 4})
    execute(url, "DELETE FROM sums_definition WHERE number > 0")
    with prepared(url) as table:
        table.check_marks_kept()
        for mark in (5, 6):
            assert table.merge(one(1, 5), table.marks(), {1: mark})
    change(url, "DELETE FROM {} WHERE {} = 1", "sums_marks", "partition")
    with prepared(url) as table, pytest.raises(ViewUnfit, match="sums_marks has lost marks"):
        table.merge(one(1, 15), table.marks(), {1: 6})
    assert rows(url) == [(1, 15)]


def test_a_table_of_another_application_is_neither_added_to_nor_emptied(url: str) -> None:
    execute(url, "CREATE TABLE sums (k INT PRIMARY KEY, x BIGINT)", "INSERT INTO sums VALUES (1, 1000)")
    table = MarkedTable(url, SUMS, LOG, "d")
    for write in (table.merge, table.replace):
        with pytest.raises(ViewUnfit, match="If they are another application's, give the view another name"):
            write(one(1, 1), {}, {0: 0})
    table.close()
    assert rows(url) == [(1, 1000)]


def test_of_two_views_whose_names_differ_in_case_the_second_is_refused_by_sqlite(sqlite_url: str) -> None:
    prepare(sqlite_url)
    with pytest.raises(ViewUnfit, match="table Sums can't be had beside sums, which the database takes for the same"):
        prepare(sqlite_url, Shape("Sums", SUMS.fields, SUMS.key, SUMS.merge))


def test_a_first_mark_that_stands_for_nothing_does_not_make_rows_the_view_s(url: str) -> None:
    with prepared(url) as table:
        assert not table.merge(one(1, 1), {0: 5}, {0: 6, 1: 0}), "which writes the first mark of partition 1"
    execute(url, "INSERT INTO sums VALUES (1, 1000)")
    with pytest.raises(ViewUnfit, match="holds rows"):
        prepare(url)


def test_rows_whose_definition_alone_is_gone_are_replaced_by_a_rebuild(url: str) -> None:
    with prepared(url) as table:
        assert table.merge(one(1, 5), {}, {0: 3})
    execute(url, "DELETE FROM sums_definition")
    with prepared(url) as table:
        assert table.replace(one(1, 6), {0: 3}, {0: 3})
    assert rows(url) == [(1, 6)]


@pytest.mark.slow
def test_rows_that_another_process_commits_while_they_are_looked_for_are_the_view_s(postgresql_url: str) -> None:
    with engine_at(postgresql_url, isolation_level="READ COMMITTED") as engine, prepared(postgresql_url) as quicker:

        def commit_first(*given: Any) -> None:
            if "FROM sums LIMIT" in " ".join(given[2].split()):
                assert quicker.merge(one(1, 5), {}, {0: 3})

        event.listen(engine, "before_cursor_execute", commit_first)
        with contextlib.closing(MarkedTable(engine, SUMS, LOG, "d")) as late:
            late.prepare()
            assert late.marks() == {0: 3}


def test_a_rebuild_leaves_another_application_s_table_alone_that_is_called_as_one_beside_the_view_s(url: str) -> None:
    execute(url, "CREATE TABLE sums_refused (n INT)", "INSERT INTO sums_refused VALUES (1)")
    with prepared(url) as table:
        assert table.replace(one(1, 5), {}, {0: 3})
    with engine_at(url) as engine, engine.connect() as db:
        assert db.execute(text("SELECT n FROM sums_refused")).all() == [(1,)]


# ------------------------------------------------------------------ keys

EXACT = {
    "sqlite": "TEXT",
    "postgresql": 'TEXT COLLATE "C"',
    "mariadb": "VARCHAR(255) COLLATE utf8mb4_nopad_bin",
}
KEYS_UNFIT = [
    "",
    "PRIMARY KEY (a)",
    "PRIMARY KEY (a, b, other)",
    "UNIQUE (a), UNIQUE (b)",
]
KEYS_FIT = ["PRIMARY KEY (a, b)", "UNIQUE (b, a)", "PRIMARY KEY (b, a), UNIQUE (a, b, other)"]
KEYS_OF = {
    "sqlite": (["PRIMARY KEY (a COLLATE NOCASE, b)", "UNIQUE (a, b COLLATE RTRIM), PRIMARY KEY (a, b)"], []),
    "postgresql": (["UNIQUE (a, b) DEFERRABLE"], ["PRIMARY KEY (a, b), UNIQUE (x)"]),
    "mariadb": (
        [
            "KEY (a, b)", "PRIMARY KEY (a(3), b)", "UNIQUE (a, b(3))", "PRIMARY KEY (a, b), UNIQUE (x)",
            "PRIMARY KEY (a, b), UNIQUE (other)", "PRIMARY KEY (a, b), UNIQUE (a(3), b)",
            "id INT AUTO_INCREMENT PRIMARY KEY",
        ],
        ["id INT AUTO_INCREMENT PRIMARY KEY, UNIQUE (a, b)"],
    ),
}  # fmt: skip


@pytest.mark.slow
def test_a_table_is_taken_only_if_rows_of_the_same_key_and_no_others_become_one_there(url: str) -> None:
    kind = make_url(url).get_backend_name()
    fields = (Field("a", "string"), Field("b", "string"), Field("x", "bigint"))
    unfit, fit = KEYS_OF[kind]
    options = " ROW_FORMAT=DYNAMIC" if kind == "mariadb" else ""
    for keys in (*KEYS_UNFIT, *unfit, *KEYS_FIT, *fit):
        columns = f"a {EXACT[kind]} DEFAULT '', b {EXACT[kind]} DEFAULT '', x BIGINT, other INT DEFAULT 0"
        execute(url, "DROP TABLE IF EXISTS sums", f"CREATE TABLE sums ({columns}{', ' if keys else ''}{keys}){options}")
        prepare(url, Shape("sums", fields[2:]))
        keyed = Shape("sums", fields, ("a", "b"), {"x": "sum"})
        if keys in unfit or keys in KEYS_UNFIT:
            with pytest.raises(ViewUnfit, match=r"sums has to have a primary key, or .* key \(a, b\), whole and"):
                prepare(url, keyed)
        else:
            prepare(url, keyed)


def test_sqlite_s_numbered_rows_are_a_key_and_a_text_that_it_compares_otherwise_is_none(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE sums (k INTEGER PRIMARY KEY, x BIGINT)")
    prepare(sqlite_url)
    for collation in ("NOCASE", "RTRIM"):
        for rest in ("", " WITHOUT ROWID"):
            texts = f"CREATE TABLE sums (k TEXT COLLATE {collation} PRIMARY KEY, x BIGINT){rest}"
            execute(sqlite_url, "DROP TABLE sums", texts)
            with pytest.raises(
                ViewUnfit, match=rf"one row of different keys, by its unique key over k \({collation}\)"
            ):
                prepare(sqlite_url, Shape("sums", (Field("k", "string"), Field("x", "bigint")), ("k",)))


def test_the_least_text_goes_by_bytes_in_a_column_that_sqlite_compares_otherwise(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE sums (k INT PRIMARY KEY, x TEXT COLLATE NOCASE)")
    shape = SUMS._replace(fields=(Field("k", "int"), Field("x", "string")), merge={"x": "min"})
    with prepared(sqlite_url, shape) as table:
        for mark, x in enumerate(("a", "B")):
            assert table.merge(one(1, x), {0: mark - 1} if mark else {}, {0: mark})
    assert rows(sqlite_url) == [(1, "B")]


def test_a_key_of_zero_stays_zero_in_a_column_that_mariadb_numbers(mariadb_url: str) -> None:
    execute(mariadb_url, "CREATE TABLE sums (k INT AUTO_INCREMENT PRIMARY KEY, x BIGINT)")
    with prepared(mariadb_url) as table:
        assert table.merge(one(5, 1), {}, {0: 0})
        assert table.merge(one(0, 2), {0: 0}, {0: 1})
        assert table.merge(one(0, 4), {0: 1}, {0: 2})
    assert rows(mariadb_url) == [(0, 6), (5, 1)]


# ------------------------------------------------------------------ types


def test_a_table_of_a_run_that_failed_does_not_round_what_the_mended_view_makes(server_url: str) -> None:
    def shape(kind: str) -> Shape:
        return SUMS._replace(fields=(Field("k", "int"), Field("x", kind)))

    prepare(server_url, shape("decimal(10,2)"))  # as a run that died of a row
    told = (
        r"sums can't hold what its view makes: column x is \w+\(10,2\) in the table and decimal\(12,4\) in the view; "
        "alter the table, or .* drop it together with sums_marks and sums_definition"
    )
    mended = MarkedTable(server_url, shape("decimal(12,4)"), LOG, "mended")
    for write in (mended.merge, mended.replace):
        with pytest.raises(ViewUnfit, match=told):
            write(one(1, Decimal("1.2345")), {}, {0: 0})
    mended.close()
    for name in ("sums", "sums_marks", "sums_definition"):
        execute(server_url, f"DROP TABLE {name}")
    with prepared(server_url, shape("decimal(12,4)")) as table:
        assert table.merge(one(1, Decimal("1.2345")), {}, {0: 0})
    assert rows(server_url) == [(1, Decimal("1.2345"))]


# By the type of the view, the types of columns that lose something of its values, and of those that do not.
NARROW = {
    "decimal(12,4)": "NUMERIC(12,2); NUMERIC(11,4); BIGINT; DOUBLE PRECISION",
    "decimal(19,0)": "BIGINT",
    "bigint": "INT; DOUBLE PRECISION; NUMERIC(18); TEXT",
    "int": "SMALLINT; NUMERIC(9)",
    "double": "INT; NUMERIC(20,10); TEXT",
    "string": "VARCHAR(20); CHAR(20); INT",
    "timestamp": "DATE; TIME; TIMESTAMP(3)",
    "timestamp_ntz": "TIMESTAMP(0)",
}
WIDE = {
    "decimal(12,4)": "NUMERIC(12,4); NUMERIC(20,6)",
    "decimal(9,0)": "INT",
    "decimal(18,0)": "BIGINT",
    "bigint": "NUMERIC(19)",
    "int": "BIGINT; DOUBLE PRECISION",
    "smallint": "SMALLINT",
    "tinyint": "SMALLINT",
    "boolean": "BOOLEAN",
    "double": "DOUBLE PRECISION",
    "float": "DOUBLE PRECISION",
    "date": "DATE",
}
NARROW_ON_POSTGRESQL = {
    "double": "REAL; NUMERIC",
    "string": "JSONB; UUID; BPCHAR; NAME; XML; TEXT[]; INET; whatever",
    "bigint": (
        "MONEY; amount; OID; XID; INTERVAL; BIGINT[]; BIGINT GENERATED ALWAYS AS IDENTITY; "
        "BIGINT GENERATED ALWAYS AS (k + 1) STORED"
    ),
    "int": "NUMERIC(12,-2)",
    "binary": "BIT VARYING; TEXT",
    "boolean": "INT; BIT(1)",
    "date": "TEXT",
    "timestamp": "INTERVAL; TEXT",
}
WIDE_ON_POSTGRESQL = {
    "bigint": "BIGINT GENERATED BY DEFAULT AS IDENTITY",
    "smallint": "REAL",
    "float": "REAL",
    "date": "TIMESTAMP(0)",
    "timestamp": "TIMESTAMP(6); TIMESTAMPTZ",
    "decimal(38,10)": "NUMERIC",
    "string": "TEXT; VARCHAR",
    "binary": "BYTEA",
    "timestamp_ntz": "TIMESTAMP",
}
NARROW_ON_MARIADB = {
    "double": "FLOAT; DOUBLE(20,2)",
    "string": "DATE; TEXT; TINYTEXT; SET('a'); ENUM('a'); UUID; INET6; LONGBLOB",
    "bigint": "DATE; DATETIME; BIT(64); DECIMAL(20,0) UNSIGNED; INT AS (k + 1) VIRTUAL; BIGINT AS (k + 1) PERSISTENT",
    "smallint": "YEAR; TINYINT",
    "int": "MEDIUMINT; INT UNSIGNED; DOUBLE(20,0)",
    "binary": "BLOB; VARBINARY(1000); LONGTEXT; BINARY(255)",
    "timestamp": "DATETIME; DATETIME(3); DATETIME(6) ON UPDATE CURRENT_TIMESTAMP(6); TIMESTAMP(6) NULL",
    "date": "TIMESTAMP NULL; VARCHAR(10)",
    "boolean": "BIT(1); VARCHAR(5)",
    "float": "FLOAT",
}
WIDE_ON_MARIADB = {
    "timestamp": "DATETIME(6)",
    "timestamp_ntz": "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)",
    "date": "DATETIME",
    "tinyint": "TINYINT",
    "boolean": "TINYINT(1)",
    "string": "LONGTEXT; MEDIUMTEXT",
    "binary": "LONGBLOB",
}
NARROW_ON_SQLITE = {
    "bigint": "REAL; TEXT; DOUBLE PRECISION; BIGINT AS (k + 1) VIRTUAL",
    "double": "TEXT",
    "string": 'INTEGER; JSON; BOOLEAN; DATE; TIMESTAMP; NUMERIC; STRING; UUID; "TEXT/POINT"; TEXT AS (k) STORED',
    "boolean": "TEXT",
    "date": "INTEGER",
}
WIDE_ON_SQLITE = {
    "boolean": "BOOLEAN",
    "string": "; NATIVE CHARACTER(3); VARCHAR(3)",
    "bigint": "; BLOB; UNSIGNED BIG INT; INT; NUMERIC(3)",
    "double": "BLOB; INTEGER; NUMERIC(10,2)",
    "binary": "VARBINARY(16); BLOB",
    "int": "REAL",
    "timestamp": "DATETIME",
    "date": "TEXT",
}
ON = {
    "sqlite": [(NARROW_ON_SQLITE, False), (WIDE_ON_SQLITE, True)],
    "postgresql": [(NARROW, False), (WIDE, True), (NARROW_ON_POSTGRESQL, False), (WIDE_ON_POSTGRESQL, True)],
    "mariadb": [(NARROW, False), (WIDE, True), (NARROW_ON_MARIADB, False), (WIDE_ON_MARIADB, True)],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Did not recognize type")  # of SQLAlchemy
def test_a_column_is_taken_if_it_loses_nothing_and_else_named_with_both_types(url: str) -> None:
    kind = make_url(url).get_backend_name()
    given = [
        (needed, found, holds)
        for types, holds in ON[kind]
        for needed, columns_of in types.items()
        for found in columns_of.split("; ")
    ]
    columns = [f"c{number} {found}" for number, (_, found, _) in enumerate(given)]
    if kind == "postgresql":
        execute(url, "CREATE DOMAIN amount AS NUMERIC(5,2)", "CREATE TYPE whatever AS ENUM ('a')")
    options = " ROW_FORMAT=DYNAMIC" if kind == "mariadb" else ""
    execute(url, f"CREATE TABLE sums (k INT PRIMARY KEY, {', '.join(columns)}){options}")
    fields = [Field(f"c{number}", needed) for number, (needed, _, _) in enumerate(given)]
    for field, (needed, _, holds) in zip(fields, given, strict=True):
        shape = Shape("sums", (Field("k", "int"), field), ("k",))
        if holds:
            prepare(url, shape)
            continue
        told = rf"column {field.name} is .* (in the table and {needed.split('(')[0]}.* in the view|has to be)"
        with pytest.raises(ViewUnfit, match=told):
            prepare(url, shape)


def test_what_the_view_s_own_table_has_fits_it(url: str) -> None:
    kinds = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"]
    kinds += ["string", "binary", *([] if url.startswith("sqlite") else ["decimal(38,0)", "decimal(38,38)"])]
    for key in ((), ("c3", "c10", "c11")):
        shape = Shape(f"own_{len(key)}", tuple(Field(f"c{number}", kind) for number, kind in enumerate(kinds)), key)
        prepare(url, shape)
        with prepared(url, shape) as found_again:
            assert found_again.marks() == {}


# ------------------------------------------------------------------ names


def test_columns_and_tables_with_signs_in_their_names_are_merged_in_many_rows(url: str) -> None:
    names = ["share%", "a%%b", "Sum%s", "x:y", "VALUES(x)", "q'q"]
    for name, key, merged in (("a%b", "k%", names), ("keys", "k%%", [])):
        shape = Shape(name, (Field(key, "int"), *(Field(each, "bigint") for each in names)), (key,))
        shape = shape._replace(merge=dict(zip(merged, itertools.cycle(("sum", "max")), strict=False)))

        def chunks(key: str = key) -> list[list[dict[str, int]]]:
            return [[{key: k, **dict.fromkeys(names, 10 * k)} for k in range(3)]]

        with prepared(url, shape) as table:
            assert table.merge(chunks, {}, {0: 0})
            assert table.merge(chunks, {0: 0}, {0: 1})
        with snapshot(url, shape.fields, name, marks_table=None) as (_, parts):
            held = sorted(row for part in parts for row in part)
        now = [20 if merged and at % 2 == 0 else 10 for at in range(len(names))]
        assert held[1] == (1, *now)


@pytest.mark.parametrize("letter", ["n", "ü"])
def test_a_name_is_refused_before_the_first_run_exactly_if_a_table_beside_it_could_not_be_made(
    server_url: str, letter: str
) -> None:
    size = 1 if server_url.startswith("mariadb") else len(letter.encode())
    most = (64 if server_url.startswith("mariadb") else 63) - len("_undecodable")
    name = "x" * (most % size) + letter * (most // size)
    at = datetime(2026, 1, 31, tzinfo=UTC)
    letters = [{"partition": 0, "transaction_id": 0, "timestamp": at, "header": 0, "reason": "", "data": b""}]
    refused = [{"partition": 0, "transaction_id": 0, "column_name": "", "reason": "", "row_json": ""}]
    with prepared(server_url, SUMS._replace(name=name)) as table:
        assert table.merge(one(1, 1), {}, {0: 0}, lambda: [letters], lambda: [refused])
    with pytest.raises(BadOption, match=rf"the name of table {name}x_undecodable has 6[45] .*: choose a shorter one"):
        MarkedTable(server_url, SUMS._replace(name=f"{name}x"), LOG, "d")
    long = letter * 65
    with pytest.raises(BadOption, match=rf"the name of column {long} has \d+ "):
        MarkedTable(server_url, SUMS._replace(fields=(*SUMS.fields, Field(long, "int"))), LOG, "d")


@pytest.mark.parametrize(("kind", "name"), [(SqlView, "marks_table"), (SqlDeliveryTarget, "name")])
def test_other_tables_whose_names_begin_with_a_given_one_are_refused_likewise(
    kind: type[SqlView] | type[SqlDeliveryTarget], name: str
) -> None:
    for url, most in (("postgresql+psycopg://u@127.0.0.1:1/d", 57), ("mariadb+pymysql://u@127.0.0.1:1/d", 58)):
        options: dict[str, Any] = {name: "n" * most}
        kind(url, **options)
        options[name] += "n"
        with pytest.raises(BadOption, match=f"nn_(given|fence) has {most + 7} .* choose a shorter one, or a shorter"):
            kind(url, **options)


@pytest.mark.parametrize("stored", ["k", "K"])
def test_a_column_of_another_case_is_the_view_s_where_the_database_passes_over_case(url: str, stored: str) -> None:
    other = "K" if stored == "k" else "k"
    kind = make_url(url).get_backend_name()
    key = {"sqlite": f"{stored} INT", "mariadb": f"{stored} VARCHAR(255) COLLATE utf8mb4_nopad_bin"}
    columns = key.get(kind, f'"{stored}" INT')
    execute(
        url,
        f"CREATE TABLE sums ({columns} PRIMARY KEY, X BIGINT{' ) ROW_FORMAT=DYNAMIC' if kind == 'mariadb' else ')'}",
    )
    of_key = Field(other, "string" if kind == "mariadb" else "int")
    shape = Shape("sums", (of_key, Field("x", "bigint")), (other,), {"x": "sum"})
    if kind == "postgresql":
        with pytest.raises(ViewUnfit, match=f"column {other} is missing"):
            prepare(url, shape)
        return
    value: Any = "a" if kind == "mariadb" else 1
    with prepared(url, shape) as table:
        for mark in (0, 1):
            assert table.merge(lambda: [[{other: value, "x": 5}]], {0: 0} if mark else {}, {0: mark})
    with snapshot(url, shape.fields, "sums", marks_table=None) as (_, parts):
        assert [row for part in parts for row in part] == [(value, 10)]


def test_a_column_whose_name_begins_with_a_blank_is_a_key_like_any_other(url: str) -> None:
    shape = Shape("sums", (Field(" k", "string"), Field(" x", "bigint")), (" k",), {" x": "sum"})
    for mark in (0, 1):  # found again the second time
        with prepared(url, shape) as table:
            assert table.merge(lambda: [[{" k": "a", " x": 5}]], {0: 0} if mark else {}, {0: mark})
    with snapshot(url, shape.fields, "sums", marks_table=None) as (_, parts):
        assert [row for part in parts for row in part] == [("a", 10)]
