"""The log in a real Spark: the same rows by every way in, one snapshot per load, each transaction once."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

import polonaise.blocking
import polonaise.spark
from polonaise.errors import BadOption
from rigs.spark import Filled, filled
from rigs.waiting import block_for, block_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

PLAIN = ["partition", "transaction_id", "header", "data"]
HOST = """
import sys, time, polonaise.blocking
with polonaise.blocking.connect(sys.argv[1]) as log:
    for id in range(int(sys.argv[2])):
        log.append(b"%d" % id)
    log.flush()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Partition 0: 400 transactions in fragments and 100 behind them; partition 1: 60 and none."""
    with filled(tmp_path_factory.mktemp("log"), 400, 60) as made:
        made.archive(0)
        made.archive(1)
        made.append(100)
        yield made


def load(spark: SparkSession, cluster: str, **options: object) -> DataFrame:
    return spark.read.format("polonaise").options(cluster=cluster, **options).load()


def plain(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((*row[:3], bytes(row[3])) for row in frame.select(*PLAIN).collect())


# ------------------------------------------------------------------ the same rows by every way in


def test_fragments_give_the_same_rows_to_every_reader(spark: SparkSession, log: Filled) -> None:
    files = sorted(map(str, Path(log.store).rglob("*.parquet")))
    by_pyarrow = pq.ParquetDataset(files).read(columns=PLAIN)
    expected = sorted(tuple(row[name] for name in PLAIN) for row in by_pyarrow.to_pylist())
    assert len(expected) == 460
    assert sorted(duckdb.sql(f"select {', '.join(PLAIN)} from read_parquet({files})").fetchall()) == expected
    assert plain(spark.read.parquet(*files)) == expected
    assert plain(load(spark, f"fragments:{log.store}")) == expected
    assert plain(polonaise.spark.read(spark, f"fragments:{log.store}")) == expected
    by_both = polonaise.spark.read(spark, log.address, fragments=log.store)
    by_source = load(spark, log.address)
    assert by_both.schema.simpleString() == by_source.schema.simpleString()
    assert sorted(by_both.collect()) == sorted(by_source.collect())


CONDITIONS = [
    None, "partition = 0", "partition = 5", "partition in (0, 1) and partition in (1)", "transaction_id >= 390",
    "transaction_id > 398 and transaction_id <= 402 and partition = 0", "transaction_id = 400", "transaction_id < 0",
    "transaction_id > 7 and transaction_id < 8", "transaction_id >= 20 and transaction_id < 10", "header = 1",
    "header in (0, 2) and transaction_id < 70", "header = 1 and header = 2", "not header = 1",
    "header = 1 or header = 2",
    "partition = 0 and length(data) = 1", "data = 'x and partition = 1 and y'",
    "(partition = 1 and header = 0) = false", "timestamp >= '2000-01-01T00:00:00Z' and partition = 1",
    "timestamp < '2000-01-01T00:00:00Z'",
    "timestamp >= '2999-01-01T00:00:00Z' and timestamp < '2000-01-01T00:00:00Z'", "partition between 0 and 0",
    "timestamp = '2999-01-01T00:00:00Z'", "request.sequence >= 0 and partition = 1",
]  # fmt: skip


@pytest.fixture(scope="module")
def everything(spark: SparkSession, log: Filled) -> DataFrame:
    return load(spark, log.address).cache()


@pytest.mark.exhaustive  # of conditions: each is tried without Spark, too
@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_reads_just_what_it_would_leave(
    spark: SparkSession, log: Filled, everything: DataFrame, where: str | None
) -> None:
    expected = plain(everything if where is None else everything.where(where))
    assert plain(polonaise.spark.read(spark, log.address, where=where, fragments=log.store)) == expected


def test_conditions_on_times_read_just_what_they_would_leave(
    spark: SparkSession, log: Filled, everything: DataFrame
) -> None:
    rows = everything.selectExpr("cast(timestamp as string)", *PLAIN).collect()
    moments = sorted({row[0] for row in rows})
    holds = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}
    for moment in (moments[0], moments[len(moments) // 2], moments[-1]):
        for sign, compared in holds.items():
            found = polonaise.spark.read(
                spark, log.address, where=f"timestamp {sign} '{moment}+00:00'", fragments=log.store
            )
            assert plain(found) == sorted((*row[1:4], bytes(row[4])) for row in rows if compared(row[0], moment))


KAFKA_CONDITIONS = [
    "transaction_id >= 1005", "transaction_id < 10", "header = 1", "header in (0, 1)", "partition = 0 and header = 2",
    "offset >= 5 and transaction_id = 1007",
]  # fmt: skip


def test_under_kafkas_names_a_decoders_columns_are_not_the_logs(spark: SparkSession, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    with polonaise.blocking.connect(address) as log:
        for number in range(20):
            log.append(b'{"transaction_id": %d, "header": %d}' % (1000 + number, number % 3), header=7)
        log.flush()
    told = {"decoder": "json", "decoderSchema": "transaction_id long, header int", "kafkaColumns": True}
    everything = polonaise.spark.read(spark, address, **told).cache()
    for where in KAFKA_CONDITIONS:
        found, expected = (
            sorted(row[0] for row in frame.select("transaction_id").collect())
            for frame in (polonaise.spark.read(spark, address, where=where, **told), everything.where(where))
        )
        assert found == expected, where


def test_a_relative_address_means_one_log_for_plan_and_tasks(
    spark: SparkSession, log: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's planner has the directory in which Spark was started."""
    scheme, _, path = log.address.partition(":")
    monkeypatch.chdir(Path(path).parent)
    relative, store = f"{scheme}:{Path(path).name}", os.path.relpath(log.store)
    expected = plain(load(spark, log.address))
    assert plain(polonaise.spark.read(spark, relative)) == expected
    assert plain(polonaise.spark.read(spark, relative, fragments=store)) == expected


def test_a_condition_is_a_text(spark: SparkSession, log: Filled) -> None:
    with pytest.raises(BadOption, match="write the condition as a text"):
        polonaise.spark.read(spark, log.address, where=F.col("transaction_id") < 3)  # type: ignore[arg-type]


def test_a_condition_and_options_hold_both(spark: SparkSession, log: Filled) -> None:
    told = {"fragments": log.store, "startingTransactions": '{"0": 100}', "headers": "1,2"}
    found = polonaise.spark.read(spark, log.address, where="transaction_id < 103", schema="transaction_id long", **told)
    assert sorted(row[0] for row in found.collect()) == sorted(
        [*(id for id in range(100, 103) if id % 3), *(id for id in range(60) if id % 3)]
    )


def test_sql_sees_the_log_through_a_view(spark: SparkSession, log: Filled) -> None:
    spark.sql(f"create temporary view entries using polonaise options (cluster '{log.address}')")
    try:
        assert spark.sql("select count(*), sum(header) from entries where partition = 1").first() == (60, 60)
    finally:
        spark.sql("drop view entries")


def test_a_table_which_spark_would_read_without_its_options_is_refused(spark: SparkSession, log: Filled) -> None:
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"create table entries using polonaise options (cluster '{log.address}')")


# ------------------------------------------------------------------ snapshots


def test_one_load_is_one_snapshot_while_transactions_are_appended(spark: SparkSession, tmp_path: Path) -> None:
    with filled(tmp_path, 100) as log:
        done = threading.Event()
        appended = [100]

        def append() -> None:
            while not done.is_set():
                for _ in range(500):
                    log.log.append(b"1")
                log.log.flush()
                appended[0] += 500
                block_for(0.02)

        writer = threading.Thread(target=append)
        writer.start()
        try:
            for _ in range(2):
                before = appended[0]
                frame = load(spark, log.address)
                seen = [frame.count() for _ in range(3)]
                seen.append(frame.selectExpr("count(distinct transaction_id)").first()[0])
                seen.append(frame.selectExpr("max(transaction_id) + 1").first()[0])
                seen.append(frame.where("header = 0").union(frame.where("header > 0")).count())
                assert len(set(seen)) == 1
                assert seen[0] >= before
        finally:
            done.set()
            writer.join()
        assert appended[0] > 1_000


# ------------------------------------------------------------------ what is damaged


def flipped_silently(store: str) -> Path:
    """Flip one byte of a fragment such that a reader which checks nothing reads other bodies and no error."""
    path = next(iter(sorted(Path(store).rglob("*.parquet"))))
    sound = path.read_bytes()
    truth = pq.read_table(path, columns=["data"])
    columns = pq.ParquetFile(path).metadata.row_group(0)
    names = [columns.column(place).path_in_schema for place in range(columns.num_columns)]
    data = columns.column(names.index("data"))
    for place in range(data.data_page_offset + 20, data.data_page_offset + data.total_compressed_size):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x01]) + sound[place + 1 :])
        try:
            if pq.read_table(path, columns=["data"]) != truth:
                return path
        except (OSError, ValueError):
            continue
    raise AssertionError("no byte could be flipped without notice")


def test_a_flipped_byte_that_spark_alone_would_read_is_refused_with_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    with filled(tmp_path, 200) as log:
        log.archive(fragment_bytes=20_000)
        path = flipped_silently(log.store)
        assert len(plain(spark.read.parquet(str(path)))) > 0, "nothing but a checksum can tell"
        for frame in (
            load(spark, f"fragments:{log.store}"),
            polonaise.spark.read(spark, f"fragments:{log.store}"),
            polonaise.spark.read(spark, log.address, fragments=log.store, where="transaction_id < 5000"),
        ):
            with pytest.raises(Exception, match=path.name):
                frame.select("data").collect()


def told(error: BaseException) -> str:
    """What a user reads last of what Python raised."""
    said = str(error).partition("SQLSTATE")[0].partition("JVM stacktrace")[0]
    return said.strip().splitlines()[-1]


@pytest.mark.exhaustive("polonaise.spark")  # of errors
@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({"startingTransactins": "0"}, "[bad_option] no option is named 'startingtransactins': did you mean"),
        ({"startingTransactions": '{"0": 999}'}, "[beyond_log] startingTransactions: 999 in partition 0"),
        ({"decoder": "json"}, "[bad_option] decoder='json' without decoderSchema: name its columns"),
        ({"decoder": "no.such:thing", "decoderSchema": "id long"}, "[bad_option] decoder='no.such:thing' can't be"),
        ({"decoder": "json", "decoderSchema": "id string"}, "[body_undecodable] transaction 0 of partition"),
        ({"cluster": "embedded:/no/such/log"}, "[not_initialized] there is no log at embedded:/no/such/log"),
    ],
)
def test_the_last_line_of_an_error_tells_all(spark: SparkSession, log: Filled, options: Any, last: str) -> None:
    with pytest.raises(PySparkException) as batch:
        load(spark, **{"cluster": log.address, **options}).collect()
    assert last in told(batch.value)


def test_a_stream_that_is_refused_tells_why(spark: SparkSession, log: Filled, tmp_path: Path) -> None:
    frame = spark.readStream.format("polonaise").options(cluster=log.address, endingTransactions="latest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match=r"\[bad_option\] endingTransactions and endingTimestamp are for batch"):
        query.awaitTermination(60)


# ------------------------------------------------------------------ streams


def run_now(spark: SparkSession, cluster: str, checkpoint: Path, out: Path, **options: object) -> list[int]:
    """Everything there is, into Parquet; how many rows each micro-batch had."""
    frame = spark.readStream.format("polonaise").options(cluster=cluster, **options).load()
    started = frame.writeStream.format("parquet").trigger(availableNow=True)
    query = started.option("checkpointLocation", str(checkpoint)).start(str(out))
    assert query.awaitTermination(120)
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_a_stream_that_is_restarted_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with filled(tmp_path, 100, 10) as log:
        checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
        first = run_now(spark, log.address, checkpoint, out, maxTransactionsPerTrigger=30)
        assert sum(first) == 110
        assert max(first) <= 30
        log.append(50, 1)
        assert sum(run_now(spark, log.address, checkpoint, out, minPartitions=5)) == 50
        assert plain(spark.read.parquet(str(out))) == plain(load(spark, log.address))


def test_a_stream_waits_out_the_death_of_an_embedded_logs_host(spark: SparkSession, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    host = subprocess.Popen([sys.executable, "-c", HOST, address, "50"], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        frame = spark.readStream.format("polonaise").option("cluster", address).load()
        query = frame.writeStream.format("memory").queryName("outlived").start()
        query.processAllAvailable()
        host.kill()
        with polonaise.blocking.connect(address) as log:
            for _ in range(20):
                log.append(b"after")
            log.flush()

        def is_complete() -> bool:
            assert query.isActive, query.exception()
            return spark.table("outlived").count() >= 70

        block_until(is_complete, every_s=0.2)
        query.stop()
        assert spark.sql("select count(*), count(distinct transaction_id) from outlived").first() == (70, 70)
    finally:
        host.kill()
        host.wait()
        if host.stdout is not None:
            host.stdout.close()


def test_bodies_become_columns_and_corrupt_ones_are_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    with filled(tmp_path, 0) as log:
        log.append(3, body=b'{"id": %d, "tags": ["a"], "day": "2026-01-31"}')
        log.append(1, body=b"no JSON")
        schema = "id long, tags array<string>, day date, more map<string,int>"
        frame = load(spark, log.address, decoder="json", decoderSchema=schema, failOnDecodeError=False)
        sound = frame.where("_corrupt is null").selectExpr("sum(id)", "max(tags[0])", "max(cast(day as string))")
        assert sound.first() == (3, "a", "2026-01-31")
        corrupt = frame.where("_corrupt is not null").select("_corrupt").collect()
        assert [bytes(row[0]) for row in corrupt] == [b"no JSON"]
