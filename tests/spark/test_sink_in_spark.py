"""The sink in a real Spark session: batch and stream, each row once, and errors that say what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import polonaise.blocking
from polonaise.blocking.log import Log

pytestmark = pytest.mark.slow

PARTITIONS = 2


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with polonaise.blocking.connect(f"{address(tmp_path)}?partitions={PARTITIONS}") as log:
        yield log


def address(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'log'}"


def append(rows: DataFrame, tmp_path: Path, **options: str) -> None:
    rows.write.format("polonaise").mode("append").options(cluster=address(tmp_path), **options).save()


def bodies(log: Log, partition: int | None = None) -> list[bytes]:
    partitions = range(PARTITIONS) if partition is None else [partition]
    return [tx.data for each in partitions for tx in log.read(each)]


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).select(F.col("id").cast("string").alias("data"))


def expected(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


# ------------------------------------------------------------------ batches


def test_a_named_write_is_there_once_however_often_it_is_run(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    for tasks in (2, 3):
        append(numbers(spark, 100, tasks), tmp_path, txnAppId="load", txnVersion="1")
    assert sorted(bodies(log)) == expected(100)
    append(numbers(spark, 100), tmp_path, txnAppId="load", txnVersion="2")
    assert sorted(bodies(log)) == sorted(expected(100) * 2)


def test_rows_keep_their_order_and_have_their_headers_and_partitions(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    rows = spark.range(0, 1_000, 1, 1).selectExpr(
        "cast(id as string) as data", "cast(id as int) as header", "id % 2 as partition"
    )
    append(rows, tmp_path)
    for partition in range(PARTITIONS):
        found = list(log.read(partition))
        assert [tx.header for tx in found] == list(range(partition, 1_000, 2))
        assert [tx.data for tx in found] == [b"%d" % number for number in range(partition, 1_000, 2)]


def test_sql_inserts_into_a_table_of_this_format(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """Spark tells a Python sink only the options of the statement, not those of the table."""
    spark.sql("create table sink_table (data string) using polonaise")
    try:
        spark.sql(f"insert into sink_table with (cluster = '{address(tmp_path)}') values ('a'), ('b')")
    finally:
        spark.sql("drop table sink_table")
    assert sorted(bodies(log)) == [b"a", b"b"]


def test_a_task_that_fails_half_way_at_first_leaves_nothing_twice(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed before")

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            yield batch
            if not os.path.exists(marker):
                open(marker, "w").close()
                raise RuntimeError("the first attempt")

    rows = numbers(spark, 30_000).mapInArrow(fails_once, "data string")
    append(rows, tmp_path, txnAppId="load", txnVersion="1", inlineBytesMax="1k")
    assert Path(marker).exists()
    assert sorted(bodies(log)) == expected(30_000)


# ------------------------------------------------------------------ streams


def stream(spark: SparkSession, tmp_path: Path, **options: Any) -> None:
    """What has arrived in directory `in`, up to now."""
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    query = (
        rows.withColumnRenamed("value", "data")
        .repartition(options.pop("tasks", 2))
        .writeStream.format("polonaise")
        .options(cluster=address(tmp_path), checkpointLocation=str(tmp_path / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def arrive(tmp_path: Path, name: str, numbers: range) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_text("".join(f"{number}\n" for number in numbers))


def test_a_stream_appends_each_row_once_over_restarts(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    arrive(tmp_path, "1", range(50))
    arrive(tmp_path, "2", range(50, 100))
    stream(spark, tmp_path)
    assert sorted(bodies(log)) == expected(100)
    arrive(tmp_path, "3", range(100, 150))
    stream(spark, tmp_path)
    assert sorted(bodies(log)) == expected(150)


def test_a_batch_that_spark_forgot_is_not_published_again_though_split_otherwise(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """The driver was killed between the sink's commit and Spark's own."""
    arrive(tmp_path, "1", range(20_000))
    stream(spark, tmp_path, inlineBytesMax="1k")
    arrive(tmp_path, "2", range(20_000, 20_050))
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    stream(spark, tmp_path, tasks=3)
    assert sorted(bodies(log)) == expected(20_050)


def test_an_older_copy_of_a_checkpoint_is_refused(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """The batches after it are planned anew, of other files."""
    arrive(tmp_path, "1", range(10))
    stream(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    arrive(tmp_path, "2", range(10, 20))
    stream(spark, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    (tmp_path / "in" / "2").unlink()
    arrive(tmp_path, "3", range(20, 30))
    with pytest.raises(StreamingQueryException, match=r"with other rows .* older copy"):
        stream(spark, tmp_path)
    assert sorted(bodies(log)) == expected(20)


# ------------------------------------------------------------------ what is refused


def test_a_log_is_never_overwritten(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="never overwritten"):
        numbers(spark, 1).write.format("polonaise").mode("overwrite").option("cluster", address(tmp_path)).save()


def test_wrong_columns_are_refused_before_a_job_starts(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"bad_columns.*data is bigint"):
        append(spark.range(1).withColumnRenamed("id", "data"), tmp_path)


def test_a_row_that_cant_be_appended_fails_the_write_and_nothing_of_it_is_there(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    rows = spark.sql("select cast(id as string) as data, if(id = 99, 2, 0) as partition from range(0, 100, 1, 2)")
    with pytest.raises(PySparkException, match="this log has partitions 0 to 1"):
        append(rows, tmp_path, inlineBytesMax="1")
    assert bodies(log) == []
