"""Spark reads and writes a cluster by the addresses of its servers: no process of Spark's has the coordinator's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import polonaise.blocking
from polonaise.node.local import LocalCluster
from rigs.cluster import running

pytestmark = pytest.mark.slow

COUNT = 500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster", partitions=2) as cluster:
        yield cluster


def by_servers(cluster: LocalCluster) -> str:
    assert cluster.server is not None
    # The first one does not exist: a list may be out of date.
    return f"polonaise://127.0.0.1:1,{cluster.server.address}"


def test_executors_without_a_coordinator_read_and_write_the_log(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, connections_closed: None
) -> None:
    address = by_servers(cluster)
    rows = spark.range(0, COUNT, 1, 3).selectExpr("cast(id as string) as data", "cast(id % 2 as int) as partition")
    rows.write.format("polonaise").mode("append").options(
        cluster=address, txnAppId="load", txnVersion="1", staging=str(tmp_path / "staging")
    ).save()
    read = spark.read.format("polonaise").options(cluster=address, minPartitions="4").load()
    assert read.rdd.getNumPartitions() >= 2
    bodies = sorted(int(row["data"]) for row in read.select("data").collect())
    assert bodies == list(range(COUNT))
    with polonaise.blocking.connect(cluster.coordinator) as log:
        assert sum(1 for partition in range(2) for _ in log.read(partition)) == COUNT


def test_a_write_by_servers_says_that_rows_need_a_staging_store(
    spark: SparkSession, cluster: LocalCluster, connections_closed: None
) -> None:
    rows = spark.range(1).selectExpr("cast(id as string) as data", "0 as partition")
    with pytest.raises(PySparkException, match="option staging"):
        rows.write.format("polonaise").mode("append").options(cluster=by_servers(cluster)).save()
