"""Sum up a log in tables: by partition, header and period, and by the values of decoded columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.window import Window

from polonaise.errors import BadOption
from polonaise.pipelines.snapshots import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PERIODS: Final = ("second", "minute", "hour", "day", "month")
_FITTING: Final = (("second", 600), ("minute", 10 * 3_600), ("hour", 14 * 86_400), ("day", 2 * 366 * 86_400))
"""Periods, each with the length of history, in seconds, up to which it is the default."""
_COLUMNS: Final = (
    "partition int, transaction_id long, timestamp timestamp, header int, data binary, "
    "request struct<client_id: int, generation: int, sequence: long>"
)


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
    """Read the log once and sum it up. Periods are in the session's time zone, UTC by default.

    Without a `period`, one is chosen by the length of the history. Raises `BadOption` for one that is not in `PERIODS`.
    """
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
        snapshot.read(schema=_COLUMNS)
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
    """Return a row per partition that has transactions. Its `refused` counts appends that are not in the log.

    One that is not in the log leaves a gap in its client's sequence numbers; gaps before its first transaction and
    after its last can't be seen. Own transactions, which are not read, are counted, too. Null unless transactions with
    any header are read.
    """
    refused = F.sum(F.col("made") - F.col("count")) if any_header else F.lit(None).cast("long")
    clients = (
        seconds.groupBy("partition", "client")
        .agg(
            F.sum("transactions").alias("count"),
            (F.max("last_sequence") - F.min("first_sequence") + 1).alias("made"),
        )
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
    return [
        F.sum("transactions").alias("transactions"),
        F.sum("bytes").alias("bytes"),
        F.min("first_id").alias("first_id"),
        F.max("last_id").alias("last_id"),
    ]


def top_values(snapshot: Snapshot, columns: Sequence[str], top: int) -> pa.Table:
    """Return the `top` most frequent values of columns, as rows of `column`, `value` (text), `rank` and `transactions`.

    Raises `BadOption` for an unknown column.
    """
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
