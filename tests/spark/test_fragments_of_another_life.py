"""Queries over a log and fragments of another life of it: refused, never rows of the life that was given up."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.errors import FragmentsAhead, HistoryTrimmed, LogForked
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.store import open_store
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.snapshots import Snapshot
from polonaise.pipelines.source import open_source
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark import query, queryhistory
from rigs.spark import BATCH, Filled, filled, forget, rows, stream_reader, table

ALL = ReadAllAvailable()
EACH = 50
"""The transactions of each fragment."""
COMMON, FIRST, SECOND = 2 * EACH, 4 * EACH, 5 * EACH
"""Where the lives part; and the ends of the one that was archived and given up, and of the one that is the log now."""
FORKED = r"the fragments in .*store reach up to %d.*, and the log has other transactions there: "
NO_SESSION: Any = None


class Lives:
    """A log of two partitions, a copy of it, and a store of both: partition 0 goes on alone after the copy was made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address, self.store = f"embedded:{directory / 'log'}", str(directory / "store")
        with filled(directory, 0, COMMON) as log:
            log.store = self.store
            log.archive(1, fragment_bytes=1_000_000)
            self.archive(log, COMMON, b"both")
        shutil.copytree(directory / "log", directory / "copy")
        with self.opened() as log:
            self.archive(log, FIRST - COMMON, b"first")

    @contextmanager
    def opened(self) -> Iterator[Filled]:
        with polonaise.blocking.connect(f"{self.address}?partitions=2") as log:
            opened = Filled(self.directory, log)
            opened.store = self.store
            yield opened

    def archive(self, log: Filled, count: int, body: bytes) -> None:
        for _ in range(count // EACH):
            log.append(EACH, body=body)
            log.archive(fragment_bytes=1_000_000)

    def put_back(self, end: int) -> None:
        """Put the copy back, which goes on differently, up to the id before `end`."""
        forget()
        shutil.rmtree(self.directory / "log")
        shutil.copytree(self.directory / "copy", self.directory / "log")
        with self.opened() as log:
            if end > COMMON:
                log.append(end - COMMON, body=b"second")
            log.append(BATCH, 1)

    def read(self, cluster: str = "", **given: Any) -> Counter[bytes]:
        """Read partition 0, and return how many rows there are with each body."""
        options: dict[str, object] = {"fragments": self.store, "partitions": 0, **given}
        return Counter(each["data"] for each in rows(cluster or self.address, **options))

    @property
    def replica(self) -> str:
        return f"storage:{self.directory / 'log' / 'storage-0'}"


def at(id: int) -> str:
    return f'{{"0": {id}}}'


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    yield Lives(tmp_path)
    forget()


@pytest.fixture
def put_back(lives: Lives) -> Lives:
    lives.put_back(SECOND)
    return lives


def test_a_log_and_fragments_of_another_life_of_it_are_not_read_together(put_back: Lives) -> None:
    forked = FORKED % (FIRST - 1)
    ranges: list[dict[str, Any]] = [
        {}, {"failOnDataLoss": False}, {"endingTransactions": at(FIRST)}, {"startingTransactions": at(FIRST - 5)},
        {"startingTransactions": at(FIRST)}, {"startingTransactions": at(FIRST + 5)},
    ]  # fmt: skip
    for each in ranges:
        with pytest.raises(LogForked, match=forked):
            put_back.read(**each)
    with pytest.raises(LogForked, match=FORKED % (COMMON + EACH - 1)):
        put_back.read(endingTransactions=at(COMMON + EACH - 3))
    # What both lives have is the log's, and so is what is read without the fragments.
    assert put_back.read(endingTransactions=at(COMMON)) == {b"both": COMMON}
    assert put_back.read(endingTransactions=at(COMMON - 5)) == {b"both": COMMON - 5}
    assert len(rows(put_back.address, fragments=put_back.store, partitions=1)) == COMMON + BATCH
    only_log = rows(put_back.address, partitions=0)
    assert Counter(each["data"] for each in only_log) == {b"both": COMMON, b"second": SECOND - COMMON}
    for where in (None, f"transaction_id < {FIRST}", f"transaction_id >= {FIRST}", "partition = 0 and header = 1"):
        with pytest.raises(LogForked, match=forked):
            query.read(NO_SESSION, put_back.address, where=where, fragments=put_back.store)


@pytest.mark.slow
@pytest.mark.parametrize("end", [COMMON, COMMON + 5, FIRST - 1])
def test_fragments_that_reach_above_the_end_of_the_log_are_refused(lives: Lives, end: int) -> None:
    lives.put_back(end)
    assert lives.read(endingTransactions=at(COMMON)) == {b"both": COMMON}
    if end > COMMON:
        with pytest.raises(FragmentsAhead, match=r"the fragments in .*store reach up to .* the log ends before that"):
            lives.read()


@pytest.mark.slow
def test_fragments_that_end_where_the_log_does_are_compared_with_its_last_batch(lives: Lives) -> None:
    assert lives.read() == {b"both": COMMON, b"first": FIRST - COMMON}
    lives.put_back(FIRST)
    with pytest.raises(LogForked, match=FORKED % (FIRST - 1)):
        lives.read()


def test_a_stream_ends_where_it_would_read_of_the_other_life(put_back: Lives) -> None:
    stream = stream_reader(put_back.address, fragments=put_back.store, partitions=0)
    start = stream.initialOffset()
    with pytest.raises(LogForked, match=FORKED % (FIRST - 1)):
        stream.partitions(start, stream.latestOffset(start, ALL))
    end = stream.latestOffset(start, ReadMaxRows(COMMON))
    assert table(stream, list(stream.partitions(start, end))).num_rows == COMMON
    with pytest.raises(LogForked, match=FORKED % (COMMON + EACH - 1)):
        stream.partitions(end, stream.latestOffset(end, ReadMaxRows(10)))


@pytest.mark.slow
@pytest.mark.parametrize("reached", [COMMON + 5, FIRST, FIRST + 5])
def test_a_stream_that_has_read_of_the_other_life_does_not_go_on_in_the_log(lives: Lives, reached: int) -> None:
    """The log is put back under a stream that read the fragments while they were of it, and perhaps beyond them."""
    with lives.opened() as log:
        log.append(BATCH, body=b"first")
    stream = stream_reader(lives.address, fragments=lives.store, partitions=0)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(reached))
    assert end["0"] == reached
    assert table(stream, list(stream.partitions(start, end))).num_rows == reached
    lives.put_back(SECOND)
    with pytest.raises(LogForked, match="other transactions there"):
        stream.partitions(end, stream.latestOffset(end, ALL))


@pytest.mark.slow
def test_a_stream_compares_what_its_micro_batches_read_now_and_then(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lives.opened() as log:
        log.append(BATCH, body=b"first")
    readings: list[int] = []
    read_batches = Log.read_batches

    def counted(log: Log, *arguments: Any, **named: Any) -> Any:
        readings.append(named["after"])
        return read_batches(log, *arguments, **named)

    monkeypatch.setattr(Log, "read_batches", counted)
    stream = stream_reader(lives.address, fragments=lives.store, partitions=0)
    offsets = [stream.initialOffset()]
    while offsets[-1]["0"] < FIRST + BATCH:
        offsets.append(stream.latestOffset(offsets[-1], ReadMaxRows(5)))
        stream.partitions(*offsets[-2:])
    cold, hot = FIRST // EACH, BATCH // 5
    # Of each fragment once; of what the log alone has, the first batch of each micro-batch, as without fragments.
    assert len(readings) == cold + hot
    monkeypatch.setattr(queryhistory, "_LIST_S", -1.0)
    stream.partitions(*offsets[1:3])
    assert len(readings) == cold + hot + 1


def test_a_trimmed_log_is_compared_with_what_lies_above(put_back: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers have dropped ids, and do not know of any fragments."""
    read_batches, trimmed = Log.read_batches, COMMON

    def refused(log: Log, partition: int, **named: Any) -> Any:
        if named["after"] + 1 < trimmed:
            raise HistoryTrimmed(f"ids below {trimmed} were trimmed")
        return read_batches(log, partition, **named)

    monkeypatch.setattr(Log, "read_batches", refused)
    for ending in (EACH, COMMON):
        assert put_back.read(endingTransactions=at(ending)) == {b"both": ending}
    trimmed = FIRST
    for ending in (EACH, COMMON + 5, FIRST):
        with pytest.raises(LogForked, match=FORKED % (FIRST - 1)):
            put_back.read(endingTransactions=at(ending))
    trimmed = FIRST + 1  # the log does not tell, and holds nothing that can be read beside these fragments
    assert put_back.read(endingTransactions=at(FIRST)) == {b"both": COMMON, b"first": FIRST - COMMON}
    with pytest.raises(HistoryTrimmed):
        put_back.read()


def test_jobs_of_pipelines_refuse_it(put_back: Lives) -> None:
    with pytest.raises(LogForked):
        Snapshot(NO_SESSION, put_back.address, {"fragments": put_back.store, "partitions": "0"}).read()
    declared: Any = TableView("ids", "SELECT transaction_id FROM {log}", key=["transaction_id"])
    with open_source(put_back.address, put_back.store) as source:
        view = ViewSource(NO_SESSION, source, declared, UndecodablePolicy.FAIL)
        with pytest.raises(LogForked):
            view.rows({}, view.marks())


def test_one_replica_and_fragments_of_another_life_of_it_are_not_read_together(put_back: Lives) -> None:
    for ending in (SECOND, FIRST, COMMON + 5):
        with pytest.raises(LogForked, match=r"reach up to .*, and the storage directory .* has other transactions"):
            put_back.read(put_back.replica, endingTransactions=at(ending))
    assert put_back.read(put_back.replica, endingTransactions=at(COMMON)) == {b"both": COMMON}


def test_what_a_replica_has_below_fragments_of_another_life_is_not_read_with_them(put_back: Lives) -> None:
    """Only the replica holds the first ids of the life that was given up, and what is archived above them."""
    store = open_store(put_back.store)
    for name in asyncio.run(fragments_of(store, 0)):
        if COMMON <= name.first < FIRST - EACH:
            asyncio.run(store.delete(name.path))
    for ending in (SECOND, FIRST):
        for cluster in (put_back.replica, put_back.address):
            with pytest.raises(LogForked):
                put_back.read(cluster, endingTransactions=at(ending))
    assert put_back.read(put_back.replica, endingTransactions=at(FIRST - EACH)) == {b"both": COMMON, b"second": EACH}
