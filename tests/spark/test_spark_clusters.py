"""Spark's workers as other processes, and clusters by their servers, with topics and TLS."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polonaise.errors import BadOption
from polonaise.host.tls import TlsFiles
from polonaise.spark.options import read_options, write_options
from polonaise.spark.sessions import _settings
from rigs.cluster import running
from rigs.programs import output_of
from rigs.spark import Filled, filled
from rigs.sparkprocesses import connect_server, path_without_java, run, standalone_cluster
from rigs.tls import Authority

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


@pytest.mark.exhaustive("polonaise.spark", of="Sparks elsewhere")
@pytest.mark.slow
def test_a_standalone_cluster_reads_and_writes_the_log(tmp_path: Path, log: Filled) -> None:
    with standalone_cluster(tmp_path) as master:
        where = check_reads_and_writes(master, log, tmp_path)
    assert where.startswith(f"{tmp_path}/executors/app-"), "in an executor that the worker has started"


# ------------------------------------------------------------------ Spark Connect


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.mark.exhaustive("polonaise.spark", of="Sparks elsewhere")
@pytest.mark.slow
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


@pytest.mark.exhaustive("polonaise.spark", of="Sparks elsewhere")
@pytest.mark.slow
def test_a_spark_connect_server_is_spoken_to_without_a_java(tmp_path: Path, connect: str) -> None:
    script = REMOTE.format(address=connect)
    done = run(script, tmp_path, PATH=path_without_java(tmp_path / "bin"), JAVA_HOME="/nowhere")
    assert output_of(done).split() == ["pyspark.sql.connect.session", "5", "3"]


GIVEN = {"cluster": "file:/bank", "tls.ca": "/a/ca.pem", "tls.certificate": "/a/c.pem", "TLS.Key": "/a/k.pem"}


def test_tls_files_are_options_of_reads_and_writes() -> None:
    files = TlsFiles("/a/ca.pem", "/a/c.pem", "/a/k.pem")
    for options in (read_options(GIVEN), write_options(GIVEN, is_stream=True)):
        assert pickle.loads(pickle.dumps(options)).tls == files
    assert read_options({"cluster": "file:/bank"}).tls is None


def test_a_part_of_the_tls_files_is_refused_as_options() -> None:
    with pytest.raises(BadOption, match="certificate and key not given"):
        read_options({"cluster": "file:/bank", "tls.ca": "/a/ca.pem"})
    with pytest.raises(BadOption, match=r"tls\.ca is empty"):
        read_options({**GIVEN, "tls.ca": " "})


def test_executors_get_the_files_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLONAISE_TLS_KEY", "/a/k.pem")
    assert _settings("spark://a:1", {})["spark.executorEnv.POLONAISE_TLS_KEY"] == "/a/k.pem"


@pytest.mark.exhaustive("polonaise.spark", of="Sparks elsewhere")
@pytest.mark.slow
@pytest.mark.usefixtures("connections_closed")
def test_a_query_and_a_sink_reach_a_cluster_with_tls(spark: SparkSession, tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    files = ours.client("spark")
    options = {"tls.ca": files.ca, "tls.certificate": files.certificate, "tls.key": files.key}
    assert "POLONAISE_TLS_CA" not in os.environ
    with running(tmp_path / "cluster", storage=1, tls=ours.node()) as cluster:
        frame = spark.createDataFrame([(b"one",), (b"two",)], "data binary")
        where = {"cluster": cluster.coordinator, **options}
        frame.coalesce(1).write.format("polonaise").mode("append").options(**where).option(
            "staging", str(tmp_path / "staging")
        ).save()
        read = spark.read.format("polonaise").options(**where).load()
        assert sorted(bytes(row.data) for row in read.select("data").collect()) == [b"one", b"two"]
