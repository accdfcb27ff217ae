"""A log whose beginning is in fragments only: who knows of them reads it, others are told before a job starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import polonaise
import polonaise.spark
from polonaise.admin.trimming import trim
from polonaise.errors import HistoryTrimmed
from polonaise.fragments.store import open_store
from polonaise.node import embedded
from rigs.spark import batch_reader, forget, ids, stream_reader, table
from rigs.trimmed import Cluster, archived, fill, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("connections_closed")]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
ALL = [(0, id) for id in range(200)]


@dataclass
class Trimmed:
    """200 transactions, all of them archived, the first 100 and more trimmed."""

    cluster: Cluster
    store: str
    first: int
    """What the storage node still holds begins here."""
    times_us: list[int]
    """When each transaction was committed."""

    @property
    def address(self) -> str:
        return self.cluster.address


@pytest.fixture
async def trimmed(tmp_path: Path) -> AsyncIterator[Trimmed]:
    """Its server knows of the fragments."""
    store = open_store(str(tmp_path / "store"))
    async with running(tmp_path) as cluster:
        async with cluster.served(store) as log:
            await fill(log, 200)
            times_us = [tx.commit_time_us async for tx in log.read(0)]
            await archived(log, store)
            first = (await trim(log, store, 0, before=150)).first
        assert first > 100
        yield Trimmed(cluster, str(tmp_path / "store"), first, times_us)
        await asyncio.to_thread(forget)


@pytest.fixture
async def ignorant(trimmed: Trimmed) -> Trimmed:
    """Its server was started again, without the fragments."""
    await trimmed.cluster.start_server(None)
    return trimmed


async def apart(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Beside the cluster, which lives in the event loop of the test."""
    return await asyncio.wait_for(asyncio.to_thread(call, *arguments, **options), 30)


# ------------------------------------------------------------------ whoever knows of the fragments


async def test_through_servers_that_know_of_the_fragments_all_is_read(trimmed: Trimmed) -> None:
    assert await apart(ids, trimmed.address) == ALL
    assert await apart(ids, trimmed.address, startingTransactions='{"0": 7}', minPartitions=5) == ALL[7:]


async def test_with_a_fragment_store_all_is_read_whatever_the_servers_know(ignorant: Trimmed) -> None:
    assert await apart(ids, ignorant.address, fragments=ignorant.store) == ALL


async def test_with_a_fragment_store_times_are_found_wherever_they_are(ignorant: Trimmed) -> None:
    times_us = ignorant.times_us
    for place in (0, 57, ignorant.first - 1, ignorant.first, 199):
        since = f"{times_us[place] // 1000}"
        expected = next(id for id, time_us in enumerate(times_us) if time_us >= 1000 * int(since))
        assert await apart(ids, ignorant.address, fragments=ignorant.store, startingTimestamp=since) == ALL[expected:]
    assert await apart(ids, ignorant.address, fragments=ignorant.store, startingTimestamp="2999-01-01T00:00:00Z") == []


async def test_a_stream_reads_it_through_servers_and_by_the_option(trimmed: Trimmed) -> None:
    assert await apart(streamed, trimmed.address) == ALL
    await apart(forget)
    await trimmed.cluster.start_server(None)
    assert await apart(streamed, trimmed.address, fragments=trimmed.store) == ALL


def streamed(cluster: str, **options: object) -> list[tuple[int, int]]:
    """All that a stream reads in one micro-batch."""
    reader = stream_reader(cluster, **options)
    start = reader.initialOffset()
    found = table(reader, list(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))))
    return list(zip(found["partition"].to_pylist(), found["transaction_id"].to_pylist(), strict=True))


async def test_an_embedded_log_that_has_a_store_is_read_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SEGMENT_BYTES_MAX", 2_000)
    store = str(tmp_path / "store")
    address = f"embedded:{tmp_path / 'log'}?fragments={quote(store, safe='')}"
    async with polonaise.connect(address) as log:
        await fill(log, 200)
        await archived(log, open_store(store))
        assert (await trim(log, open_store(store), 0, before=150)).first > 100
        assert await apart(ids, address) == ALL
        await apart(forget)


# ------------------------------------------------------------------ whoever does not


TOLD = r"ids below {first} were trimmed from the storage node.*by \.option\('fragments', its address\)"


async def test_a_batch_query_is_told_when_it_is_planned(ignorant: Trimmed) -> None:
    reader = batch_reader(ignorant.address)
    with pytest.raises(HistoryTrimmed, match=TOLD.format(first=ignorant.first)):
        await apart(reader.partitions)
    tail = ALL[ignorant.first :]
    assert await apart(ids, ignorant.address, startingTransactions=f'{{"0": {ignorant.first}}}') == tail


async def test_times_that_may_be_in_what_is_trimmed_are_refused(ignorant: Trimmed) -> None:
    since = f"{ignorant.times_us[20] // 1000}"
    with pytest.raises(HistoryTrimmed, match=r"by \.option"):
        await apart(batch_reader(ignorant.address, startingTimestamp=since).partitions)


async def test_a_trimmed_beginning_is_an_error_even_where_losses_may_be_ignored(ignorant: Trimmed) -> None:
    with pytest.raises(HistoryTrimmed):
        await apart(batch_reader(ignorant.address, failOnDataLoss=False).partitions)


async def test_a_store_that_lacks_the_range_is_named(ignorant: Trimmed, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(HistoryTrimmed, match=rf"names {other}, which does not hold them either"):
        await apart(batch_reader(ignorant.address, fragments=str(other)).partitions)


async def test_in_spark_the_error_says_what_to_do_and_no_task_runs(ignorant: Trimmed, spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    for kind in (spark.read, spark.readStream):
        frame = kind.format("polonaise").option("cluster", ignorant.address).load()
        group = f"trimmed {type(kind).__name__}"

        def run(frame: Any = frame, group: str = group) -> None:
            spark.sparkContext.setJobGroup(group, group)
            if frame.isStreaming:
                frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)
            else:
                frame.collect()

        with pytest.raises(PySparkException, match=r"\[history_trimmed\].*\.option\('fragments', its address\)"):
            await apart(run)
        assert tracker.getJobIdsForGroup(group) == []
        named = kind.format("polonaise").options(cluster=ignorant.address, fragments=ignorant.store).load()
        if not named.isStreaming:
            assert await apart(named.count) == 200
