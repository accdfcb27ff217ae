"""Topics of a real cluster in Spark, and a cluster that is read and written by the addresses of its servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

import polonaise.blocking
from polonaise.admin.archive import init
from polonaise.admin.opening import opened_coordinator
from polonaise.admin.topics import add_partitions, create_topic
from polonaise.client.protocol.draft import Limits
from polonaise.errors import BadOption, UnknownTopic, WrongClusterKey
from polonaise.fragments.store import open_store
from polonaise.node.local import LocalCluster
from polonaise.spark import clusters, streamreader
from polonaise.spark.options import write_options
from polonaise.spark.protocol.plans import plans_of
from polonaise.spark.publishing import Publication, RealPublicationPort
from polonaise.spark.sink import BatchSink, Sink
from rigs.cluster import running
from rigs.spark import columns, forget, stream_reader, table
from rigs.waiting import block_until

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()
IDS = columns(partition=pa.int32(), transaction_id=pa.int64())
DATA = StructType([StructField("data", BinaryType())])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster", partitions=2) as cluster:
        try:
            yield cluster
        finally:
            forget()


def change(cluster: LocalCluster, how: Any, name: str, partitions: int) -> None:
    async def do() -> None:
        async with opened_coordinator(cluster.coordinator) as (_, coordinator):
            await how(coordinator, name, partitions, 10.0)

    asyncio.run(do())


def addresses(cluster: LocalCluster, topic: str) -> list[str]:
    assert cluster.server is not None
    return [f"polonaise://{cluster.server.address}/{topic}", f"{cluster.coordinator}?topic={topic}"]


def test_a_topic_by_each_address(cluster: LocalCluster) -> None:
    change(cluster, create_topic, "payments", 2)
    for number, address in enumerate(addresses(cluster, "payments")):
        with polonaise.blocking.connect(address) as log:
            assert (log.partition_count, log.topic) == (2, "payments")
            log.append(b"%d" % number, 1).wait()
            assert [tx.data for tx in log.read(1)][-1] == b"%d" % number
            if not number:
                with pytest.raises(BadOption, match="leave topic 'payments' out"):
                    log.call(lambda opened: init(opened, open_store("memory:///")))
    with polonaise.blocking.connect(cluster.coordinator) as log:
        assert [log.high_water_mark(number) for number in range(log.partition_count)] == [-1, -1]
    for address in addresses(cluster, "nope"):
        with pytest.raises(UnknownTopic, match="no topic 'nope'; it has payments"):
            polonaise.blocking.connect(address)


def test_a_stream_reads_partitions_that_a_topic_gets(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamreader, "_WAIT_S", 0.1)
    change(cluster, create_topic, "payments", 1)
    by_server, by_coordinator = addresses(cluster, "payments")
    with polonaise.blocking.connect(by_coordinator) as log:
        log.append(b"a", 0).wait()
        reader = stream_reader(by_server, IDS, startingTransactions="latest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
        change(cluster, add_partitions, "payments", 1)
        block_until(lambda: log.partition_count == 2)
        log.append(b"b", 1).wait()
        ended = threading.Event()
        latest: dict[str, Any] = {}

        def poll() -> None:
            while not ended.is_set() and "1" not in latest:
                latest.update(reader.latestOffset(start, ALL))

        polling = threading.Thread(target=poll)
        polling.start()
        block_until(lambda: latest.get("1") == 1)
        ended.set()
        polling.join()
        found = table(reader, list(reader.partitions(start, latest)))
        assert found["partition"].to_pylist() == [1]
        # A checkpoint of one topic is none of another's, nor of the log's own partitions.
        change(cluster, create_topic, "orders", 2)
        for other in (addresses(cluster, "orders")[0], cluster.coordinator):
            with pytest.raises(WrongClusterKey, match="another log"):
                stream_reader(other, IDS).latestOffset(latest, ALL)


def test_a_half_published_batch_of_a_topic_that_grows_is_neither_lost_nor_doubled(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    change(cluster, create_topic, "payments", 2)
    by_server, by_coordinator = addresses(cluster, "payments")
    options = {"txnAppId": "load", "txnVersion": "1", "staging": str(tmp_path / "staging")}
    bodies = [b"%d" % number for number in range(100)]

    def rows() -> Iterator[pa.RecordBatch]:
        return iter([pa.RecordBatch.from_pydict({"data": pa.array(bodies, pa.binary())})])

    def opened() -> Sink:
        return Sink.opened(write_options({"cluster": by_server, **options}, is_stream=False), DATA, overwrite=False)

    first = opened().stage(rows())
    log = clusters.log_at(by_server)
    plans = plans_of("load", 1, [first.staged], Limits(), log.log_key.hex())
    assert [plan.partition for plan in plans] == [0, 1]
    store = clusters.store_at(str(tmp_path / "staging"), make=True)
    log.call(lambda open: Publication(RealPublicationPort(open, store, 10.0), plans[0], 2, 10.0).run())
    change(cluster, add_partitions, "payments", 1)
    block_until(lambda: log.partition_count == 3)

    again = BatchSink(opened())
    again.commit([again.write(rows())])
    with polonaise.blocking.connect(by_coordinator) as reader:
        there = [[tx.data for tx in reader.read(number)] for number in range(3)]
        assert sorted(body for each in there for body in each) == sorted(bodies)
        assert there[2] == []
        following = BatchSink(
            Sink.opened(
                write_options({"cluster": by_server, **options, "txnVersion": "2"}, is_stream=False), DATA,
                overwrite=False,
            )
        )  # fmt: skip
        following.commit([following.write(rows())])
        assert reader.high_water_mark(2) >= 0, "the next batch goes to all partitions"


COUNT = 500


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster", partitions=2) as served:
        yield served


def by_servers(served: LocalCluster) -> str:
    assert served.server is not None
    # The first one does not exist: a list may be out of date.
    return f"polonaise://127.0.0.1:1,{served.server.address}"


def test_executors_without_a_coordinator_read_and_write_the_log(
    spark: SparkSession, served: LocalCluster, tmp_path: Path, connections_closed: None
) -> None:
    address = by_servers(served)
    rows = spark.range(0, COUNT, 1, 3).selectExpr("cast(id as string) as data", "cast(id % 2 as int) as partition")
    rows.write.format("polonaise").mode("append").options(
        cluster=address, txnAppId="load", txnVersion="1", staging=str(tmp_path / "staging")
    ).save()
    read = spark.read.format("polonaise").options(cluster=address, minPartitions="4").load()
    assert read.rdd.getNumPartitions() >= 2
    bodies = sorted(int(row["data"]) for row in read.select("data").collect())
    assert bodies == list(range(COUNT))
    with polonaise.blocking.connect(served.coordinator) as log:
        assert sum(1 for partition in range(2) for _ in log.read(partition)) == COUNT


def test_a_write_by_servers_says_that_rows_need_a_staging_store(
    spark: SparkSession, served: LocalCluster, connections_closed: None
) -> None:
    rows = spark.range(1).selectExpr("cast(id as string) as data", "0 as partition")
    with pytest.raises(PySparkException, match="option staging"):
        rows.write.format("polonaise").mode("append").options(cluster=by_servers(served)).save()
