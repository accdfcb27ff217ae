"""The source and the sink where Spark's workers are other processes: a standalone cluster, a Spark Connect server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.programs import output_of
from rigs.spark import Filled, filled
from rigs.sparkprocesses import connect_server, path_without_java, run, standalone_cluster

pytestmark = pytest.mark.slow

COUNT = 3_000
JSON = b'{"id": %d}'


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Filled]:
    """Hosted here: JSON in partition 0, the first 2,000 in fragments too; partitions 1 and 2 are empty."""
    with filled(tmp_path, 0, 0, 0) as made:
        made.append(2_000, body=JSON)
        made.archive(fragment_bytes=50_000)
        made.append(COUNT - 2_000, body=JSON)
        yield made


def bodies(log: Filled, partition: int) -> list[bytes]:
    return [tx.data for tx in log.log.read(partition)]


READ_AND_WRITE = """
import sys
from polonaise.spark.sessions import session

address, cluster, fragments, checkpoint = sys.argv[1:]
spark = session(address, conf={
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
} if address.startswith("spark:") else {"spark.sql.shuffle.partitions": "2"})

said = dict(cluster=cluster, partitions="0", decoder="json", decoderSchema="id long", minPartitions=4)
for options in (said, {**said, "fragments": fragments}):
    read = spark.read.format("polonaise").options(**options).load()
    print("read", read.count(), *read.selectExpr("count(distinct transaction_id)", "sum(id)").first())

def where(batches):
    import os, pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"where": [os.getcwd()]})

print("in", *{row[0] for row in read.select("id").mapInArrow(where, "where string").collect()})

rows = spark.range(0, 1_000, 1, 2).selectExpr("cast(id as string) as data", "1 as partition")
for _ in range(2):
    rows.write.format("polonaise").mode("append").options(
        cluster=cluster, txnAppId="load", txnVersion="1", inlineBytesMax="1k").save()

stream = spark.readStream.format("polonaise").options(cluster=cluster, partitions="0").load()
query = stream.selectExpr("data", "2 as partition").writeStream.format("polonaise").options(
    cluster=cluster, checkpointLocation=checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(120)
"""


def check_reads_and_writes(address: str, log: Filled, directory: Path, **environment: str) -> str:
    """Both ways through, batch and stream. Returns where the tasks ran."""
    script = READ_AND_WRITE.replace(
        "sys.argv[1:]", repr([address, log.address, log.store, str(directory / "checkpoint")])
    )
    said = output_of(run(script, directory, **environment)).splitlines()
    *read, ran = [line for line in said if line.startswith(("read ", "in "))]
    assert read == [f"read {COUNT} {COUNT} {sum(range(COUNT))}"] * 2
    assert sorted(bodies(log, 1)) == sorted(b"%d" % number for number in range(1_000)), "once, though written twice"
    assert sorted(bodies(log, 2)) == sorted(JSON % number for number in range(COUNT))
    return ran.removeprefix("in ")


def test_a_standalone_cluster_reads_and_writes_the_log(tmp_path: Path, log: Filled) -> None:
    with standalone_cluster(tmp_path) as master:
        where = check_reads_and_writes(master, log, tmp_path)
    assert where.startswith(f"{tmp_path}/executors/app-"), "in an executor that the worker has started"


# ------------------------------------------------------------------ Spark Connect


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def test_a_spark_connect_server_reads_and_writes_the_log(tmp_path: Path, log: Filled, connect: str) -> None:
    where = check_reads_and_writes(connect, log, tmp_path, PATH=path_without_java(tmp_path / "bin"))
    assert "/local/spark-" in where, "in the server, not in the client"


REMOTE = """
from polonaise.spark.sessions import session

spark = session("{address}", conf={{"spark.sql.shuffle.partitions": "3"}})
print(type(spark).__module__, spark.range(5).count(), spark.conf.get("spark.sql.shuffle.partitions"))
assert session().range(2).count() == 2, "the session that is there"
spark.read.format("polonaise").schema("data binary").load()
"""


def test_a_spark_connect_server_is_spoken_to_without_a_java(tmp_path: Path, connect: str) -> None:
    script = REMOTE.format(address=connect)
    done = run(script, tmp_path, PATH=path_without_java(tmp_path / "bin"), JAVA_HOME="/nowhere")
    assert output_of(done).split() == ["pyspark.sql.connect.session", "5", "3"]
