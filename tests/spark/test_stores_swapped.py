"""A query over a store goes on with the log that it began with, or ends; and stores with topics."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import polonaise.spark
from polonaise.errors import BadOption, NotFound, PolonaiseError, StoreUnavailable, WrongClusterKey
from polonaise.fragments.store import open_store
from polonaise.fragments.topicrecord import record_topics
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.snapshots import Snapshot
from polonaise.pipelines.source import open_source
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark import streamreader
from polonaise.spark.options import read_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.terms import ClusterTopics
from rigs.spark import Filled, batch_reader, columns, filled, forget, stream_reader, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ALL = ReadAllAvailable()
IDS = columns(partition=pa.int32(), transaction_id=pa.int64())


class Stores(NamedTuple):
    """Stores of two logs: a query reads the first one's directory, in whose place the other one's is put."""

    own: Filled
    other: Filled

    @property
    def address(self) -> str:
        return f"fragments:{self.own.store}"

    @property
    def _aside(self) -> Path:
        return Path(f"{self.own.store}.aside")

    def swap(self) -> None:
        self.take_away()
        Path(self.other.store).rename(self.own.store)

    def swap_back(self) -> None:
        Path(self.own.store).rename(self.other.store)
        self._aside.rename(self.own.store)

    def take_away(self) -> None:
        Path(self.own.store).rename(self._aside)

    def take_away_leaving_a_mount_point(self) -> None:
        self.take_away()
        Path(self.own.store).mkdir()

    def put_back(self) -> None:
        shutil.rmtree(self.own.store, ignore_errors=True)
        self._aside.rename(self.own.store)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    monkeypatch.setattr(streamreader, "_WAIT_S", 0.1)
    with filled(tmp_path / "own", 10) as own, filled(tmp_path / "other", 20) as other:
        own.archive()
        other.archive()
        yield Stores(own, other)
    forget()


@pytest.mark.slow
def test_a_stream_does_not_go_on_with_the_store_of_another_log(stores: Stores) -> None:
    reader = stream_reader(stores.address, IDS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    stores.swap()
    with pytest.raises(WrongClusterKey, match=r"is another log, with the key .* needs a new checkpoint"):
        reader.latestOffset(end, ALL)
    with pytest.raises(WrongClusterKey, match="is another log"):
        reader.partitions(start, end)
    stores.swap_back()
    assert reader.latestOffset(end, ALL) == end
    assert table(reader, list(reader.partitions(start, end))).num_rows == 10


@pytest.mark.slow
def test_no_offset_is_of_two_logs_whenever_the_store_is_swapped(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream_reader(stores.address, IDS)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    monkeypatch.setattr(time, "sleep", lambda _: stores.swap())
    with pytest.raises(WrongClusterKey, match="is another log"):
        reader.latestOffset(end, ALL)


@pytest.mark.slow
def test_the_key_of_a_store_is_of_the_same_moment_as_its_ends(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    key = stores.own.log.log_key.hex()
    history = QueryHistory(read_options({"cluster": stores.address, "logKey": key}))
    ends = history.ends()
    monkeypatch.setattr(time, "sleep", lambda _: stores.swap())
    with pytest.raises(WrongClusterKey, match="is another log"):
        history.wait_beyond(ends, 0.1)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_name_its_log_is_of_the_one_with_which_the_query_began(stores: Stores) -> None:
    reader = stream_reader(stores.address, IDS)
    end = reader.latestOffset({"0": 0}, ALL)
    stores.swap()
    with pytest.raises(WrongClusterKey, match="is another log"):
        reader.partitions({"0": 0}, end)


@pytest.mark.slow
def test_a_task_does_not_read_the_store_of_another_log(stores: Stores) -> None:
    reader = batch_reader(stores.address, IDS)
    planned = list(reader.partitions())
    stores.swap()
    with pytest.raises(NotFound, match=r"is not in .* any more: mount what belongs there"):
        table(reader, planned)


@pytest.mark.slow
def test_a_poll_reads_no_footer_again(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream_reader(stores.address, IDS)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    monkeypatch.setattr("polonaise.spark.fragmentfiles.footer_from", None)
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.slow
@pytest.mark.parametrize("away", [Stores.take_away, Stores.take_away_leaving_a_mount_point])
@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_away_is_not_one_whose_address_is_wrong(stores: Stores, away: Any, fails: bool) -> None:
    reader = stream_reader(stores.address, IDS, failOnDataLoss=fails)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = list(reader.partitions(start, end))
    away(stores)
    with pytest.raises(StoreUnavailable, match="mount what belongs there"):
        reader.latestOffset(end, ALL)
    with pytest.raises(StoreUnavailable, match="mount what belongs there"):
        reader.partitions(start, end)
    with pytest.raises(PolonaiseError, match="mount what belongs there"):
        table(reader, planned)
    stores.put_back()
    assert reader.latestOffset(end, ALL) == end
    assert table(reader, planned).num_rows == 10


@pytest.mark.slow
def test_a_store_that_was_never_there_is_told_of_its_address(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="mount what belongs there, or correct the address"):
        stream_reader(f"fragments:{tmp_path / 'no'}", IDS).initialOffset()
    with pytest.raises(BadOption, match="holds no fragments: mount what belongs there, or correct its address"):
        stream_reader(f"fragments:{tmp_path}", IDS).initialOffset()


@pytest.mark.slow
def test_a_view_follows_no_other_log(stores: Stores) -> None:
    view: Any = TableView("ids", "SELECT transaction_id FROM {log}", key=["transaction_id"])
    no_session: Any = None
    with open_source(stores.address) as source:
        log = ViewSource(no_session, source, view, UndecodablePolicy.FAIL)
        marks = log.marks()
        assert marks == {0: 9}
        stores.swap()
        for look in (log.marks, lambda: log.check_not_ahead(marks), lambda: log.rows({}, marks)):
            with pytest.raises(WrongClusterKey, match="is another log"):
                look()
        stores.swap_back()
        stores.take_away_leaving_a_mount_point()
        with pytest.raises(StoreUnavailable, match="mount what belongs there"):
            log.marks()


@pytest.mark.slow
def test_a_report_reads_one_log(stores: Stores) -> None:
    no_session: Any = None
    snapshot = Snapshot(no_session, stores.address)
    stores.swap()
    with pytest.raises(WrongClusterKey, match="is another log"):
        snapshot.read()


@pytest.mark.slow
def test_a_frame_that_is_planned_later_is_of_the_log_with_which_it_was_made(
    spark: SparkSession, stores: Stores
) -> None:
    frame = polonaise.spark.read(spark, stores.address, headers="0,1,2")
    stores.swap()
    with pytest.raises(PySparkException, match="is another log"):
        frame.count()


@pytest.mark.slow
def test_the_key_of_a_log_may_be_said(stores: Stores) -> None:
    own, other = (log.log.log_key.hex() for log in stores)
    for address in (stores.own.address, stores.address):
        assert len(list(batch_reader(address, IDS, logKey=own).partitions())) == 1
        with pytest.raises(WrongClusterKey, match=f"with the key {own}, than .* with the key {other}"):
            batch_reader(address, IDS, logKey=other).partitions()
    with pytest.raises(WrongClusterKey, match="than the option logKey says"):
        stream_reader(stores.address, IDS, logKey=other).latestOffset({"0": 0, "log": own}, ALL)
    for wrong in ("00", "no key"):
        with pytest.raises(BadOption, match="a log's key has 32 hexadecimal digits"):
            read_options({"cluster": stores.address, "logKey": wrong})


OTHER = bytes(range(16)).hex()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Filled]:
    """A log whose partition 1 is, by the store's record, partition 0 of the topic payments."""
    with filled(tmp_path, 3, 2) as log:
        log.archive(0)
        log.archive(1)
        _record(log, 1)
        yield log


def _record(log: Filled, own: int) -> None:
    topics = ClusterTopics(own, {"payments": tuple(range(own, 2))})
    asyncio.run(record_topics(open_store(log.store), log.log.cluster_key, topics))


def partitions(log: Filled, **options: str) -> list[int]:
    return QueryHistory(read_options({"cluster": f"fragments:{log.store}", **options})).partitions


def test_a_store_is_read_without_its_topics_unless_their_ids_are_named(log: Filled) -> None:
    assert partitions(log) == partitions(log, partitions="all") == [0]
    assert partitions(log, partitions="1") == [1]
    assert partitions(log, partitions="0-1") == [0, 1]


def test_a_store_with_nothing_but_topics_says_which_ids_there_are(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 2) as log:
        log.archive(1)
        _record(log, 1)
        with pytest.raises(BadOption, match=r"of topics only.*partitions=1"):
            partitions(log)
        assert partitions(log, partitions="1") == [1]
        with open_source(f"fragments:{log.store}") as source:
            assert source.cluster == log.log.cluster_key.hex()


def test_a_checkpoint_of_another_log_is_refused_by_a_store_too(log: Filled) -> None:
    address = f"fragments:{log.store}"
    reader = stream_reader(address, IDS)
    start = reader.initialOffset()
    assert start == {"0": 0, "log": log.log.cluster_key.hex()}
    assert reader.latestOffset(start, ReadAllAvailable())["0"] == 3
    other = {**start, "log": OTHER}
    with pytest.raises(WrongClusterKey, match="another log"):
        stream_reader(address, IDS).latestOffset(other, ReadAllAvailable())
    with pytest.raises(WrongClusterKey, match="another log"):
        stream_reader(address, IDS).partitions(other, {**other, "0": 3})
