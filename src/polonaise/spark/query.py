"""`polonaise.spark.read`: a DataFrame of the log that uses a condition's ranges, and Spark's own Parquet reader.

Spark's reader is faster than anything that passes through Python. So it reads the fragments that a partition's range
begins with, each wanted whole, if they are local files and neither a replica, a decoder, `headers` nor `kafkaColumns`
is asked for. The source `polonaise` reads the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import DataType, StructType

from polonaise.errors import BadOption
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.spark.fragmentfiles import footer_from
from polonaise.spark.options import (
    FRAGMENTS,
    RANGE_OPTIONS,
    STORAGE,
    ReadOptions,
    microseconds,
    range_options,
    read_options,
)
from polonaise.spark.paths import read_from
from polonaise.spark.protocol.conditions import Ranges, ranges_in
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.taskreader import projection_of
from polonaise.terms import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "polonaise"
_CHECKED = {"parquet.page.verify-checksum.enabled": "true"}
"""Makes Spark's reader refuse damaged pages, as ours does."""


def register(spark: SparkSession) -> None:
    """Register the format `polonaise` with a session that does not find it: of Spark Connect, or with an archive."""
    from polonaise.spark.source import PolonaiseSource

    spark.dataSource.register(PolonaiseSource)


def read(
    spark: SparkSession, cluster: str, *, where: str | None = None, schema: str | None = None, **options: object
) -> DataFrame:
    """Return a snapshot of the log: what is committed now, of the partitions, ids and times that `where` allows.

    `where` is a condition as for `DataFrame.where`. Bounds on `partition`, `transaction_id`, `timestamp` and `header`
    that are joined by `and` narrow what is read (a time needs its zone; with `kafkaColumns` only partition and time
    do); then Spark applies the whole condition. `options` are those of the source, by name (`fragments=…`,
    `partitions=…`). `schema` names the wanted columns, in DDL.

    Raises what planning a query raises, in this process: `BadOption`, `BeyondLog`, `FragmentMissing`, `HistoryTrimmed`
    and others. Example::

        frame = read(spark, "embedded:./bank", where="partition = 0 and transaction_id >= 100")
    """
    if where is not None and not isinstance(where, str):
        raise BadOption(
            "where: write the condition as a text, 'transaction_id >= 100'; a Column goes to .where(…) after it"
        )
    given = {"cluster": cluster, **{name: _text(value) for name, value in options.items()}}
    checked = read_options(given)
    given = _placed(given, checked)
    ranges = Ranges() if where is None else ranges_in(where)
    if checked.kafka_columns:  # with Kafka's columns, columns of our names come from a decoder
        ranges = ranges._replace(ids=Ranges().ids, headers=None)
    columns = None if schema is None else projection_of(checked, _parsed(schema)).schema.names
    history = QueryHistory(checked)
    wanted = {
        partition: _narrowed(history, partition, span, ranges)
        for partition, span in history.wanted().items()
        if ranges.partitions is None or partition in ranges.partitions
    }
    given |= history.key_option()  # the source plans these ranges later: another log may be there by then
    files, rest = _by_place(history, checked, wanted)
    history.splits(rest)  # Spark plans these ranges itself, but errors in them are to be raised here
    frames = [_by_parquet(spark, files, columns)] if files else []
    if rest or not files:
        frames.append(_by_source(spark, _only(given, rest, ranges), schema))
    frame = reduce(lambda one, other: one.unionByName(other), frames)
    return frame if where is None else frame.where(where)


def _placed(given: Mapping[str, str], checked: ReadOptions) -> dict[str, str]:
    """Replace log and store by absolute addresses: the source may run in another process and directory."""
    placed = {name: value for name, value in given.items() if name.lower() not in ("cluster", "fragments")}
    placed["cluster"] = checked.cluster
    if checked.fragments is not None and not checked.cluster.startswith(FRAGMENTS):
        placed["fragments"] = checked.fragments
    return placed


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(schema: str) -> StructType:
    """Parse a schema in DDL. Raises what Spark raises, and `BadOption` for one without columns."""
    parsed: Any = DataType.fromDDL(schema)
    if not isinstance(parsed, StructType):
        raise BadOption(f"schema={schema!r} names one type and no columns: write 'transaction_id long, data binary'")
    return parsed


def _narrowed(history: QueryHistory, partition: PartitionId, span: Span, ranges: Ranges) -> Span:
    """Return the part of a partition's range that the condition's bounds by id and time allow, perhaps empty."""
    first, last = max(span.first, ranges.ids.first), min(span.last, ranges.ids.last)
    if first <= last and ranges.since is not None:
        first = max(first, history.start_at(partition, microseconds(ranges.since), last + 1))
    if first <= last and ranges.until is not None:
        last = min(last, history.first_at(partition, microseconds(ranges.until), last + 1) - 1)
    return Span(first, last)


def _by_place(
    history: QueryHistory, options: ReadOptions, wanted: Mapping[PartitionId, Span]
) -> tuple[list[str], dict[PartitionId, Span]]:
    files: list[str] = []
    rest: dict[PartitionId, Span] = {}
    for partition, span in wanted.items():
        if span.last < span.first:
            continue
        after = span.first
        if _spark_can_read(options):
            whole_files, after = _whole_fragments(history, partition, span)
            files += whole_files
        if after <= span.last:
            rest[partition] = Span(after, span.last)
    return files, rest


def _spark_can_read(options: ReadOptions) -> bool:
    """Whether Spark can read the fragments itself: local files, columns that are in them, and all headers."""
    plain = options.decoder is None and not options.kafka_columns and options.headers is None
    plain = plain and not options.cluster.startswith(STORAGE)  # reading a replica adds a column
    return plain and options.fragments is not None and "://" not in options.fragments


def _whole_fragments(history: QueryHistory, partition: PartitionId, span: Span) -> tuple[list[str], int]:
    """Return the files of the fragments that a range begins with, each wanted whole, and the first id after them.
    Checks their footers, and that they are of one log: Spark's reader does not know which one that has to be."""
    assert history.store is not None
    files: list[str] = []
    following = span.first
    sizes = history.fragments(partition)
    history.check_read(partition, span)
    for fragment, part in cover(sizes, span).pieces:
        if part.first != following or part != Span(fragment.first, fragment.last):
            break
        footer_from(history.store, fragment, sizes[fragment], history.cluster_key)
        files.append(read_from(Path(str(history.store.source(fragment.path, 0)))))
        following = part.last + 1
    return files, following


def _only(given: Mapping[str, str], rest: Mapping[PartitionId, Span], ranges: Ranges) -> dict[str, str]:
    """Return the source's options for exactly these ranges; for an empty snapshot if there are none."""
    others = {name: value for name, value in given.items() if name.lower() not in RANGE_OPTIONS}
    if ranges.headers and not any(name.lower() == "headers" for name in given):
        others["headers"] = ",".join(map(str, sorted(ranges.headers)))
    if not rest:
        return {**others, "endingTransactions": "earliest"}
    return {**others, **range_options(rest)}


def _by_source(spark: SparkSession, given: Mapping[str, str], schema: str | None) -> DataFrame:
    reader = spark.read.format(NAME).options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def _by_parquet(spark: SparkSession, files: Sequence[str], columns: Sequence[str] | None) -> DataFrame:
    # The library's own transactions have a generation below 0.
    rows = spark.read.options(**_CHECKED).parquet(*files).where("generation >= 0")
    request = F.struct("client_id", "generation", "sequence").alias("request")
    frame = rows.select("partition", "transaction_id", "timestamp", "header", "data", request)
    return frame if columns is None else frame.select(*columns)
