"""Bodies that do not decode: a run fails on them, or goes on without them and tells; each dead letter is there once."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from polonaise.errors import BadOption, ViewUnfit
from polonaise.pipelines import deltatarget
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.definitions import definition_of
from polonaise.pipelines.deltatarget import DeltaTarget
from polonaise.pipelines.parquettarget import ParquetTarget
from polonaise.pipelines.views import follow, rebuild, update
from polonaise.pipelines.viewsource import UndecodablePolicy, policy_of
from polonaise.views.rowstatements import RowStatements
from rigs import tableviews
from rigs.databases import execute
from rigs.faults import raises_code
from rigs.programs import run_polonaise
from rigs.tableviews import COUNT, READ, balances, bank_log, changes, expected_balances, expected_changes, rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.blocking.log import Log

BAD = b'{"account": "nobody"}'
WORSE = b"\x00 no JSON"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """With two bodies that do not decode behind the good ones of partition 0, and one of partition 1."""
    with bank_log(tmp_path / "log") as log:
        for body, partition, header in ((BAD, 0, 7), (WORSE, 0, 0), (BAD, 1, 0)):
            log.append(body, partition, header=header).result(timeout=30)
        yield log


def letters_in(table: str, view: TableView) -> list[tuple[Any, ...]]:
    """Partition, id, header and body of each dead letter, as anybody reads the table."""
    if table.startswith("sqlite:"):
        with closing(sqlite3.connect(table.removeprefix("sqlite:///"))) as database:
            return database.execute(
                f"SELECT partition, transaction_id, header, data FROM {view.name}_undecodable ORDER BY 1, 2"
            ).fetchall()
    kind, _, directory = table.partition(":")
    if kind == "parquet":
        found = ds.dataset(sorted(Path(directory).glob("current/_undecodable/*.parquet"))).to_table()
    else:
        found = DeltaTable(f"{directory}/_undecodable").to_pyarrow_table()
    names = ("partition", "transaction_id", "header", "data")
    return sorted(tuple(row[name] for name in names) for row in found.to_pylist())


LETTERS = [(0, COUNT, 7, BAD), (0, COUNT + 1, 0, WORSE), (1, COUNT, 0, BAD)]


@pytest.mark.exhaustive  # of kinds of tables
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "view"),
    # Each kind of table, and each kind of view (with a key and without): what the kinds share is one code.
    [("parquet", balances), ("sqlite", balances), ("delta", changes)],
    indirect=["table"],
    ids=["parquet, keyed", "sqlite, keyed", "delta, rows only"],
)
def test_what_becomes_of_them_changes_from_run_to_run_without_a_rebuild(
    spark: SparkSession, log: Log, address: str, table: str, view: TableView
) -> None:
    expected = {"balances": expected_balances(COUNT, COUNT), "changes": expected_changes(COUNT, COUNT)}[view.name]
    for _ in range(2):
        with raises_code("body_undecodable", match=rf"transaction {COUNT} of partition .*onUndecodable=table"):
            update(spark, address, view, table)
    report = update(spark, address, view, table, on_undecodable="table", transactions_max=2 * COUNT + 1)
    assert report.undecodable.count == 3
    assert [each[:2] for each in report.undecodable.named] == [each[:2] for each in LETTERS]
    assert all(each.reason for each in report.undecodable.named)
    assert report.letters is not None
    assert report.fields()["undecodable"]["named"][0]["transaction_id"] == COUNT
    assert letters_in(table, view) == LETTERS
    assert rows_in(spark, table, view, log) == expected
    with raises_code("body_undecodable"):
        audit_table(spark, address, view, table)
    audit = audit_table(spark, address, view, table, on_undecodable="skip")
    assert (audit.well, audit.undecodable.count) == (True, 3)
    log.append(WORSE, 1).result(timeout=30)
    report = update(spark, address, view, table, on_undecodable="skip")
    assert [each[:2] for each in report.undecodable.named] == [(1, COUNT + 1)]
    assert report.letters is None
    assert letters_in(table, view) == LETTERS
    log.append(BAD, 1).result(timeout=30)
    update(spark, address, view, table, on_undecodable="table")
    assert letters_in(table, view) == [*LETTERS, (1, COUNT + 2, 0, BAD)]
    report = rebuild(spark, address, view, table, on_undecodable="table")
    assert letters_in(table, view) == [*LETTERS, (1, COUNT + 1, 0, WORSE), (1, COUNT + 2, 0, BAD)]
    assert report.undecodable.count == 5
    assert rows_in(spark, table, view, log) == expected


@pytest.mark.exhaustive("polonaise.pipelines")  # of kinds of tables
@pytest.mark.slow
def test_a_rebuild_that_leaves_them_out_has_no_older_letters(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    update(spark, address, changes, table, on_undecodable="table")
    rebuild(spark, address, changes, table, on_undecodable="skip")
    try:
        assert letters_in(table, changes) == []
    except FileNotFoundError:
        assert table.startswith("parquet:")


@pytest.mark.exhaustive("polonaise.pipelines")  # of kinds of tables
@pytest.mark.slow
def test_a_run_names_no_dead_letter_table_before_there_is_one(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    update(spark, address, changes, table, on_undecodable="skip")
    report = update(spark, address, changes, table, on_undecodable="table")
    assert (report.commits, report.letters, report.refused) == (0, None, None)
    assert report.fields()["undecodable"]["table"] is None
    log.append(BAD, 1).result(timeout=30)
    report = update(spark, address, changes, table, on_undecodable="table")
    assert report.letters is not None
    assert report.letters.endswith("_undecodable")
    assert report.refused is None
    assert letters_in(table, changes) == [(1, COUNT + 1, 0, BAD)]
    assert update(spark, address, changes, table, on_undecodable="table").letters == report.letters


@pytest.mark.exhaustive("polonaise.pipelines")  # of kinds of tables
@pytest.mark.slow
@pytest.mark.parametrize("table", ["delta", "sqlite"], indirect=True)
def test_letters_that_are_gone_alone_are_not_begun_anew_in_silence(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    update(spark, address, changes, table, on_undecodable="table")
    kind, _, place = table.partition(":")
    if kind == "delta":
        shutil.rmtree(Path(place) / deltatarget.LETTERS)
    else:
        execute(table, f"DROP TABLE {changes.name}_undecodable")
    for policy in ("table", "skip", "table"):
        log.append(WORSE, 1).result(timeout=30)
        if policy == "skip":
            update(spark, address, changes, table, on_undecodable=policy)
            continue
        with pytest.raises(ViewUnfit, match=r"_undecodable was there and is gone.*--rebuild"):
            update(spark, address, changes, table, on_undecodable=policy)
    rebuild(spark, address, changes, table, on_undecodable="table")
    assert letters_in(table, changes) == [*LETTERS, *((1, COUNT + more, 0, WORSE) for more in (1, 2, 3))]


class Killed(BaseException):
    """The process is no more."""


def dying(real: Any, *, first: bool) -> Any:
    """As `real`, and then the process dies; or before, if that comes `first`."""

    def dies(*given: Any, **named: Any) -> Any:
        if not first:
            real(*given, **named)
        raise Killed

    return dies


def dying_after(real: Any, *, calls: int) -> Any:
    """As `dying`, but so many `calls` are done before."""
    dies, done = dying(real, first=False), iter(range(1, calls))

    def works(*given: Any) -> Any:
        return (dies if next(done, None) is None else real)(*given)

    return works


# The methods themselves rather than their names: one that is gone is missed where this file is collected.
PLACES: dict[str, list[tuple[type, Callable[..., Any], Any]]] = {
    "parquet": [(ParquetTarget, ParquetTarget._finish, partial(dying, first=True))],
    "delta": [
        (DeltaTarget, DeltaTarget._transactions, partial(dying, first=False)),
        (DeltaTarget, DeltaTarget._write_letters, partial(dying, first=False)),
    ],
    # Rows and letters are a statement each: whichever is the first of them, it is not committed without the other.
    "sqlite": [
        (RowStatements, RowStatements.write, partial(dying_after, calls=1)),
        (RowStatements, RowStatements.write, partial(dying_after, calls=2)),
    ],
}
"""Where a run dies, by the kind of table."""


@pytest.mark.exhaustive("polonaise.pipelines")  # of kinds of tables
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "again"),
    [("parquet", "update"), ("sqlite", "update"), ("delta", "update"), ("delta", "rebuild")],
    indirect=["table"],
)
def test_a_run_that_dies_between_the_letters_and_the_rows_leaves_each_letter_once(
    spark: SparkSession, log: Log, address: str, table: str, again: str
) -> None:
    """The next run may take another range. Only Delta's are two tables, of which a rebuild replaces both."""
    update(spark, address, changes, table, on_undecodable="table", transactions_max=2 * COUNT + 1)
    for each in (WORSE, b'{"account": 3, "amount": 5}'):
        log.append(each, 1).result(timeout=30)
    for kind, method, killer in PLACES[table.partition(":")[0]]:
        with pytest.MonkeyPatch.context() as life:
            life.setattr(kind, method.__name__, killer(method))
            with pytest.raises(Killed):
                update(spark, address, changes, table, on_undecodable="table")
    log.append(BAD, 1).result(timeout=30)
    if again == "update":
        update(spark, address, changes, table, on_undecodable="table")
    else:
        rebuild(spark, address, changes, table, on_undecodable="table")
    assert letters_in(table, changes) == [*LETTERS, (1, COUNT + 1, 0, WORSE), (1, COUNT + 3, 0, BAD)]
    assert rows_in(spark, table, changes, log) == [*expected_changes(COUNT, COUNT), (1, COUNT + 2, 3, 5)]


@pytest.mark.slow
def test_a_table_that_is_followed_tells_of_them_with_each_commit(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    strict = TableView(
        "strict", "SELECT account FROM {log}", read={**READ, "decoderSchema": "account int NOT NULL, amount bigint"}
    )
    log.append(b"{}", 0).result(timeout=30)
    commits = follow(spark, address, strict, f"parquet:{tmp_path / 'table'}", on_undecodable="table")
    letters = next(commits).undecodable
    assert letters.count == 4
    assert [each.reason for each in letters.named if each.transaction_id == COUNT + 2] == [
        "account is NOT NULL, and is missing"
    ]


@pytest.mark.slow
def test_the_command_tells_it_in_one_line_and_ends(address: str, tmp_path: Path) -> None:
    """Without the traces of its tries."""
    table = f"parquet:{tmp_path / 'table'}"
    ended = run_polonaise("pipeline", "views", address, f"{tableviews.__file__}:balances", table, within_s=400)
    assert ended.returncode == 1
    *before, last = ended.stderr.splitlines()
    assert last.startswith("polonaise: [body_undecodable] transaction ")
    fault = last.removeprefix("polonaise: [body_undecodable] ").partition(":")[0]
    # Spark's own complaint about a task that ran into its stop may stand there, but no try's.
    assert not any(fault in line or "Traceback" in line for line in before), ended.stderr


# ------------------------------------------------------------------ what is said of them


def declared(**read: str) -> TableView:
    return TableView("balances", balances.query, key=["account"], merge=balances.merge, read={**READ, **read})


def test_the_run_says_it_or_else_the_view() -> None:
    assert policy_of(declared()) is UndecodablePolicy.FAIL
    assert policy_of(declared(onUndecodable="Table")) is UndecodablePolicy.TABLE
    assert policy_of(declared(onUndecodable="table"), "skip") is UndecodablePolicy.SKIP
    assert policy_of(declared(failOnDecodeError="true"), "skip") is UndecodablePolicy.SKIP
    assert policy_of(declared(onUndecodable="column")) is UndecodablePolicy.FAIL
    assert policy_of(declared(failOnDecodeError="false")) is UndecodablePolicy.FAIL


@pytest.mark.parametrize(
    ("view", "said", "why"),
    [
        (declared(), "drop", "onUndecodable='drop': write one of fail, skip, table"),
        (declared(failOnDecodeError="false"), "skip", "a part of its definition"),
        (declared(onUndecodable="column"), "table", "a part of its definition"),
        (declared(onUndecodable="skip", failOnDecodeError="true"), None, "keep onUndecodable only"),
        (TableView("plain", "SELECT data FROM {log}"), "table", "view plain has no decoder"),
    ],
)
def test_invalid_arguments_are_refused(view: TableView, said: str | None, why: str) -> None:
    with pytest.raises(BadOption, match=why):
        policy_of(view, said)


def test_the_policy_for_undecodable_bodies_is_no_part_of_the_definition() -> None:
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([StructField("account", IntegerType())])

    def digest(**read: str) -> str:
        return definition_of(declared(**read), schema).digest

    assert {digest(onUndecodable=how) for how in ("fail", "skip", "table")} == {digest()}
    assert digest(onUndecodable="column") == digest(failOnDecodeError="false") != digest()
    assert digest(onUndecodable="only") not in (digest(), digest(onUndecodable="column"))
