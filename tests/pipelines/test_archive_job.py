"""The job archive: what was committed, however it was divided, up to any end, and as a Delta table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import polonaise
from polonaise.admin import archive as archives
from polonaise.errors import BadOption, BeyondLog, NotInitialized, StoreUnavailable, WrongClusterKey
from polonaise.fragments.format import batches_in
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.pipelines import archive as archivejob
from polonaise.pipelines import viewsource
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.deltaarchive import register, to_register
from polonaise.pipelines.source import LogSource, Until
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL = 4_096
"""Of a fragment: so that a small log makes many."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A log of two partitions, of many small batches, that another process of the job's does not host."""
    address = f"embedded:{tmp_path / 'log'}?partitions=2"
    with polonaise.blocking.connect(address) as log:
        for number in range(40):
            for partition in (0, 1):
                receipts = [log.append(b"%d %d" % (number, n) * 4, partition) for n in range(5 + number % 7)]
                receipts[-1].result(timeout=30)
        yield address


def held(store: ObstoreStore, partition: int) -> list[bytes]:
    async def read() -> list[bytes]:
        names = await fragments_of(store, partition)
        return [batch for name in names for batch in batches_in(await store.get(name.path))]

    return asyncio.run(read())


def in_log(address: str, partition: int) -> list[bytes]:
    with polonaise.blocking.connect(address) as log:
        return [bytes(batch.view) for batch in log.read_batches(partition)]


@pytest.mark.slow
async def test_all_that_is_committed_is_archived_byte_for_byte_by_many_tasks(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    url = str(tmp_path / "store")
    report = await asyncio.to_thread(archive, spark, address, url, HowToArchive(fragment_bytes=SMALL, rest=True))
    store = open_store(url)
    for partition in (0, 1):
        assert await asyncio.to_thread(held, store, partition) == await asyncio.to_thread(in_log, address, partition)
        verdict = await archives.verify(store, partition)
        assert verdict.troubles == []
        assert verdict.last == report.partitions[partition].last == report.partitions[partition].limit
    assert len(report.fragments) > 6
    assert sum(each.transactions for each in report.partitions) == sum(
        each.fragment.last - each.fragment.first + 1 for each in report.fragments
    )


@pytest.mark.slow
def test_what_is_archived_is_not_archived_again_and_a_lost_fragment_is(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    url, how = str(tmp_path / "store"), HowToArchive(fragment_bytes=SMALL, rest=True)
    first = archive(spark, address, url, how)
    assert archive(spark, address, url, how).fragments == ()
    lost = first.fragments[2]
    (tmp_path / "store" / lost.fragment.path).unlink()
    again = archive(spark, address, url, how).fragments
    assert (again[0].fragment.first, again[-1].fragment.last) == (lost.fragment.first, lost.fragment.last)
    assert held(open_store(url), 0) == in_log(address, 0)


@pytest.mark.slow
def test_what_does_not_fill_a_fragment_is_left_unless_asked_for(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    url = str(tmp_path / "store")
    assert archive(spark, address, url).fragments == ()
    assert len(archive(spark, address, url, HowToArchive(rest=True)).fragments) == 2


@pytest.mark.slow
def test_an_archive_up_to_ids_or_a_time_holds_just_that(spark: SparkSession, address: str, tmp_path: Path) -> None:
    batches = [polonaise.Batch.parse(raw) for raw in in_log(address, 0)]
    middle = max(batches[1:], key=lambda batch: batch.last - batch.first)
    assert middle.last > middle.first, "one that an id can lie in"
    how = HowToArchive(partitions="0", fragment_bytes=SMALL, until={0: middle.last})
    by_id = archive(spark, address, str(tmp_path / "by id"), how)
    assert [each.last for each in by_id.partitions] == [middle.last]
    assert by_id.fields()["partitions"][0]["batch_left_out"] is None

    inside = replace(how, until={0: middle.last - 1})
    cut = archive(spark, address, str(tmp_path / "cut"), inside)
    assert [each.last for each in cut.partitions] == [middle.first - 1]
    left_out = {"first": middle.first, "last": middle.last}
    assert cut.fields()["partitions"][0]["batch_left_out"] == left_out

    time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=middle.commit_time_us)
    by_time = archive(spark, address, str(tmp_path / "by time"), HowToArchive(fragment_bytes=SMALL, until_time=time))
    last = max(batch.last for batch in batches if batch.commit_time_us <= middle.commit_time_us)
    assert by_time.partitions[0].last == by_time.partitions[0].limit == last
    late = [batch for batch in map(polonaise.Batch.parse, held(open_store(by_time.store), 1)) if batch.commit_time_us]
    assert max(batch.commit_time_us for batch in late) <= middle.commit_time_us


@pytest.mark.slow
def test_invalid_arguments_are_refused_before_anything_is_written(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    url = str(tmp_path / "store")
    with pytest.raises(BeyondLog, match="partition 0 is committed up to"):
        archive(spark, address, url, HowToArchive(partitions="0", until={0: 10**9}))
    with pytest.raises(BadOption, match="give a last id for each of these"):
        archive(spark, address, url, HowToArchive(until={0: 1}))
    with pytest.raises(BadOption, match="time zone"):
        archive(spark, address, url, HowToArchive(until_time=datetime(2026, 1, 1)))  # noqa: DTZ001
    with pytest.raises(NotInitialized, match="no embedded log"):
        archive(spark, f"embedded:{tmp_path / 'nothing'}", url)
    assert not any((tmp_path / "store").rglob("*.parquet"))


@pytest.mark.slow
def test_another_clusters_store_is_refused(spark: SparkSession, address: str, tmp_path: Path) -> None:
    url, other = str(tmp_path / "store"), f"embedded:{tmp_path / 'other'}"
    with polonaise.blocking.connect(other) as log:
        log.append(b"x", 0).result(timeout=30)
    archive(spark, other, url, HowToArchive(rest=True))
    with pytest.raises(WrongClusterKey, match="one per cluster"):
        archive(spark, address, url)


@pytest.mark.slow
def test_a_fault_in_a_task_comes_back_as_what_it_was(spark: SparkSession, address: str, tmp_path: Path) -> None:
    """A directory that stands where a fragment's directory would be made is found by the task that writes."""
    url = tmp_path / "store"
    archive(spark, address, str(url), HowToArchive(partitions="1", rest=True))
    (url / "0").write_text("in the way")
    with pytest.raises(StoreUnavailable):
        archive(spark, address, str(url), HowToArchive(partitions="0", rest=True))


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name(first: int, last: int, partition: int = 0) -> FragmentName:
    return FragmentName(partition, first, last, f"{first:032x}{last:032x}")


def test_no_id_is_added_twice() -> None:
    held = [name(0, 9), name(10, 19), name(15, 24), name(20, 29), name(0, 9, partition=1)]
    new, overlapping = to_register(held, [])
    assert (new, overlapping) == ([held[0], held[1], held[3], held[4]], (held[2],))
    assert to_register(held, [held[2]]) == ([held[0], held[4]], (held[1], held[3]))
    assert to_register(held[:2], held[:2]) == ([], ())


def test_the_larger_of_two_that_begin_together_is_taken() -> None:
    assert to_register([name(0, 9), name(0, 99), name(100, 109)], []) == (
        [name(0, 99), name(100, 109)],
        (name(0, 9),),
    )


def test_of_several_that_register_at_once_each_fragment_is_added_once(tmp_path: Path) -> None:
    url = str(tmp_path)
    register(url, {name(0, 9): 1})
    held = {name(10 * k, 10 * k + 9): 1 for k in range(8)}
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda count: register(url, dict(list(held.items())[:count])), (3, 5, 8, 8)))
    paths = DeltaTable(url).get_add_actions().column("path").to_pylist()
    assert sorted(paths) == sorted(each.path for each in held)
    assert sum(each.added for each in found) == 7


@pytest.mark.slow
def test_an_archive_is_a_delta_table_that_remembers_each_run(spark: SparkSession, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}", str(tmp_path / "store")
    how = HowToArchive(rest=True, delta=True)
    for run in range(2):
        with polonaise.blocking.connect(address) as log:
            receipts = [log.append(b"%d" % (100 * run + n), 0) for n in range(100)]
            receipts[-1].result(timeout=30)
        report = archive(spark, address, store, how)
        assert report.delta is not None
        assert (report.delta.version, report.delta.added) == (run + 1, 1)
    assert archive(spark, address, store, how).delta == (2, 0, ())
    for version, count in ((1, 100), (2, 200)):
        read = spark.read.parquet(*DeltaTable(store, version=version).file_uris())
        assert read.count() == count
    rows = DeltaTable(store).to_pyarrow_table(columns=["transaction_id", "data"]).to_pylist()
    assert sorted((row["transaction_id"], row["data"]) for row in rows) == [(n, b"%d" % n) for n in range(200)]


HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])
def test_an_archive_ends_some_time_ago_by_the_clock_of_a_server(ahead_s: float) -> None:
    asked_s: list[float] = []

    class Log:
        clock_ahead_s = ahead_s

        def high_water_mark(self, partition: int, *, timeout: float) -> int:
            return 9

        def read_time(self, partition: int, *, since: int, timeout: float) -> Any:
            asked_s.append(since / 1e6)
            return nullcontext(iter(()))

    log: Any = Log()
    assert archivejob._limits(log, [0], HowToArchive(until_time=timedelta(hours=1))) == {0: 9}
    assert asked_s == [pytest.approx(time.time() - ahead_s - HOUR_S, abs=60)]


@pytest.mark.parametrize("ahead_s", [DAY_S, None])
def test_a_view_ends_some_time_ago_by_the_clock_of_a_server_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead_s: float | None
) -> None:
    looked: list[ReadOptions] = []

    class History:
        log = None if ahead_s is None else SimpleNamespace(clock_ahead_s=ahead_s)

        def __init__(self, options: ReadOptions) -> None:
            looked.append(options)

        def ends(self) -> None:
            pass

        def wanted(self) -> dict[int, Span]:
            return {0: Span(0, 9)}

    monkeypatch.setattr(viewsource, "QueryHistory", History)
    view = TableView("v", lambda log: type("Frame", (), {"columns": ["a"]}))
    seen = ViewSource(None, LogSource("file:/log", {}, ""), view, UndecodablePolicy.FAIL)  # type: ignore[arg-type]
    assert seen.marks(Until(time=timedelta(hours=1))) == {0: 9}
    ending_s = (looked[-1].ending_time_us or 0) / 1e6
    assert ("by the clock of this machine" in caplog.text) == (ahead_s is None)
    assert ending_s == pytest.approx(time.time() - (ahead_s or 0) - HOUR_S, abs=60)
