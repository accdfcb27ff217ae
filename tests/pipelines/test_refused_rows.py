"""Rows on their way into a table, where they come from, and where it can't hold them or be read."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from sqlalchemy import text

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.errors import DiskFailed, ViewFailed
from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines import viewsource
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.moments import moment_of, with_times
from polonaise.pipelines.source import LogSource
from polonaise.pipelines.targetaddress import open_target
from polonaise.pipelines.targets import NewRows
from polonaise.pipelines.views import rebuild, update
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark.options import ReadOptions, read_options
from polonaise_proving.stages.databaseservers import engine_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


READ = {"decoder": "json", "decoderSchema": "key string, name string, at timestamp, amount bigint, rate double"}
things = TableView(
    "things",
    "SELECT coalesce(key, if(amount = 0, NULL, 'none')) AS key, name, at, amount, rate FROM {log}",
    key=["key"],
    merge={"name": "max", "at": "max", "amount": "sum", "rate": "sum"},
    read=READ,
)
summed = TableView(
    "summed",
    "SELECT key, max(name) AS name, sum(amount) AS amount FROM {log} WHERE key IS NOT NULL GROUP BY key",
    key=["key"],
    merge={"name": "max", "amount": "sum"},
    read=READ,
)
listed = TableView("listed", "SELECT partition, transaction_id, name FROM {log}", read=READ)
pairs = TableView(
    "pairs",
    "SELECT key, at, nullif(amount, 0) AS amount, rate, name FROM {log}",
    key=["key", "at", "amount"],
    merge={"rate": "sum", "name": "max"},
    read=READ,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with polonaise.blocking.connect(f"embedded:{tmp_path / 'log'}") as log:
        yield log


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address in each kind of database, with defaults of their own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'views.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def append(log: Log, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        log.append(json.dumps(body).encode()).result(timeout=30)


def rows(table: str, sql: str) -> list[tuple[Any, ...]]:
    with engine_at(table) as engine, engine.connect() as db:
        return [tuple(row) for row in db.execute(text(sql))]


GOOD: list[dict[str, Any]] = [
    {"key": "a", "name": "x", "at": "0001-01-01T00:00:00Z", "amount": 1, "rate": 0.5},
    {"key": "a ", "name": "😀", "at": "9999-12-31T23:59:59.999999Z", "amount": 2},
    {"key": "A", "name": "", "at": "1582-10-10T00:00:00Z", "amount": 3, "rate": -0.0},
    {"key": "", "name": "é", "amount": 4},
]
NUL = {"key": "n", "name": "a\0b", "amount": 5}
LONG = {"key": "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(1_000)), "amount": 6}
NO_KEY = {"amount": 0}


@pytest.mark.exhaustive("polonaise.pipelines", "polonaise.views")  # of databases
@pytest.mark.slow
@pytest.mark.usefixtures("in_new_york")
def test_what_a_table_can_not_hold_is_named_left_out_kept_and_agreed_upon(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    kind = table.partition(":")[0].partition("+")[0]
    wrong = [NO_KEY, *([NUL] if kind == "postgresql" else []), *([] if kind == "sqlite" else [LONG])]
    append(log, *GOOD, NO_KEY)
    with pytest.raises(ViewFailed, match=r'can\'t hold row \{"key": null\}: key is null, .*onUndecodable=table'):
        update(spark, address, things, table)
    append(log, {"key": "a", "amount": 7}, *wrong[1:])
    # In two commits: the second one merges rows with those of the first one, and adds to what is refused.
    report = update(spark, address, things, table, on_undecodable="table", transactions_max=len(GOOD) + 1)
    refused = report.undecodable.refused
    assert (report.commits, refused.count, report.refused) == (2, len(wrong), "things_refused")
    assert {each.column for each in refused.named} <= {"key", "name"}
    assert report.fields()["refused"]["count"] == len(wrong)
    kept = rows(table, "SELECT column_name, row_json FROM things_refused")
    assert len(kept) == len(wrong)
    assert sorted(json.loads(row)["amount"] for _, row in kept) == sorted(row["amount"] for row in wrong)
    key = "`key`" if kind == "mariadb" else "key"
    # The times as texts: the driver of PostgreSQL makes them local ones, which may be in no year that Python has.
    held = f"SELECT {key}, amount, name, CAST(at AS char(40)), rate FROM things ORDER BY amount"
    updated = rows(table, held)
    assert {row[0]: row[1] for row in updated} == {row["key"]: row["amount"] + 7 * (row["key"] == "a") for row in GOOD}
    audit = audit_table(spark, address, things, table, on_undecodable="skip")
    assert (audit.well, audit.undecodable.refused.count) == (True, len(wrong))
    assert rebuild(spark, address, things, table, on_undecodable="skip").undecodable.refused.count == len(wrong)
    assert rows(table, "SELECT count(*) FROM things_refused") == [(0,)]
    assert rows(table, held) == updated, "a table made anew is not what the audit agreed with"


SECRET = "postgresql://u:hunter2secret@h/db"


@pytest.mark.slow
@pytest.mark.exhaustive  # of databases: a row is shown by what they share
def test_a_row_is_shown_without_the_secrets_in_it_wherever_it_is_cut(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    update(spark, address, pairs, table)
    for before in ("", "x " * 80):  # so that 200 letters end within the password, as it is
        append(log, {"key": f"{before}{SECRET}", "at": "2026-01-01T00:00:00Z", "amount": 0})
        with pytest.raises(ViewFailed, match=r"can't hold row") as failed:
            update(spark, address, pairs, table)
        (named,) = update(spark, address, pairs, table, on_undecodable="skip").undecodable.refused.named
        for shown in (str(failed.value), str(named), named.row):
            assert "hunter" not in shown
            assert "postgresql://u:***" in shown
        assert "hunter" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.slow
@pytest.mark.exhaustive  # of databases: a row is shown by what they share
def test_the_sum_of_a_key_is_told_without_the_secret_in_it(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    for _ in range(3):
        append(log, {"key": SECRET, "amount": 4 * 10**18})
    with pytest.raises(ViewFailed, match=r'the sum of amount for \{"key": "postgresql://u:\*\*\*@h/db"\} is beyond'):
        update(spark, address, things, table)


@pytest.mark.exhaustive("polonaise.pipelines", "polonaise.views")  # of databases
@pytest.mark.slow
def test_a_refused_row_is_kept_and_named_as_it_is(spark: SparkSession, log: Log, address: str, table: str) -> None:
    """With its nulls, and its times to the microsecond: two keys may differ by one."""
    times = ["2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123457Z"]
    append(log, *({"key": "k", "at": at, "amount": 0, "rate": 0.1} for at in times))
    refused = update(spark, address, pairs, table, on_undecodable="table").undecodable.refused
    keys = [{"key": "k", "at": at, "amount": None} for at in times]
    assert [json.loads(each.row) for each in refused.named] == keys
    kept = sorted(row for (row,) in rows(table, "SELECT row_json FROM pairs_refused"))
    assert [json.loads(row) for row in kept] == [{**key, "rate": 0.1, "name": None} for key in keys]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_row_that_many_transactions_made_is_not_left_out_with_them(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    """Its transactions would be missing in it or not by how the log is divided into commits. A key can be left out."""
    append(log, {"key": "n\0", "amount": 1}, {"key": "n", "amount": 2}, NUL)
    with pytest.raises(ViewFailed, match=r'row \{"key": "n"\}: name has a NUL.* one row of many transactions'):
        update(spark, address, summed, table, on_undecodable="table", transactions_max=2)
    assert rows(table, "SELECT key, amount FROM summed") == [("n", 2)]
    assert rows(table, "SELECT column_name FROM summed_refused") == [("key",)]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_row_is_named_by_its_transaction_where_the_view_has_it(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    append(log, GOOD[0], NUL)
    with pytest.raises(ViewFailed, match=r"can't hold transaction 1 of partition 0, row .*: name has a NUL"):
        update(spark, address, listed, table)
    report = update(spark, address, listed, table, on_undecodable="skip")
    assert [each[:3] for each in report.undecodable.refused.named] == [(0, 1, "name")]


@pytest.mark.slow
def test_a_sum_that_does_not_fit_files_is_refused_by_key_and_column_too(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    """Whatever Spark's settings make of such a sum: an error without a name, or another number."""
    table, before = f"parquet:{tmp_path / 'table'}", spark.conf.get("spark.sql.ansi.enabled")
    append(log, *({"key": "k", "amount": 4 * 10**18 + 1} for _ in range(2)))
    update(spark, address, things, table)
    append(log, {"key": "k", "amount": 4 * 10**18})
    try:
        for ansi in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", ansi)
            with pytest.raises(ViewFailed, match=r'the sum of amount for \{"key": "k"\} is beyond bigint'):
                update(spark, address, things, table)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert [row.amount for row in spark.read.parquet(f"{tmp_path}/table/current").collect()] == [8 * 10**18 + 2]


@pytest.mark.slow
def test_what_is_held_is_read_as_it_was(spark: SparkSession, log: Log, address: str, tmp_path: Path) -> None:
    """Of years that the local calendar would move out of what Python has; differences of them are named, too."""
    append(log, *GOOD)
    files, database = f"parquet:{tmp_path / 'table'}", f"sqlite:///{tmp_path / 'views.db'}"
    for table in (files, database):
        update(spark, address, things, table)
    assert audit_table(spark, address, things, files).well
    with engine_at(database) as engine, engine.begin() as db:
        db.execute(text("UPDATE things SET at = '0002-01-01 00:00:00.000000' WHERE key = 'a'"))
    (found,) = audit_table(spark, address, things, database).found.differences
    assert found.values == {"at": (datetime(2, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC))}
    assert os.environ.get("TZ") is None or found.kind == "different"


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process believes to be."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("microseconds", "moment"),
    [
        (round(NOON.timestamp()) * 1_000_000 + 1, NOON.replace(microsecond=1)),
        (-62_135_596_800_000_000, datetime(1, 1, 1, tzinfo=UTC)),
        (253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (1_793_511_000_000_000, datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),  # 01:30 in New York, for the first time
        (1_793_514_600_000_000, datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_moment_is_the_same_in_every_zone_and_year(zone: str, microseconds: int | None, moment: datetime) -> None:
    assert moment_of(microseconds) == moment


def test_what_python_does_not_have_is_told_as_spark_tells_it() -> None:
    made = {"at": moment_of, "local": datetime.fromisoformat, "day": date.fromisoformat}
    row = {"at": 1, "local": "0001-01-01 00:00:00", "day": "9999-12-31", "n": 7}
    assert with_times(row, made) == {
        "at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "local": datetime(1, 1, 1),  # noqa: DTZ001 - without a zone
        "day": date(9999, 12, 31),
        "n": 7,
    }
    far = {"at": 2**62, "local": "+10000-01-01 00:00:00", "day": None}
    assert with_times(far, made) == far


VIEW = TableView("rows", "SELECT transaction_id FROM {log}")


def written(table: str) -> None:
    no_spark: Any = None  # the directory is looked at before Spark is needed
    target = open_target(no_spark, table, VIEW, "cluster")
    target.prepare(StructType([]))
    target.merge(NewRows(no_spark), target.marks(), {0: 1})


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_in_the_way_is_told(tmp_path: Path, kind: str, below: str) -> None:
    (tmp_path / "file").write_text("none")
    place = f"{tmp_path / 'file'}{below}"
    with pytest.raises(
        DiskFailed, match=f"the table in {place} can't be read or written: .*; correct its path"
    ) as told:
        written(f"{kind}:{place}")
    assert str(told.value).isprintable()


@pytest.mark.parametrize("damaged", ["", "{", "garbage"])
def test_a_damaged_delta_log_is_told(tmp_path: Path, damaged: str) -> None:
    import deltalake

    deltalake.write_deltalake(str(tmp_path / "lake"), pa.table({"transaction_id": [1]}))
    (commit,) = (tmp_path / "lake" / "_delta_log").glob("*.json")
    commit.write_text(damaged)
    with pytest.raises(DiskFailed, match=f"the Delta table in {tmp_path / 'lake'} .*; restore its _delta_log") as told:
        written(f"delta:{tmp_path / 'lake'}")
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("source", "store"),
    [
        (LogSource("file:/log", {"fragments": "/jobs"}, ""), "/jobs"),
        (LogSource("file:/log", {}, ""), "/views"),
        (LogSource("fragments:/jobs", {}, ""), "/jobs"),
    ],
)
@pytest.mark.parametrize("name", ["fragments", "Fragments"])
def test_marks_and_rows_are_of_one_store(
    monkeypatch: pytest.MonkeyPatch, source: LogSource, store: str, name: str
) -> None:
    looked: list[ReadOptions] = []

    class History:
        def __init__(self, options: ReadOptions) -> None:
            looked.append(options)

        def wanted(self) -> dict[int, Span]:
            return {0: Span(0, 9)}

    def read(spark: Any, cluster: str, **options: str) -> Any:
        looked.append(read_options({"cluster": cluster, **options}))

    monkeypatch.setattr(viewsource, "QueryHistory", History)
    monkeypatch.setattr(viewsource.query, "read", read)
    view = TableView("v", lambda log: type("Frame", (), {"columns": ["a"]}), read={name: "/views", "headers": "1"})
    seen = ViewSource(None, source, view, UndecodablePolicy.FAIL)  # type: ignore[arg-type]
    assert seen.marks() == {0: 9}
    seen.rows({}, {0: 9})
    assert [(each.cluster, each.fragments) for each in looked] == [(source.address, store)] * 2
