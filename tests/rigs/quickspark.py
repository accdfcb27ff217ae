"""Java options for every Spark that a test starts, itself or through a program: it compiles less and loads faster.

Half of what a JVM with Spark takes to start is to load and verify some ten thousand classes. `make` runs this file as a
program once, which has Java keep them in an archive as it has loaded them. Without the archive, or with a Java or Spark
other than the one that made it, all goes as before, only slower.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark's own: further options for the JVM of a driver, whoever starts it and whatever its settings are."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As `QUICK_START` of `polonaise.spark.sessions`, which is not imported where no Spark is needed."""
QUIET = "-Xlog:cds=off -Xlog:class+path=off"
"""An archive that does not fit is no news, least of all in the output that a test looks at."""


def options(archive: Path = ARCHIVE) -> str:
    usable = archive.exists() and not re.search(r"\s", str(archive))
    return f"{QUICK} -XX:SharedArchiveFile={archive} {QUIET}" if usable else QUICK


def without_spark(*prefixes: str) -> dict[str, str]:
    """Return the environment without Spark's variables, and what begins with `prefixes`, but with these options."""
    left_out = ("SPARK", "PYSPARK", *prefixes)
    return {**{key: value for key, value in os.environ.items() if not key.startswith(left_out)}, VARIABLE: options()}


def load_classes(spark: SparkSession, directory: Path) -> None:
    """Do a little of what tests do, so that the classes for it are loaded."""
    table = str(directory / "table")
    rows = spark.createDataFrame([(1, "a", b"a"), (2, "b", b"b")], "id long, name string, body binary")
    rows.write.parquet(table)
    rows.write.mode("append").partitionBy("name").json(str(directory / "lines"))
    read = spark.read.parquet(table)
    read.groupBy("name").count().join(read, "name").orderBy("id").toPandas()
    read.mapInPandas(lambda frames: frames, read.schema).createOrReplaceTempView("read")
    counted = "sum(id), max(decode(body, 'utf-8')), row_number() OVER (ORDER BY name)"
    spark.sql(f"SELECT {counted} FROM read GROUP BY name").collect()
    stream = spark.readStream.schema(read.schema).parquet(table)
    in_memory = stream.writeStream.format("memory").queryName("kept")
    by_batch = stream.writeStream.foreachBatch(lambda batch, _: batch.collect())
    for name, writer in {"in_memory": in_memory, "by_batch": by_batch}.items():
        started = writer.trigger(availableNow=True).option("checkpointLocation", str(directory / name)).start()
        started.awaitTermination()


def main() -> None:
    import tempfile

    from polonaise.errors import JavaMissing
    from polonaise.spark.sessions import session

    new = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ[VARIABLE] = f"{QUICK} -XX:ArchiveClassesAtExit={new} {QUIET}"
    with tempfile.TemporaryDirectory() as place:
        try:
            spark = session("local[2]", conf={"spark.sql.warehouse.dir": place, "spark.local.dir": place})
        except JavaMissing:
            return  # the tests that need it say so
        load_classes(spark, Path(place))
        process = spark.sparkContext._gateway.proc  # its end is what has the archive written
        spark.stop()
        spark.sparkContext._gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=300)
    if new.exists():
        new.replace(ARCHIVE)


if __name__ == "__main__":
    main()
