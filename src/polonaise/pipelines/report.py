"""The job report: what a log holds, as one HTML page and as Parquet tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.window import Window

from polonaise.errors import BadOption, DiskFailed
from polonaise.host.replacing import replaced
from polonaise.pipelines.charts import Bars, Chart, Lines, Series
from polonaise.pipelines.formatting import quoted
from polonaise.pipelines.job import open_log
from polonaise.pipelines.page import ReportPage
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.snapshots import Snapshot
from polonaise.pipelines.tables import Table
from polonaise.redaction import redacted
from polonaise.spark.decoders import imported
from polonaise.spark.options import FRAGMENTS
from polonaise.spark.schemas import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


PERIODS: Final = ("second", "minute", "hour", "day", "month")
_FITTING: Final = (("second", 600), ("minute", 10 * 3_600), ("hour", 14 * 86_400), ("day", 2 * 366 * 86_400))
"""Periods, each with the length of history, in seconds, up to which it is the default."""


class Summaries(NamedTuple):
    """A log's contents, summed up."""

    partitions: pa.Table
    """A row per partition with transactions: `partition`, `transactions`, `bytes` (of bodies), `first_id`, `last_id`,
    `first_time`, `last_time`, `busiest_second` (transactions in it), `clients` (how many), and `refused`."""
    period: str
    """The chosen one of `PERIODS`."""
    periods: pa.Table
    """A row per partition, header and period with transactions: `partition`, `header`, `period` (its beginning),
    `transactions`, `bytes`, `first_id`, `last_id`, `busiest_second`."""


def summed_up(snapshot: Snapshot, period: str | None) -> Summaries:
    """Read the log once and sum it up. Periods are in the session's time zone, UTC by default. Without a `period`, one
    is chosen by the length of the history. Raises `BadOption` for one that is not in `PERIODS`."""
    if period is not None and period not in PERIODS:
        raise BadOption(f"period {period!r}: write one of {', '.join(PERIODS)}")
    with _by_second(snapshot) as seconds:
        partitions = _partitions(seconds, any_header=snapshot.any_header).toArrow()
        chosen = period or _fitting(partitions)
        return Summaries(partitions, chosen, _periods(seconds, chosen).toArrow())


def _fitting(partitions: pa.Table) -> str:
    rows = partitions.to_pylist()
    if not rows:
        return PERIODS[-1]
    length = max(row["last_time"] for row in rows) - min(row["first_time"] for row in rows)
    return next((period for period, most_s in _FITTING if length.total_seconds() <= most_s), PERIODS[-1])


@contextmanager
def _by_second(snapshot: Snapshot) -> Iterator[DataFrame]:
    """Yield the transactions grouped by partition, header, second and client; Spark keeps this until the end."""
    grouped = (
        snapshot.read(schema=", ".join(f"{name} {column.ddl}" for name, column in COLUMNS.items()))
        .groupBy(
            "partition",
            "header",
            F.date_trunc("second", "timestamp").alias("second"),
            F.col("request.client_id").alias("client"),
        )
        .agg(
            F.count(F.lit(1)).alias("transactions"),
            F.sum(F.length("data")).alias("bytes"),
            F.min("transaction_id").alias("first_id"),
            F.max("transaction_id").alias("last_id"),
            F.min("timestamp").alias("first_time"),
            F.max("timestamp").alias("last_time"),
            F.min("request.sequence").alias("first_sequence"),
            F.max("request.sequence").alias("last_sequence"),
        )
        .persist()
    )
    try:
        yield grouped
    finally:
        grouped.unpersist()


def _partitions(seconds: DataFrame, *, any_header: bool) -> DataFrame:
    """Return a row per partition that has transactions. Its `refused` counts appends that are not in the log. One that
    is not in the log leaves a gap in its client's sequence numbers; gaps before its first transaction and after its
    last can't be seen. Own transactions, which are not read, are counted, too. Null unless transactions with any header
    are read."""
    refused = F.sum(F.col("made") - F.col("count")) if any_header else F.lit(None).cast("long")
    clients = (
        seconds.groupBy("partition", "client")
        .agg(F.sum("transactions").alias("count"), (F.max("last_sequence") - F.min("first_sequence") + 1).alias("made"))
        .groupBy("partition")
        .agg(F.count(F.lit(1)).alias("clients"), refused.alias("refused"))
    )
    busiest = (
        seconds.groupBy("partition", "second")
        .agg(F.sum("transactions").alias("count"))
        .groupBy("partition")
        .agg(F.max("count").alias("busiest_second"))
    )
    return (
        seconds.groupBy("partition")
        .agg(*_sums(), F.min("first_time").alias("first_time"), F.max("last_time").alias("last_time"))
        .join(busiest, "partition")
        .join(clients, "partition")
        .orderBy("partition")
    )


def _periods(seconds: DataFrame, period: str) -> DataFrame:
    return (
        seconds.groupBy("partition", "header", "second")
        .agg(*_sums())
        .groupBy("partition", "header", F.date_trunc(period, "second").alias("period"))
        .agg(*_sums(), F.max("transactions").alias("busiest_second"))
        .orderBy("partition", "header", "period")
    )


def _sums() -> list[Column]:
    by_name = {"transactions": F.sum, "bytes": F.sum, "first_id": F.min, "last_id": F.max}
    return [made(name).alias(name) for name, made in by_name.items()]


def top_values(snapshot: Snapshot, columns: Sequence[str], top: int) -> pa.Table:
    """Return the `top` most frequent values of columns, as rows of `column`, `value` (text), `rank` and `transactions`.
    Raises `BadOption` for an unknown column."""
    log = snapshot.read()
    missing = [name for name in columns if name not in log.columns]
    if missing:
        raise BadOption(f"no column {', '.join(missing)}: there are {', '.join(log.columns)}")
    pairs = F.array(
        *(F.struct(F.lit(name).alias("column"), F.col(name).cast("string").alias("value")) for name in columns)
    )
    counted = (
        log.select(F.explode(pairs).alias("pair"))
        .groupBy("pair.column", "pair.value")
        .agg(F.count(F.lit(1)).alias("transactions"))
    )
    rank = F.row_number().over(Window.partitionBy("column").orderBy(F.desc("transactions"), "value"))
    ranked = counted.withColumn("rank", rank).where(F.col("rank") <= top)
    return ranked.select("column", "value", "rank", "transactions").orderBy("column", "rank").toArrow()


Sections: TypeAlias = "Callable[[Snapshot, ReportPage], Mapping[str, pa.Table]]"
"""An application's own part of a report: adds to the page, and returns tables to store, by name."""

_PAGE: Final = "report.html"
_HEADERS_DRAWN: Final = 7


@dataclass(frozen=True)
class HowToReport:
    """Options of the job: what the report is about, and what it contains."""

    title: str = "What the log holds"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # an address in it may have a password
    """Options of the source `polonaise`, such as `fragments`, `partitions`, ranges by id or time, and a decoder."""
    period: str | None = None
    """One of `PERIODS`; None for one that fits the length of the history."""
    keys: Sequence[str] = ()
    """Columns, most often decoded ones, whose most frequent values are shown."""
    top: int = 20
    """The largest number of values of each column that are shown."""
    sections: Sections | None = None
    """The application's own part; None for none."""


@dataclass(frozen=True)
class LogReport:
    """The result of a run. `well` is always true: a fault is raised."""

    page: Path
    tables: tuple[Path, ...]
    spans: Mapping[int, tuple[int, int]]
    """First and last id of each partition that the report is about; the last is below the first for none."""
    transactions: int
    """Number of ids in `spans`: transactions with any header, and the library's own ones, too."""
    bytes: int
    """Bytes of the bodies that were summed up."""
    well: ClassVar = True

    def fields(self) -> dict[str, Any]:
        return {
            "page": str(self.page),
            "tables": [str(path) for path in self.tables],
            "spans": {str(partition): list(span) for partition, span in self.spans.items()},
            "transactions": self.transactions,
            "bytes": self.bytes,
        }


def report(
    spark: SparkSession,
    cluster: str,
    directory: str,
    how: HowToReport | None = None,
    *,
    progress: JobProgress | None = None,
) -> LogReport:
    """Write a report on a log, or a store of fragments (`fragments:URL`), to a directory; `progress` counts its parts.
    All of it is about the same transactions: those committed when it began that `how.options` select. Each file is
    replaced in one step, the page last; if killed on the way, run it again. Raises what reading, Spark and
    `how.sections` raise, `BadOption` for invalid options, and `DiskFailed` if the directory can't be written to."""
    how, shown_progress = how or HowToReport(), progress or Silence()
    snapshot = Snapshot(spark, cluster, how.options)
    with nullcontext() if snapshot.cluster.startswith(FRAGMENTS) else open_log(snapshot.cluster):
        return _written(snapshot, Path(directory), how, shown_progress)


def _written(snapshot: Snapshot, directory: Path, how: HowToReport, progress: JobProgress) -> LogReport:
    progress.begin("parts of the report", 3)
    summaries = summed_up(snapshot, how.period)
    tables = {"partitions": summaries.partitions, "periods": summaries.periods}
    page = ReportPage(how.title, f"{redacted(snapshot.cluster)}, {_ids_of(snapshot)}")
    _sum_up(page, snapshot, summaries)
    progress.done(1)
    if how.keys:
        tables["top_values"] = top_values(snapshot, how.keys, how.top)
        _tell_values(page, tables["top_values"], how.keys)
    progress.done(2)
    if how.sections is not None:
        tables |= how.sections(snapshot, page)
    paths = _stored(directory, page, tables)
    progress.done(3)
    return LogReport(
        page=directory / _PAGE,
        tables=paths,
        spans={partition: (span.first, span.last) for partition, span in snapshot.spans.items()},
        transactions=snapshot.transactions,
        bytes=pc.sum(summaries.periods["bytes"]).as_py() or 0,
    )


def _ids_of(snapshot: Snapshot) -> str:
    ranges = [f"{number}: {span.first:,} to {span.last:,}" for number, span in snapshot.spans.items()]
    shown = ", ".join(ranges[:4]) + (f" and {len(ranges) - 4} more" if len(ranges) > 4 else "")
    return f"transactions of partition {shown}" if ranges else "no partitions"


# ------------------------------------------------------------------ what the page says


def _sum_up(page: ReportPage, snapshot: Snapshot, summaries: Summaries) -> None:
    partitions, periods, period = summaries.partitions.to_pylist(), summaries.periods.to_pylist(), summaries.period
    transactions, size = sum(row["transactions"] for row in partitions), sum(row["bytes"] for row in partitions)
    first = min((row["first_time"] for row in partitions), default=None)
    last = max((row["last_time"] for row in partitions), default=None)
    page.facts(
        {
            "transactions": transactions,
            "bytes of bodies": size,
            "bytes each": round(size / transactions) if transactions else None,
            "first committed": first,
            "last committed": last,
            "transactions/s on average": _rate(transactions, first, last),
        }
    )
    page.section("Over time").chart(_over_time(f"Transactions per {period}", periods, "transactions", period))
    page.chart(_over_time(f"Bytes of bodies per {period}", periods, "bytes", period))
    page.chart(_by_header(periods, period))
    page.section("Partitions").table(_partitions_table(snapshot, partitions))


def _rate(count: int, first: datetime | None, last: datetime | None) -> int | None:
    seconds = (last - first).total_seconds() if first is not None and last is not None else 0.0
    return round(count / seconds) if seconds else None


def _over_time(title: str, periods: Sequence[Mapping[str, Any]], column: str, period: str) -> Chart:
    """Chart a column's sums over all rows of each period: bars for days and months, a line for shorter periods."""
    sums: Counter[datetime] = Counter()
    for row in periods:
        sums[row["period"]] += row[column]
    if period in ("day", "month"):
        return Bars(title, [(at.date(), value) for at, value in sorted(sums.items())], unit=column)
    return Lines(title, [Series(column, sorted(sums.items()))], unit=column)


def _by_header(periods: Sequence[Mapping[str, Any]], period: str) -> Chart:
    """Chart the headers with the most transactions as lines; with fewer than two periods, the headers as bars."""
    totals: defaultdict[int, Counter[datetime]] = defaultdict(Counter)
    for row in periods:
        totals[row["header"]][row["period"]] += row["transactions"]
    order = sorted(totals, key=lambda header: -totals[header].total())
    times = sorted({row["period"] for row in periods})
    if len(times) < 2:  # no line can be drawn
        sums = [(f"header {header}", totals[header].total()) for header in order]
        return Bars("Transactions by header", sums, unit="transactions")
    drawn = sorted(order[:_HEADERS_DRAWN])
    series = [Series(f"header {header}", [(at, totals[header][at]) for at in times]) for header in drawn]
    left_out = len(totals) - len(drawn)
    headers = "1 header is" if left_out == 1 else f"{left_out} headers are"
    note = f"{headers} not drawn, with fewer transactions." if left_out else ""
    return Lines(f"Transactions per {period}, by header", series, unit="transactions", note=note)


_PARTITION_COLUMNS: Final = {
    "partition": "partition",
    "first id": "first_id",
    "last id": "last_id",
    "transactions": "transactions",
    "bytes": "bytes",
    "busiest second": "busiest_second",
    "clients": "clients",
    "refused": "refused",
    "last committed": "last_time",
}


def _partitions_table(snapshot: Snapshot, partitions: Sequence[Mapping[str, Any]]) -> Table:
    # Partitions without transactions have no row among the sums.
    sums: dict[int, Mapping[str, Any]] = {number: {"partition": number} for number in snapshot.spans}
    sums |= {row["partition"]: row for row in partitions}
    note = (
        "Refused: appends that are not in the log (conflicts, failed expectations, given up), by the gaps in the "
        "clients' numbers. Those before a client's first and after its last transaction are not counted; what a "
        "producer repeated, and own transactions (of log.once and Spark's sink), are."
    )
    columns = dict(_PARTITION_COLUMNS)
    if not snapshot.any_header:
        del columns["refused"]
        note = "Refused appends are not counted: they can't be told from transactions with headers that are not read."
    rows = [[row.get(column) for column in columns.values()] for row in sums.values()]
    return Table("Partitions", list(columns), rows, note=note)


def _tell_values(page: ReportPage, values: pa.Table, keys: Sequence[str]) -> None:
    page.section("Most frequent values")
    rows = values.to_pylist()
    for key in keys:
        counts = [(quoted(row["value"]), row["transactions"]) for row in rows if row["column"] == key]
        page.chart(Bars(f"Transactions by {key}", counts, unit="transactions"))


# ------------------------------------------------------------------ files


def _stored(directory: Path, page: ReportPage, tables: Mapping[str, pa.Table]) -> tuple[Path, ...]:
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            path = directory / f"{name}.parquet"
            with replaced(path) as file:
                pq.write_table(table, file, compression="zstd")
            paths.append(path)
        # The page last: a new page never stands beside earlier versions of its tables, even if the job is killed.
        with replaced(directory / _PAGE) as file:
            file.write(page.html().encode())
    except OSError as error:
        raise DiskFailed(f"the report can't be written to {directory}: {error.strerror or error}") from error
    return tuple(paths)


def sections_named(path: str) -> Sections:
    """Import the function `module:name`, which adds an application's part to a report. Raises `BadOption`."""
    function: Sections = imported("sections", path, "write module:function")
    if not callable(function):
        raise BadOption(f"sections={path!r} is no function: it takes a snapshot and a page, and returns tables by name")
    return function


if __name__ == "__main__":
    from polonaise.pipelines.runs import main

    main("report")
