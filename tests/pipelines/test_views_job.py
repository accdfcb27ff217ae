"""The job views: a table is what its view makes of the log up to its marks, however it got there."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from polonaise.errors import BadOption, BeyondLog, ClientAhead, DirectoryInUse, ViewUnfit, WrongClusterKey
from polonaise.host.files import try_lock
from polonaise.pipelines import viewsource
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.parquettarget import ParquetTarget
from polonaise.pipelines.source import Until
from polonaise.pipelines.targetaddress import open_target
from polonaise.pipelines.targets import NewRows
from polonaise.pipelines.views import follow, rebuild, update
from polonaise.views.tables import MarkedTable
from rigs.tableviews import (
    COUNT,
    PARTITIONS,
    balances,
    bank_log,
    body,
    changes,
    expected_balances,
    expected_changes,
    more,
    rows_in,
    schema_of,
)
from rigs.waiting import block_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.blocking.log import Log

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with bank_log(tmp_path / "log", COUNT) as log:
        yield log


def test_rebuilt_to_an_id_then_brought_up_to_date_commit_by_commit(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    told: list[object] = []
    progress = SimpleNamespace(begin=lambda what, total: told.append((what, total)), done=told.append)
    report = rebuild(spark, address, balances, table, until=Until(ids={0: 39, 1: -1}), progress=progress)
    assert told == [("rebuilding", 1), 1]
    assert report.marks == {0: 39, 1: -1}
    assert rows_in(spark, table, balances, log) == expected_balances(40, 0)
    report = update(spark, address, balances, table, transactions_max=70)
    assert (report.marks, report.commits, report.transactions) == ({0: 99, 1: 99}, 3, 160)
    assert rows_in(spark, table, balances, log) == expected_balances(COUNT, COUNT)
    assert update(spark, address, balances, table).commits == 0, "nothing is new"
    rebuild(spark, address, balances, table)
    assert rows_in(spark, table, balances, log) == expected_balances(COUNT, COUNT), "the same, made in one step"
    rebuild(spark, address, balances, table, until=Until(ids={0: 9, 1: 9}))
    assert rows_in(spark, table, balances, log) == expected_balances(10, 10), "back in time"


def test_rows_without_a_key_are_added_once(spark: SparkSession, log: Log, address: str, table: str) -> None:
    update(spark, address, changes, table, transactions_max=130)
    more(log, COUNT, 10)
    update(spark, address, changes, table)
    assert rows_in(spark, table, changes, log) == expected_changes(COUNT + 10, COUNT + 10)


def test_up_to_a_time_is_a_consistent_cut(spark: SparkSession, log: Log, address: str, tmp_path: Path) -> None:
    last = log.transaction(COUNT - 1, 1)
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last.commit_time_us)
    table = f"parquet:{tmp_path / 'table'}"
    more(log, COUNT, 10)
    assert rebuild(spark, address, balances, table, until=Until(time=moment)).marks == {0: COUNT - 1, 1: COUNT - 1}
    assert rows_in(spark, table, balances, log) == expected_balances(COUNT, COUNT)


def test_a_table_that_is_followed_gets_what_is_committed_later(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    commits = follow(spark, address, balances, f"parquet:{tmp_path / 'table'}")
    assert next(commits).after == {0: COUNT - 1, 1: COUNT - 1}
    adding = threading.Timer(0.5, more, (log, COUNT, 5))
    adding.start()
    reached = dict.fromkeys(range(PARTITIONS), COUNT - 1)
    while set(reached.values()) != {COUNT + 4}:
        reached |= next(commits).after
    commits.close()
    adding.join()
    assert rows_in(spark, f"parquet:{tmp_path / 'table'}", balances, log) == expected_balances(COUNT + 5, COUNT + 5)


def test_a_table_is_not_followed_into_the_store_of_another_log(
    spark: SparkSession, log: Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewsource, "_STORE_WAIT_S", 0.1)
    store, other, table = tmp_path / "store", tmp_path / "other", f"parquet:{tmp_path / 'table'}"
    archive(spark, address, str(store), HowToArchive(rest=True))
    with bank_log(tmp_path / "longer", COUNT + 20):
        archive(spark, f"embedded:{tmp_path / 'longer'}", str(other), HowToArchive(rest=True))
    commits = follow(spark, f"fragments:{store}", balances, table)
    assert next(commits).after == {0: COUNT - 1, 1: COUNT - 1}
    store.rename(tmp_path / "aside")
    other.rename(store)
    with pytest.raises(WrongClusterKey, match="is another log"):
        next(commits)
    assert rows_in(spark, table, balances, log) == expected_balances(COUNT, COUNT)


def test_invalid_arguments_are_refused(spark: SparkSession, log: Log, address: str, tmp_path: Path) -> None:
    table = f"parquet:{tmp_path / 'table'}"
    with pytest.raises(BadOption, match="can't be brought up to date: rebuild it"):
        update(spark, address, TableView("v", "SELECT count(*) AS n FROM {log}", whole=True), table)
    with pytest.raises(BeyondLog, match="partition 0 is committed up to 99: there is no transaction 100"):
        rebuild(spark, address, balances, table, until=Until(ids={0: 100, 1: 0}))
    with pytest.raises(BadOption, match="give an id of each"):
        rebuild(spark, address, balances, table, until=Until(ids={0: 10}))
    with pytest.raises(BadOption, match=r"the query of view v: .*UNRESOLVED_COLUMN"):
        rebuild(spark, address, TableView("v", "SELECT nothing FROM {log}"), table)
    with pytest.raises(BadOption, match="how is amount merged"):
        rebuild(
            spark,
            address,
            TableView("v", changes.query, key=["partition", "transaction_id", "account"], read=changes.read),
            table,
        )
    with pytest.raises(BadOption, match="no table at 'somewhere'"):
        rebuild(spark, address, balances, "somewhere")


def test_a_table_of_another_log_is_refused(spark: SparkSession, address: str, table: str, tmp_path: Path) -> None:
    rebuild(spark, address, balances, table)
    with bank_log(tmp_path / "other", 3), pytest.raises(ViewUnfit):
        update(spark, f"embedded:{tmp_path / 'other'}", balances, table)


def test_a_table_that_is_ahead_of_its_log_is_not_touched(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    table = f"parquet:{tmp_path / 'table'}"
    target = ParquetTarget(spark, str(tmp_path / "table"), balances, log.cluster_key.hex())
    target.prepare(schema_of(spark, balances))
    rows = spark.createDataFrame([(1, 1, 1, 1)], schema_of(spark, balances))
    assert target.replace(NewRows(rows), {}, {0: COUNT, 1: 0})
    with pytest.raises(ClientAhead, match="made up to 100 of partition 0, and the log there ends at 99"):
        update(spark, address, balances, table)


# ------------------------------------------------------------------ Parquet


def parquet(spark: SparkSession, directory: Path, view: TableView = changes, **options: Any) -> ParquetTarget:
    target = ParquetTarget(spark, str(directory), view, "aa", **options)
    target.prepare(schema_of(spark, view))
    return target


def some(spark: SparkSession, *ids: int) -> Any:
    return spark.createDataFrame([(0, id, 1, 1) for id in ids], schema_of(spark, changes))


def ids_in(spark: SparkSession, directory: Path) -> list[int]:
    """As any reader sees it that knows nothing of us."""
    import pyarrow.parquet as pq

    return sorted(pq.read_table(directory / "current", columns=["transaction_id"]).column(0).to_pylist())


def test_a_version_is_seen_whole_and_shares_the_files_of_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    target = parquet(spark, tmp_path)
    assert target.merge(NewRows(some(spark, 1, 2)), {}, {0: 2})
    first = (tmp_path / "current").resolve()
    assert target.merge(NewRows(some(spark, 3)), {0: 2}, {0: 3})
    assert ids_in(spark, tmp_path) == [1, 2, 3]
    assert first.exists(), "whoever has begun to read it can go on"
    second = (tmp_path / "current").resolve()
    shared = [file for file in first.glob("*.parquet") if os.path.samefile(file, second / file.name)]
    assert shared == list(first.glob("*.parquet"))
    assert not target.merge(NewRows(some(spark, 3)), {0: 2}, {0: 3}), "once"
    assert ids_in(spark, tmp_path) == [1, 2, 3]


def test_what_a_killed_writer_left_is_swept(spark: SparkSession, tmp_path: Path) -> None:
    target = parquet(spark, tmp_path, keep_s=0.0)
    target.merge(NewRows(some(spark, 1)), {}, {0: 1})
    current = (tmp_path / "current").resolve()
    shutil.copytree(current, current.with_name("00000001.making"))
    shutil.copytree(current, current.with_name("00000001"))
    assert target.marks() == {0: 1}
    assert ids_in(spark, tmp_path) == [1], "it died before it moved the link"
    for id in (2, 3):
        assert target.merge(NewRows(some(spark, id)), {0: id - 1}, {0: id})
    assert ids_in(spark, tmp_path) == [1, 2, 3]
    assert sorted(each.name for each in (tmp_path / "versions").iterdir()) == ["00000001", "00000002"]


def test_one_run_writes_a_table_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    target = parquet(spark, tmp_path)
    lock = try_lock(str(tmp_path / ".lock"))
    with pytest.raises(DirectoryInUse):
        target.merge(NewRows(some(spark, 1)), {}, {0: 1})
    lock.release()


@pytest.mark.parametrize("asked", ["marks", "definition"])
def test_another_that_makes_the_table_between_two_requests_of_a_check_is_no_misfit(
    spark: SparkSession, log: Log, address: str, tmp_path: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"sqlite:///{tmp_path / 'views.db'}"
    answer = getattr(MarkedTable, asked)

    def answered_before_another_commits(self: MarkedTable) -> Any:
        monkeypatch.setattr(MarkedTable, asked, answer)
        answered = answer(self)
        update(spark, address, balances, table)
        return answered

    with closing(open_target(spark, table, balances, log.cluster_key.hex())) as target:
        target.prepare(schema_of(spark, balances))
        target.marks()  # opens the table: what is asked from here on is the check's
        monkeypatch.setattr(MarkedTable, asked, answered_before_another_commits)
        target.check()
    assert rows_in(spark, table, balances, log) == expected_balances(COUNT, COUNT)


async def test_two_that_update_one_database_leave_each_transaction_once(
    spark: SparkSession, log: Log, address: str, postgresql: Any
) -> None:
    table = postgresql.database()
    both = [asyncio.to_thread(update, spark, address, balances, table, transactions_max=20) for _ in range(2)]
    reports = await asyncio.gather(*both)
    assert sum(report.transactions for report in reports) == PARTITIONS * COUNT
    assert await asyncio.to_thread(rows_in, spark, table, balances, log) == expected_balances(COUNT, COUNT)


def test_moments_in_a_delta_table_are_moments_whatever_the_sessions_zone(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    latest = TableView(
        "latest", "SELECT account, max(timestamp) AS last FROM {log} GROUP BY account",
        key=["account"], merge={"last": "max"}, read=balances.read,
    )  # fmt: skip
    elsewhere, table = spark.newSession(), f"delta:{tmp_path / 'latest'}"
    elsewhere.conf.set("spark.sql.session.timeZone", "America/New_York")
    update(elsewhere, address, latest, table)
    block_for(0.01)  # so that what is appended now is later
    more(log, COUNT, COUNT)
    update(elsewhere, address, latest, table)
    expected: dict[int, int] = {}
    for partition in range(PARTITIONS):
        for tx in log.read(partition):
            account = body(partition, tx.id)[0]
            expected[account] = max(expected.get(account, 0), tx.commit_time_us)
    found = spark.read.parquet(*DeltaTable(table.removeprefix("delta:")).file_uris())
    assert dict(found.selectExpr("account", "unix_micros(last)").collect()) == expected
    assert audit_table(elsewhere, address, latest, table).well
