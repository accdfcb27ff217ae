"""A stream reads each transaction once, begins where it was told, and waits for what comes instead of asking."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from polonaise.blocking.log import Log
from polonaise.errors import BadOption, BeyondLog, DeadlineExceeded, WrongClusterKey
from polonaise.spark import clusters, streamreader
from polonaise.spark.options import read_options
from polonaise.spark.protocol.splits import admitted
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.streamreader import StreamReader
from rigs.spark import Filled, columns, filled, forget, stream_reader, table

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()
IDS = columns(partition=pa.int32(), transaction_id=pa.int64())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Filled]:
    with filled(tmp_path, 10, 4) as made:
        yield made


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(streamreader, "_WAIT_S", 0.1)
    yield
    forget()


def read(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[int, int]]:
    found = table(reader, list(reader.partitions(start, end)))
    return list(zip(found["partition"].to_pylist(), found["transaction_id"].to_pylist(), strict=True))


def places(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset without the entry that says of which log it is."""
    return {name: place for name, place in offset.items() if name != "log"}


# ------------------------------------------------------------------ where it begins, and what is new


def test_a_checkpoint_of_another_log_is_refused_however_long_that_is(log: Filled) -> None:
    reader = stream_reader(log.address)
    start = reader.initialOffset()
    other = {**start, "log": "00" * 16}
    with pytest.raises(WrongClusterKey, match="another log"):
        reader.latestOffset(other, ALL)
    with pytest.raises(WrongClusterKey, match="another log"):
        reader.partitions(start, {**other, "0": 3})


@pytest.mark.parametrize(
    ("options", "initial"),
    [
        ({}, {"0": 0, "1": 0}),
        ({"startingTransactions": "latest"}, {"0": 10, "1": 4}),
        ({"startingTransactions": '{"0": 7, "1": -1}'}, {"0": 7, "1": 4}),
        ({"partitions": "1"}, {"1": 0}),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, {"0": 10, "1": 4}),
    ],
)
def test_a_stream_begins_where_it_was_told(log: Filled, options: Any, initial: Any) -> None:
    assert places(stream_reader(log.address, **options).initialOffset()) == initial


def test_a_stream_begins_at_one_place_however_often_spark_asks(log: Filled) -> None:
    reader = stream_reader(log.address, startingTransactions="latest")
    first = reader.initialOffset()
    log.append(3)
    assert reader.initialOffset() == first


def test_each_transaction_is_in_one_micro_batch(log: Filled) -> None:
    reader = stream_reader(log.address, IDS)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    assert places(first) == {"0": 10, "1": 4}
    log.append(2, 1)
    second = reader.latestOffset(first, ALL)
    assert places(second) == {"0": 10, "1": 6}
    assert read(reader, reader.initialOffset(), first) == [
        *((0, id) for id in range(10)),
        *((1, id) for id in range(4)),
    ]
    assert read(reader, first, second) == [(1, 4), (1, 5)]


def test_a_planned_range_reads_the_same_after_a_restart_with_another_split(log: Filled) -> None:
    start, end = {"0": 2, "1": 0}, {"0": 9, "1": 4}
    before = read(stream_reader(log.address, IDS), start, end)
    log.append(5)
    restarted = stream_reader(log.address, IDS, minPartitions=6)
    assert len(list(restarted.partitions(start, end))) >= 6
    assert read(restarted, start, end) == before


def test_a_micro_batch_takes_no_more_than_it_may(log: Filled) -> None:
    reader = stream_reader(log.address, IDS, maxTransactionsPerTrigger=3)
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert stream_reader(log.address).getDefaultReadLimit() == ALL
    place, seen = reader.initialOffset(), []
    for _ in range(5):
        end = reader.latestOffset(place, ReadMaxRows(3))
        rows = read(reader, place, end)
        assert len(rows) <= 3
        seen += rows
        place = end
    assert sorted(seen) == [*((0, id) for id in range(10)), *((1, id) for id in range(4))]
    assert len(seen) == 14


def test_available_now_ends_where_the_log_ended_when_it_began(log: Filled) -> None:
    reader = stream_reader(log.address)
    reader.prepareForTriggerAvailableNow()
    log.append(5)
    place = reader.latestOffset(reader.initialOffset(), ReadMaxRows(8))
    place = reader.latestOffset(place, ReadMaxRows(8))
    assert places(place) == {"0": 10, "1": 4}
    assert reader.latestOffset(place, ReadMaxRows(8)) == place


def test_a_partition_that_appears_later_is_read_from_its_beginning(log: Filled) -> None:
    log.archive(0)
    reader = stream_reader(f"fragments:{log.store}", IDS)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert places(first) == {"0": 10}
    log.archive(1)
    second = reader.latestOffset(first, ALL)
    assert places(second) == {"0": 10, "1": 4}
    assert read(reader, first, second) == [(1, id) for id in range(4)]


def with_a_hole(log: Filled, to: Path) -> tuple[str, Path, int]:
    """A store of fragments without the second one: its address, that fragment elsewhere, and the id where it begins."""
    log.append(90)
    log.archive(fragment_bytes=1)  # each of the log's batches by itself
    _, second, *_, _ = sorted(Path(log.store, "0").glob("*.parquet"))
    elsewhere = second.rename(to / second.name)
    return f"fragments:{log.store}", elsewhere, int(second.name.split("-")[0])


def test_a_stream_that_may_lose_data_reads_around_a_hole(log: Filled, tmp_path: Path) -> None:
    address, missing, hole = with_a_hole(log, tmp_path)
    reader = stream_reader(address, IDS, failOnDataLoss=False)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert places(end) == {"0": 100}
    lost = range(hole, int(missing.name.split("-")[1]) + 1)
    assert read(reader, reader.initialOffset(), end) == [(0, id) for id in range(100) if id not in lost]


def test_a_stream_over_a_log_goes_past_a_hole_of_its_store(log: Filled, tmp_path: Path) -> None:
    """The servers have what the fragments lack."""
    with_a_hole(log, tmp_path)
    reader = stream_reader(log.address, IDS, fragments=log.store, partitions="0")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert places(end) == {"0": 100}
    assert read(reader, reader.initialOffset(), end) == [(0, id) for id in range(100)]


def test_progress_is_reported_without_another_request(log: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream_reader(log.address)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    assert sum(places(end).values()) == 2
    monkeypatch.setattr(QueryHistory, "ends", None)
    assert reader.reportLatestOffset() == {"0": 10, "1": 4}


# ------------------------------------------------------------------ nothing new


def test_an_idle_stream_waits_at_the_server(log: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream_reader(log.address)
    place = reader.latestOffset(reader.initialOffset(), ALL)
    monkeypatch.setattr(QueryHistory, "ends", None)
    began = time.monotonic()
    assert reader.latestOffset(place, ALL) == place
    assert time.monotonic() - began >= 0.09


def test_an_idle_stream_over_a_store_does_not_list_it_all_the_time(log: Filled) -> None:
    log.archive()
    reader = stream_reader(f"fragments:{log.store}")
    place = reader.latestOffset(reader.initialOffset(), ALL)
    began = time.monotonic()
    assert reader.latestOffset(place, ALL) == place
    assert time.monotonic() - began >= 0.09


def test_a_poll_over_a_store_alone_lists_it_once(log: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    log.archive()
    reader = stream_reader(f"fragments:{log.store}")
    start = reader.initialOffset()
    listings: list[str] = []

    def listed(url: str, prefix: str, age_s_max: float) -> Any:
        listings.append(prefix)
        return listed_by_store(url, prefix, age_s_max)

    listed_by_store = clusters.listed
    monkeypatch.setattr(clusters, "listed", listed)
    place = reader.latestOffset(start, ALL)
    assert listings == [""]
    assert reader.latestOffset(place, ALL) == place  # after a wait
    assert listings == ["", ""]


def test_a_hole_is_waited_for_and_told_once(log: Filled, caplog: pytest.LogCaptureFixture) -> None:
    log.append(100)
    log.archive(fragment_bytes=500)
    first, second, third, *rest = sorted(Path(log.store).rglob("*.parquet"))
    assert rest
    aside = {place: place.rename(place.with_suffix(".aside")) for place in (second, third)}
    reader = stream_reader(f"fragments:{log.store}")
    start = reader.initialOffset()
    held = int(first.name.split("-")[1])
    place = start
    for _ in range(3):
        place = reader.latestOffset(place, ALL)
        assert places(place) == {"0": held + 1}
    assert len(caplog.messages) == 1
    assert f"holds {held + 1} to " in caplog.messages[0]
    aside[second].rename(second)
    for _ in range(3):
        place = reader.latestOffset(place, ALL)
    assert len(caplog.messages) == 2  # what is left of it
    aside[third].rename(third)
    assert places(reader.latestOffset(place, ALL)) == {"0": 110}
    assert len(caplog.messages) == 2


def test_what_comes_ends_the_wait(log: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamreader, "_WAIT_S", 20.0)
    reader = stream_reader(log.address)
    place = reader.latestOffset(reader.initialOffset(), ALL)
    later = threading.Timer(0.1, lambda: log.append(1, 1))
    later.start()
    began = time.monotonic()
    assert places(reader.latestOffset(place, ALL)) == {"0": 10, "1": 5}
    assert time.monotonic() - began < 10
    later.join()


# ------------------------------------------------------------------ what is refused


def test_a_checkpoint_of_a_longer_log_is_refused(log: Filled) -> None:
    with pytest.raises(BeyondLog, match=r"read up to 10, and the log ends at 9: it is another log"):
        stream_reader(log.address).latestOffset({"0": 11, "1": 0}, ALL)


def test_a_planned_micro_batch_that_the_log_does_not_reach_is_refused(log: Filled) -> None:
    with pytest.raises(BeyondLog, match=r"partition 0 ends before 12, and the query reads from there up to 14"):
        stream_reader(log.address).partitions({"0": 12}, {"0": 15})


def test_a_checkpoint_of_partitions_that_are_not_read_any_more_is_refused(log: Filled) -> None:
    with pytest.raises(BadOption, match="the checkpoint has read partition 1"):
        stream_reader(log.address, partitions="0").latestOffset({"0": 0, "1": 2}, ALL)


@pytest.mark.parametrize("options", [{"endingTransactions": '{"0": 5}'}, {"endingTimestamp": "2026-01-01T00:00:00Z"}])
def test_a_stream_with_an_end_is_refused(log: Filled, options: Any) -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        stream_reader(log.address, **options)


def test_a_request_without_an_answer_ends_the_query_within_its_timeout(
    log: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that fails is no answer: the request behind it has the query's own deadline."""
    reader = stream_reader(log.address, timeout="0.2")
    place = reader.latestOffset(reader.initialOffset(), ALL)

    def unanswered(*_: Any, timeout: float, **__: Any) -> Any:
        raise DeadlineExceeded(f"asked for {timeout:g} s")

    monkeypatch.setattr(Log, "wait_committed", unanswered)
    assert reader.latestOffset(place, ALL) == place
    monkeypatch.setattr(Log, "high_water_marks", unanswered)
    with pytest.raises(DeadlineExceeded, match=r"asked for 0\.2 s"):
        reader.latestOffset(place, ALL)


def test_a_wait_without_an_answer_returns_only_partitions_that_grew(
    log: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: Any, **__: Any) -> Any:
        raise DeadlineExceeded("no answer")

    monkeypatch.setattr(Log, "wait_committed", unanswered)
    history = QueryHistory(read_options({"cluster": log.address}))
    assert history.wait_beyond({0: 10, 1: 3}, 0.1) == {1: 4}
    assert history.wait_beyond({0: 10, 1: 4}, 0.1) == {}


# ------------------------------------------------------------------ admission

marks = st.dictionaries(st.integers(0, 30), st.tuples(st.integers(0, 50), st.integers(0, 10**12)), min_size=1)


@given(marks, st.none() | st.integers(1, 10**6))
def test_admission_takes_all_that_it_may_and_lets_nobody_wait(held: dict[int, Any], rows_max: int | None) -> None:
    starts = {partition: start for partition, (start, _) in held.items()}
    ends = {partition: start + more for partition, (start, more) in held.items()}
    reached = admitted(starts, ends, rows_max)
    taken = {partition: reached[partition] - starts[partition] for partition in reached}
    waiting = {partition: ends[partition] - starts[partition] for partition in ends}
    total = sum(waiting.values())
    assert reached.keys() == ends.keys()
    assert all(0 <= taken[partition] <= waiting[partition] for partition in ends)
    assert sum(taken.values()) == (total if rows_max is None else min(total, rows_max))
    if rows_max is None or rows_max >= sum(more > 0 for more in waiting.values()):
        assert all(taken[partition] for partition in ends if waiting[partition])


def test_admission_is_in_proportion_to_what_waits() -> None:
    assert admitted({0: 0, 1: 100}, {0: 900, 1: 200}, 100) == {0: 90, 1: 110}
    assert admitted({0: 0, 1: 0, 2: 0}, {0: 1000, 1: 1000, 2: 1}, 10) == {0: 5, 1: 4, 2: 1}


def test_a_micro_batch_smaller_than_the_partitions_takes_from_those_with_most() -> None:
    assert admitted({0: 0, 1: 0, 2: 0}, {0: 1, 1: 2, 2: 3}, 1) == {0: 0, 1: 0, 2: 1}


def test_the_ends_of_all_partitions_come_with_one_call(log: Filled) -> None:
    assert log.log.high_water_marks([1, 0], timeout=10) == {1: 3, 0: 9}
