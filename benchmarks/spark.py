"""How fast is the pipeline? The log in Spark, beside Parquet and a source that only generates, in one session.

    python benchmarks/spark.py [--transactions 4000000] [--runs 3] [--only NAME] [--write]

One partition, 100-byte bodies that do not compress, `local[2]`. With `--write` the figures replace the ones in
docs/performance.md, and the plot docs/spark-performance.png is drawn anew; nobody types them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

import polonaise
import polonaise.spark
from document import DOCUMENT, arguments, command, table, write_figures
from polonaise.admin.archive import archive
from polonaise.fragments.store import open_store
from polonaise.node.local import LocalCluster
from polonaise.pipelines import archive as job
from polonaise.spark.sessions import session

BODY_BYTES = 100
GENERATED_ROWS = 32_768
COLUMNS = "partition int, transaction_id bigint, timestamp timestamp, header int, data binary"

# ---------------------------------------------------------------------- a source that only generates


class Generator(DataSource):
    """A source of rows like the log's, made in memory: the most that Spark takes from a Python source."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return GeneratorReader(int(self.options["rows"]), int(self.options["splits"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return GeneratorStream(int(self.options["rows"]))


def generated(first: int, stop: int) -> Iterator[pa.RecordBatch]:
    data = pa.array([os.urandom(BODY_BYTES) for _ in range(min(GENERATED_ROWS, stop - first))], pa.binary())
    schema = pa.schema(
        {
            "partition": pa.int32(),
            "transaction_id": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "header": pa.int32(),
            "data": pa.binary(),
        }
    )
    for start in range(first, stop, GENERATED_ROWS):
        rows = min(GENERATED_ROWS, stop - start)
        ids = pa.arange(start, start + rows) if hasattr(pa, "arange") else pa.array(range(start, start + rows))
        zeros = pa.repeat(pa.scalar(0, pa.int32()), rows)
        times = pa.repeat(pa.scalar(1_700_000_000_000_000, pa.timestamp("us", "UTC")), rows)
        yield pa.RecordBatch.from_arrays([zeros, ids.cast(pa.int64()), times, zeros, data[:rows]], schema=schema)


class GeneratorReader(DataSourceReader):
    def __init__(self, rows: int, splits: int) -> None:
        self._rows, self._splits = rows, splits

    def partitions(self) -> list[InputPartition]:
        bounds = [self._rows * number // self._splits for number in range(self._splits + 1)]
        return [InputPartition(pair) for pair in itertools.pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return generated(*partition.value)


class GeneratorStream(DataSourceStreamReader):
    """A stream that has `rows` new rows each time that Spark asks: micro-batches that cost the source nothing."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"0": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # noqa: N802
        self._at += self._rows
        return {"0": self._at}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition((start["0"], end["0"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return generated(*partition.value)


# ---------------------------------------------------------------------- the ground


async def fill(coordinator: str, transactions: int) -> None:
    """Append transactions to partition 0, with bodies that do not compress."""
    async with polonaise.connect(coordinator) as log:
        for start in range(0, transactions, 4_000):
            count = min(4_000, transactions - start)
            raw = os.urandom(count * BODY_BYTES)
            await asyncio.gather(
                *(
                    log.append(raw[number * BODY_BYTES : (number + 1) * BODY_BYTES], 0, header=number % 4)
                    for number in range(count)
                )
            )


async def archive_all(coordinator: str, directory: Path) -> None:
    async with polonaise.connect(coordinator) as log:
        async for _ in archive(log, open_store(str(directory)), 0, rest=True):
            pass


def summed(frame: DataFrame) -> tuple[int, int, int]:
    """Read all rows once. Return their number, their bytes, and the last id."""
    (row,) = frame.agg(F.count("*"), F.sum(F.length("data")), F.max("transaction_id")).collect()
    return row[0], row[1], row[2]


def rate_of(make: Callable[[], DataFrame], transactions: int, runs: int) -> float:
    """Return the rows per second of the best of `runs`, each planned anew, after a first run to warm up.

    Ends the program if a run reads anything but all transactions.
    """
    best = 0.0
    for run in range(runs + 1):
        began = time.perf_counter()
        rows, size, last = summed(make())
        took = time.perf_counter() - began
        if (rows, size, last) != (transactions, transactions * BODY_BYTES, transactions - 1):
            raise SystemExit(f"a wrong result: {rows:,} rows, {size:,} bytes, last id {last}")
        if run:
            best = max(best, rows / took)
    return best


# ---------------------------------------------------------------------- measures


class Bench:
    """One Spark session and one cluster, with the figures measured on them."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.transactions: int = options.transactions
        self.runs: int = options.runs
        self.root = root
        self.store = root / "fragments"
        self.spark: SparkSession = session("local[2]", name="benchmark")
        self.spark.dataSource.register(Generator)
        self.figures: dict[str, float] = {}

    def told(self, name: str, value: float, unit: str = "rows/s") -> None:
        self.figures[name] = value
        print(f"{name}: {value:,.0f} {unit}" if value > 100 else f"{name}: {value:.2f} {unit}", flush=True)

    def source(self, cluster: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("polonaise").option("cluster", cluster).schema(COLUMNS)
        return reader.options(**options).load()

    def cold(self) -> None:
        splits = max(self.transactions // 500_000, 2)
        generator = self.spark.read.format("generator").option("rows", str(self.transactions))
        generator = generator.option("splits", str(splits))
        files = str(self.store / "0")
        cluster = f"fragments:{self.store}"
        self.told("generator-only source", rate_of(generator.load, self.transactions, self.runs))
        self.told("cold, source", rate_of(lambda: self.source(cluster), self.transactions, self.runs))
        self.told("Parquet", rate_of(lambda: self.spark.read.parquet(files), self.transactions, self.runs))
        read = lambda: polonaise.spark.read(self.spark, cluster, schema=COLUMNS)  # noqa: E731
        self.told("cold, polonaise.spark.read", rate_of(read, self.transactions, self.runs))

    def hot(self, coordinator: str) -> None:
        self.told("hot, source", rate_of(lambda: self.source(coordinator), self.transactions, self.runs))

    def memory(self, coordinator: str) -> None:
        """Measure the resident memory of a Python worker that reads a quarter of the rows in one split, then all."""
        for share in (4, 1):
            count = self.transactions // share
            frame = self.source(coordinator, maxBytesPerSplit="100g", endingTransactions=f'{{"0": {count}}}')
            with _Peak() as peak:
                summed(frame)
            self.told(f"memory of the task, {count:,} rows in one split", peak.mb, "MB")

    def stream_throughput(self, coordinator: str) -> None:
        best = 0.0
        for run in range(self.runs):
            query = (
                self.spark.readStream.format("polonaise").option("cluster", coordinator).schema(COLUMNS).load()
                .writeStream.format("noop").trigger(availableNow=True)
                .option("checkpointLocation", str(self.root / f"throughput-{run}")).start()
            )  # fmt: skip
            query.awaitTermination()
            batches = [each for each in query.recentProgress if each["numInputRows"]]
            rows = sum(each["numInputRows"] for each in batches)
            best = max(best, 1e3 * rows / sum(each["durationMs"]["addBatch"] for each in batches))
        self.told("stream, inside a batch", best)

    def stream_latency(self, coordinator: str) -> None:
        """Measure the median time of a micro-batch of 200 rows: of the log, and of a source that only generates."""
        generator = self.spark.readStream.format("generator").option("rows", "200").option("splits", "1").load()
        log = self.spark.readStream.format("polonaise").option("cluster", coordinator).schema(COLUMNS)
        log = log.option("maxTransactionsPerTrigger", "200").load()
        medians = {}
        for name, frame in (("generator", generator), ("log", log)):
            query = frame.writeStream.format("noop").option("checkpointLocation", str(self.root / f"l-{name}")).start()
            time.sleep(15)
            query.stop()
            times = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
            medians[name] = statistics.median(times[3:])
        self.told("micro-batch, generator", medians["generator"], "ms")
        self.told("micro-batch, stream", medians["log"], "ms")

    def archive(self, coordinator: str) -> None:
        """Measure archiving from storage nodes to verified fragments, without Spark and with the job."""
        began = time.perf_counter()
        asyncio.run(archive_all(coordinator, self.store))
        self.told("archive run, one process", self.transactions / (time.perf_counter() - began))
        best = 0.0
        for run in range(self.runs + 1):  # a first one only warms up
            store = self.root / f"again-{run}"
            began = time.perf_counter()
            job.archive(self.spark, coordinator, str(store), job.HowToArchive(rest=True))
            if run:
                best = max(best, self.transactions / (time.perf_counter() - began))
            shutil.rmtree(store)
        self.told("archive job", best)

    def sink(self, coordinator: str) -> None:
        rows = min(self.transactions, 1_000_000)
        best = 0.0
        for _ in range(self.runs):
            frame = self.spark.range(rows).select(F.rpad(F.col("id").cast("string"), BODY_BYTES, "x").alias("data"))
            began = time.perf_counter()
            frame.write.format("polonaise").option("cluster", coordinator).mode("append").save()
            best = max(best, rows / (time.perf_counter() - began))
        self.told("sink", best)


class _Peak:
    """Watches, within its block, for the largest resident memory, in MB, of a Python process that Spark has started."""

    def __enter__(self) -> _Peak:
        self.mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            parents: dict[int, int] = {}
            sizes: dict[int, float] = {}
            for status in Path("/proc").glob("[0-9]*/status"):
                with suppress(OSError, KeyError, ValueError):
                    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                    pid = int(status.parent.name)
                    parents[pid] = int(lines["PPid"])
                    if lines["Name"].strip().startswith("python"):
                        sizes[pid] = int(lines["VmRSS"].split()[0]) / 1024
            for pid, size in sizes.items():
                if pid != os.getpid() and _is_below(pid, parents):
                    self.mb = max(self.mb, size)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def measure(options: argparse.Namespace, root: Path) -> dict[str, float]:
    with LocalCluster(root / "cluster") as cluster:
        asyncio.run(fill(cluster.coordinator, options.transactions))
        print(f"{options.transactions:,} transactions appended", flush=True)
        bench = Bench(options, root)
        bench.archive(cluster.coordinator)
        measures: dict[str, Callable[[], None]] = {
            "cold": bench.cold,
            "hot": lambda: bench.hot(cluster.coordinator),
            "memory": lambda: bench.memory(cluster.coordinator),
            "stream": lambda: bench.stream_throughput(cluster.coordinator),
            "latency": lambda: bench.stream_latency(cluster.coordinator),
            "sink": lambda: bench.sink(cluster.coordinator),
        }
        try:
            for name, run in measures.items():
                if options.only in ("", name):
                    run()
        finally:
            bench.spark.stop()
        return bench.figures


GOALS = {
    "cold, source": (0.6, "generator-only source"),
    "cold, polonaise.spark.read": (0.8, "Parquet"),
    "hot, source": (2_000_000, ""),
    "stream, inside a batch": (1_500_000, ""),
    "archive job": (2_000_000, ""),
    "sink": (200_000, ""),
}
"""The goals of the design, by figure: rows per second, or a share of the figure named beside it."""


def write(figures: dict[str, float], options: argparse.Namespace) -> None:
    rates, others = [], []
    for name, value in figures.items():
        if name.startswith(("memory", "micro-batch")):
            others.append((name, f"{value:,.0f} {'MB' if name.startswith('memory') else 'ms'}"))
            continue
        goal, yardstick = GOALS.get(name, (0, ""))
        share = f"{value / figures[yardstick]:.0%} of {yardstick}" if yardstick in figures else ""
        rates.append((name, f"{value:,.0f}", share, f"{goal:.0%}" if yardstick else f"{goal:,.0f}" if goal else ""))
    lines = [
        f"{command('spark.py', transactions=options.transactions, runs=options.runs)}; best of {options.runs} runs.",
        "",
        *table(["what", "rows/s", "of the yardstick", "goal"], rates),
        "",
        *table(["what", ""], others),
        "",
        "![Rows per second of each way to read the log in Spark](spark-performance.png)",
    ]
    write_figures("spark.py", lines)
    plot(figures, DOCUMENT.with_name("spark-performance.png"))


def plot(figures: dict[str, float], path: Path) -> None:
    """Draw bars of rows per second, with the goals as marks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in figures if not name.startswith(("memory", "micro-batch"))][::-1]
    values = [figures[name] / 1e6 for name in names]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1.2), layout="constrained")
    bars = axes.barh(
        names,
        values,
        color=["#8a8f98" if name in ("Parquet", "generator-only source") else "#2f6f9f" for name in names],
    )
    axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3)
    for height, name in enumerate(names):
        goal, yardstick = GOALS.get(name, (0, ""))
        goal_millions = goal * figures.get(yardstick, 0) / 1e6 if yardstick else goal / 1e6
        if goal_millions:
            axes.plot([goal_millions, goal_millions], [height - 0.4, height + 0.4], color="#c0392b", linewidth=2)
    axes.set_xlabel("million rows per second (red: the goal)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(path, dpi=120)


def main() -> None:
    options = arguments(__doc__, transactions=4_000_000, runs=3, only="")
    root = Path(tempfile.mkdtemp())
    try:
        figures = measure(options, root)
    finally:
        shutil.rmtree(root)
    if options.write:
        write(figures, options)


if __name__ == "__main__":
    main()
