"""The work of a reading task: read its part of history, and make the query's columns, by columns but for decoders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from polonaise.errors import BeyondLog, WrongClusterKey
from polonaise.fragments.arrow import columns_of
from polonaise.spark import clusters
from polonaise.spark.decoders import Decoder, row_decoder
from polonaise.spark.fragmentfiles import columns_from
from polonaise.spark.options import STORAGE, ReadOptions
from polonaise.spark.protocol.splits import Split
from polonaise.spark.schemas import STANDING, Projection
from polonaise.spark.segmentfiles import read_segments, standings

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from polonaise.log.batch import Batch

_ROWS: Final = 32_768
"""Rows of one Arrow batch, roughly: with fewer Spark has too many batches to pass on, with more memory grows."""
_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one Arrow batch from servers or a replica's files, roughly: the same bound for large bodies."""


def input_partitions(splits: Sequence[Split]) -> list[InputPartition]:
    """Wrap splits for Spark. Without any, return one that reads nothing: Spark replaces an empty list by a default."""
    return [InputPartition(split) for split in splits] or [InputPartition(None)]


def projection_of(options: ReadOptions, schema: StructType) -> Projection:
    """Return the columns that a query wants. Raises `BadOption` or `ExtraMissing` here, before a job runs."""
    projection = Projection(options, schema)
    if options.decoder is not None:
        row_decoder(options)
        Decoder(options, projection)
    return projection


def read_split(options: ReadOptions, projection: Projection, split: Split | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split, in the order of ids. Memory does not grow with the split's size."""
    if split is None:
        return
    headers = None if options.headers is None else pa.array(sorted(options.headers), pa.int32())
    # The columns that the query wants, and those that its rows are selected by; each column once.
    needs = list(dict.fromkeys([*projection.needs, "generation", *(["header"] if headers is not None else [])]))
    if with_standing := STANDING in needs:
        needs.remove(STANDING)
    decoder = Decoder(options, projection) if projection.decodes else None
    for batch in _columns(options, split, needs, with_standing=with_standing):
        rows = _without_own(batch)
        if headers is not None:
            rows = rows.filter(pc.is_in(rows.column("header"), headers))
        if rows.num_rows and decoder is not None:
            rows, decoded = decoder.decoded(rows)
        else:
            decoded = {}
        if rows.num_rows:
            yield projection.batch(rows, decoded)


def _without_own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the library's own transactions, which have a generation below 0."""
    generations = batch.column("generation")
    if not batch.num_rows or pc.min(generations).as_py() >= 0:
        return batch
    return batch.filter(pc.greater_equal(generations, 0))


def _columns(
    options: ReadOptions, split: Split, needs: Sequence[str], *, with_standing: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a split, read from a replica's files, the servers or a fragment, perhaps with standings."""
    wanted = [*needs, "transaction_id"] if with_standing and "transaction_id" not in needs else needs
    if split.bounds is not None:
        path = options.cluster.removeprefix(STORAGE)
        batches = _cut(read_segments(path, split, fail_on_data_loss=options.fail_on_data_loss), split, wanted)
    else:
        batches = _hot(options, split, wanted) if split.fragment is None else _cold(options, split, wanted)
    if not with_standing:
        yield from batches
        return
    for batch in batches:
        yield batch.append_column(STANDING, standings(batch.column("transaction_id"), split.bounds))


def _cold(options: ReadOptions, split: Split, needs: Sequence[str]) -> Iterator[pa.RecordBatch]:
    assert options.fragments is not None
    assert split.fragment is not None
    store = clusters.store_at(options.fragments)
    return columns_from(
        store, split.fragment, split.fragment_bytes, split.span, needs, rows_max=_ROWS, cluster_key=split.cluster_key
    )


def _hot(options: ReadOptions, split: Split, needs: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns from the servers, which read from fragments what no replica holds any more."""
    log = clusters.log_at(options.cluster, options.tls)
    if split.cluster_key is not None and log.log_key != split.cluster_key:
        raise WrongClusterKey(
            f"{options.cluster} is another log here than where the query was planned: give all of Spark one address"
        )
    clusters.wait_for_partition(log, split.partition, options.timeout_s)
    reading = log.read_batches(
        split.partition, after=split.span.first - 1, until=split.span.last, timeout=options.timeout_s
    )
    first = split.span.first
    with reading as batches:
        for columns in _cut(batches, split, needs):
            first += columns.num_rows
            yield columns
    if first <= split.span.last:
        raise BeyondLog(
            f"partition {split.partition} ends before {first}, and the query was planned up to {split.span.last}: the "
            "log is another one now, or an older copy of it: correct the address, and make the query again"
        )


def _cut(batches: Iterable[Batch], split: Split, needs: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows that are in the split; its first and last batch may hold others."""
    first, last = split.span
    for run in _runs(batches):
        columns = columns_of(run, needs)
        begin, end = max(first, run[0].first), min(last, run[-1].last)
        yield columns.slice(begin - run[0].first, end - begin + 1)
        first = end + 1


def _runs(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    run: list[Batch] = []
    rows = size = 0
    for batch in batches:
        run.append(batch)
        rows, size = rows + batch.count, size + batch.length
        if rows >= _ROWS or size >= _BYTES:
            yield run
            run, rows, size = [], 0, 0
    if run:
        yield run
