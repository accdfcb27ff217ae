"""A store of fragments without its cluster, in which some partitions are those of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from polonaise.errors import BadOption, WrongClusterKey
from polonaise.fragments.store import open_store
from polonaise.fragments.topicrecord import record_topics
from polonaise.pipelines.source import open_source
from polonaise.spark.options import read_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.topics import ClusterTopics
from rigs.spark import Filled, columns, filled, stream_reader

IDS = columns(partition=pa.int32(), transaction_id=pa.int64())
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
