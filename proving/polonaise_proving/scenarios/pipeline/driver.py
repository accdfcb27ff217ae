"""A Spark driver that does jobs, each a line of JSON in, and one out.

It is the leader of a session of its own, which all its processes belong to, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from polonaise.redaction import redacted
from polonaise.spark.sessions import JAVA_OPTIONS, QUICK_START, session
from polonaise.views.tables import Field, MarkedTable, Shape
from polonaise_proving.scenarios.pipeline.faults import SparkFault, SparkFaults
from polonaise_proving.scenarios.pipeline.faulty import FORMAT, TortureSource
from polonaise_proving.stages.processes import signal_session

STREAM_S_MAX = 180.0
"""Seconds after which a query counts as hanging."""
TOO_SLOW = "Python worker failed to connect back"
"""How queries end when a process of Spark's needs more than ten seconds to start: the machine is busy."""
STARTS_MAX = 10
SOURCE_S_MAX = 15.0
TABLE = Shape("found", (Field("partition", "int"), Field("id", "bigint"), Field("data", "string")))


class Overtaken(Exception):
    """Another driver has written to the table: its mark is not where this batch begins."""


def stream(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    """The source of a job, divided as it says."""
    options = {"cluster": job["cluster"], "partitions": job["partitions"], **job["split"]}
    if job["trigger"]:
        options["maxTransactionsPerTrigger"] = job["trigger"]
    if job["fault"] and job["fault"]["step"].startswith("read/"):
        options["fault"] = SparkFault(**job["fault"]).pack()
    frame = spark.readStream.format(FORMAT).options(**options).load()
    return frame.repartition(job["shuffle"]) if job["shuffle"] else frame


def start(frame: DataFrame, job: dict[str, Any], sink: Callable[[Any], Any]) -> StreamingQuery:
    """Start a query for all rows that the source has now, in micro-batches."""
    writer = frame.writeStream.trigger(availableNow=True).option("checkpointLocation", job["checkpoint"])
    query: StreamingQuery = sink(writer).start()
    return query


def begun(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Start a query and wait until its source has started: that takes a process, for which Spark allows little time."""
    query = QUERIES[job["job"]](spark, job)
    until_s = time.monotonic() + SOURCE_S_MAX
    while query.isActive and query.status["message"].startswith("Initializing") and time.monotonic() < until_s:
        time.sleep(0.02)
    return query


def outcome(spark: SparkSession, job: dict[str, Any], query: StreamingQuery) -> str | None:
    """Wait for a query's end; start it again if Spark was too slow. Return its error; None if it succeeded."""
    for _ in range(STARTS_MAX):
        error = ended(query)
        if error is None or TOO_SLOW not in error:
            return error
        query = begun(spark, job)
    return error


def ended(query: StreamingQuery) -> str | None:
    """Wait for a query's end. Return its error; None if it succeeded."""
    try:
        if query.awaitTermination(int(STREAM_S_MAX)):
            return None
    except StreamingQueryException as error:
        return redacted(str(error), 4_000)
    query.stop()
    return f"runs longer than {STREAM_S_MAX:g} s"


def to_log(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Copy into the log: each partition's rows into the partition whose number is `offset` higher."""
    frame = stream(spark, job).select((F.col("partition") + job["offset"]).alias("partition"), "data")
    options = {"cluster": job["cluster"], "sink": job["sink"], **job["options"]}
    if job["fault"]:
        options["fault"] = SparkFault(**job["fault"]).pack()
    return start(frame, job, lambda writer: writer.format(FORMAT).options(**options))


def to_parquet(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Copy into files, by Spark's own sink."""
    frame = stream(spark, job).select("partition", "transaction_id", "data")
    return start(frame, job, lambda writer: writer.format("parquet").option("path", job["path"]))


def to_sql(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Copy into a table. With `marks`, each transaction is written once: its mark is in the same SQL transaction."""
    fault = SparkFault(**job["fault"]) if job["fault"] else None
    write = merge if job["marks"] else insert

    def apply(frame: DataFrame, batch: int) -> None:
        faults = SparkFaults(fault, batch)
        rows = [{"partition": row[0], "id": row[1], "data": bytes(row[2]).decode()} for row in frame.collect()]
        write(job, rows, faults)
        faults.reach("sql/done")

    frame = stream(spark, job).select("partition", "transaction_id", "data")
    return start(frame, job, lambda writer: writer.foreachBatch(apply))


def merge(job: dict[str, Any], rows: list[dict[str, Any]], faults: SparkFaults) -> None:
    """Write rows and marks in one SQL transaction, as the job `views` does."""
    with closing(MarkedTable(job["url"], TABLE, job["key"], "each transaction, a row")) as table:
        table.prepare()
        before = table.marks()
        new = [row for row in rows if row["id"] > before.get(row["partition"], -1)]
        after: dict[int, int] = {}
        for row in new:
            after[row["partition"]] = max(row["id"], after.get(row["partition"], -1))
        faults.reach("sql/begin")

        def chunks() -> Iterator[list[dict[str, Any]]]:
            yield new
            faults.reach("sql/inside")

        if new and not table.merge(chunks, before, after):
            raise Overtaken("another driver has written to the table meanwhile")


def insert(job: dict[str, Any], rows: list[dict[str, Any]], _: SparkFaults) -> None:
    """Write rows without marks, in SQLite: a batch that is tried again is written twice."""
    with closing(sqlite3.connect(job["url"].removeprefix("sqlite:///"))) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS found (partition INTEGER, id INTEGER, data TEXT)")
        db.executemany("INSERT INTO found VALUES (:partition, :id, :data)", rows)


def parquet(spark: SparkSession, job: dict[str, Any]) -> Any:
    """Return the rows that Spark's reader finds in the files, in their order."""
    frame = spark.read.parquet(job["path"]).withColumn("file", F.input_file_name())
    return [[row.file, row.partition, row.transaction_id, bytes(row.data).decode()] for row in frame.collect()]


def snapshot(spark: SparkSession, job: dict[str, Any]) -> Any:
    """Use one `load()` repeatedly. Return (rows, largest id, sum of ids, bytes) of each time, and each id's CRC."""
    options = {"cluster": job["cluster"], "partitions": job["partitions"], **job["split"]}
    frame = spark.read.format("polonaise").options(**options).load()
    figures = frame.agg(F.count("*"), F.max("transaction_id"), F.sum("transaction_id"), F.sum(F.length("data")))
    seen = [list(figures.first() or ()) for _ in range(job["times"])]
    crcs = frame.select("transaction_id", F.crc32("data").alias("crc")).collect()
    return {"figures": seen, "crcs": sorted((row[0], row[1]) for row in crcs)}


def together(spark: SparkSession, job: dict[str, Any]) -> Any:
    """Run several queries at the same time. Return the outcome of each."""
    queries = [(query_job, begun(spark, query_job)) for query_job in job["jobs"]]
    return [outcome(spark, query_job, query) for query_job, query in queries]


QUERIES = {each.__name__: each for each in (to_log, to_parquet, to_sql)}
JOBS = {each.__name__: each for each in (together, parquet, snapshot)}


def main() -> None:
    lines = _lines_until_the_end()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark's processes say is no answer
    with tempfile.TemporaryDirectory(prefix="spark-", dir=sys.argv[1]) as places:
        conf = {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": places,
            "spark.sql.warehouse.dir": places,
            # Since 4.3 Spark refuses a checkpoint in which a killed driver has left half of its first offsets.
            "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
            JAVA_OPTIONS: QUICK_START,
        }
        spark = session("local[2,4]", name="torture", conf=conf)
        spark.dataSource.register(TortureSource)
        print(json.dumps({"ok": True}), file=answers, flush=True)
        for line in lines:
            job = json.loads(line)
            try:
                answer = {"ok": True, "value": JOBS[job["job"]](spark, job)}
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                answer = {"ok": False, "error": redacted(f"{type(error).__name__}: {error}", 4_000)}
            print(json.dumps(answer), file=answers, flush=True)


def _lines_until_the_end() -> Iterator[str]:
    """Yield the lines of standard input. When it ends, the whole session is killed, even in the middle of a job."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        signal_session(os.getsid(0), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    return iter(lines.get, "")


if __name__ == "__main__":
    main()
