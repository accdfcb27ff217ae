"""What a task does: reads its part of history and makes the query's columns of it, without a look at each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from polonaise.errors import BeyondLog, WrongClusterKey
from polonaise.fragments.arrow import columns_of
from polonaise.spark import clusters
from polonaise.spark.decoders import Decoder, row_decoder
from polonaise.spark.fragmentfiles import columns_from
from polonaise.spark.options import ReadOptions
from polonaise.spark.protocol.splits import Split
from polonaise.spark.schemas import Projection

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from polonaise.blocking.log import Log
    from polonaise.log.batch import Batch

_ROWS: Final = 32_768
"""Of one Arrow batch, about: Spark hands on fewer too often, and more are in memory at once."""
_BYTES: Final = 16 * 1024 * 1024
"""The same for large bodies."""


def input_partitions(splits: Sequence[Split]) -> list[InputPartition]:
    """As Spark wants them: it makes something of its own of an empty list, so there is one that reads nothing."""
    return [InputPartition(split) for split in splits] or [InputPartition(None)]


def projection_of(options: ReadOptions, schema: StructType) -> Projection:
    """The columns that a query wants. Raises what is wrong with them or with their decoder, before a job starts."""
    projection = Projection(options, schema)
    if options.decoder is not None:
        row_decoder(options)
        Decoder(options, projection)
    return projection


def read_split(options: ReadOptions, projection: Projection, split: Split | None) -> Iterator[pa.RecordBatch]:
    """The rows of one split, in the order of ids. Its memory does not grow with the split."""
    if split is None:
        return
    needs = list(projection.needs)
    if options.headers is not None and "header" not in needs:
        needs.append("header")
    read = _hot(options, split, needs) if split.fragment is None else _cold(options, split, needs)
    headers = None if options.headers is None else pa.array(sorted(options.headers), pa.int32())
    decoder = Decoder(options, projection) if projection.decoded.fields or projection.corrupt else None
    for batch in read:
        kept = batch if headers is None else batch.filter(pc.is_in(batch.column("header"), headers))
        if kept.num_rows:
            yield projection.batch(kept, {} if decoder is None else decoder.decoded(kept))


def _cold(options: ReadOptions, split: Split, needs: Sequence[str]) -> Iterator[pa.RecordBatch]:
    assert options.fragments is not None
    assert split.fragment is not None
    store = clusters.store_at(options.fragments)
    return columns_from(
        store, split.fragment, split.fragment_bytes, split.span, needs, rows_max=_ROWS, cluster_key=split.cluster_key
    )


def _hot(options: ReadOptions, split: Split, needs: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """From the servers, which read through fragments where no replica has the range any more."""
    log = clusters.log_at(options.cluster)
    if split.cluster_key is not None and log.cluster_key != split.cluster_key:
        raise WrongClusterKey(
            f"{options.cluster} is another log here than where the query was planned: give all of Spark one address"
        )
    first, last = split.span
    for batches in _runs(log, options, split):
        made = columns_of(batches, needs)
        begin, end = max(first, batches[0].first), min(last, batches[-1].last)
        yield made.slice(begin - batches[0].first, end - begin + 1)
        first = end + 1
    if first <= last:
        raise BeyondLog(
            f"partition {split.partition} ends before {first}, and the query was planned up to {last}: the log is "
            "another one now, or an older copy of it"
        )


def _runs(log: Log, options: ReadOptions, split: Split) -> Iterator[list[Batch]]:
    """The log's batches of a split, enough of them at a time to make a good Arrow batch."""
    run: list[Batch] = []
    rows = size = 0
    reading = log.read_batches(
        split.partition, after=split.span.first - 1, until=split.span.last, timeout=options.timeout_s
    )
    with reading as batches:
        for batch in batches:
            run.append(batch)
            rows, size = rows + batch.count, size + batch.length
            if rows >= _ROWS or size >= _BYTES:
                yield run
                run, rows, size = [], 0, 0
    if run:
        yield run
