"""Fragments as Arrow record batches, for Spark and audits: the rows and columns that are asked for, or those of a time.

Nothing is decoded row by row, and only the columns of the row groups that meet the span are read. The footer and every
page are checked against the CRCs that were written with them, and the ids against the fragment's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from polonaise.errors import BadOption, FragmentDamaged
from polonaise.fragments.arrow import SCHEMA, schema_of
from polonaise.fragments.format import Footer, open_fragment, readable
from polonaise.fragments.groups import chunk_of_group
from polonaise.fragments.objects import of_fragment
from polonaise.fragments.protocol.coverage import FragmentRange, Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import Range, RangeFile
from polonaise.fragments.store import ObstoreStore
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

ROWS_MAX: Final = 65_536
"""The most rows of a record batch, by default: few enough to be ready soon, and enough to make each one cheap."""
_IDS: Final = SCHEMA.get_field_index("transaction_id")


def columns_in(
    source: Any,
    expected: FragmentName | Footer,
    span: Span,
    columns: Sequence[str],
    *,
    rows_max: int = ROWS_MAX,
    cluster_key: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the transactions of `span` that are in a fragment, in the order of ids, `rows_max` at most at a time.

    `source` is a local file's path, which is mapped and not copied, bytes, or a `RangeFile`; `expected` tells which
    partition and ids the fragment must hold. `columns` are names of `SCHEMA`, in the order that the record batches
    have. A row group's columns are in memory at a time, and those of the next one while a `RangeFile` fetches it.

    Raises `BadOption` at once for columns that `schema_of` refuses or a `rows_max` below 1; and, while the batches are
    taken, `FragmentDamaged`, `UnsupportedFormat`, `WrongClusterKey`, `NotFound`, and what the store raises. Blocks: do
    not call this in an event loop.
    """
    schema = schema_of(columns)
    if rows_max < 1:
        raise BadOption(f"invalid rows_max: {rows_max}: name 1 or more")
    return _columns_in(source, expected, span, schema, rows_max, cluster_key)


def _columns_in(
    source: Any,
    expected: FragmentName | Footer,
    span: Span,
    schema: pa.Schema,
    rows_max: int,
    cluster_key: bytes | None,
) -> Iterator[pa.RecordBatch]:
    footer, file = open_fragment(source, cluster_key)
    if (footer.partition, footer.first, footer.last) != (expected.partition, expected.first, expected.last):
        raise FragmentDamaged(
            f"the fragment holds partition {footer.partition}, {footer.first} to {footer.last}, and should hold "
            f"partition {expected.partition}, {expected.first} to {expected.last}"
        )
    groups = [group for group in _groups(file, footer) if group.last >= span.first and group.first <= span.last]
    range_file = source if isinstance(source, RangeFile) else None
    if range_file is not None and groups:
        range_file.will_read(_chunks(file, groups[0], schema))
    for group, following in zip_longest(groups, groups[1:]):
        # The next group is fetched while this one is decoded and used.
        if range_file is not None and following is not None:
            range_file.will_read(_chunks(file, following, schema))
        with readable(f"row group {group.number}"):
            table = file.read_row_group(group.number, columns=schema.names, use_threads=False).select(schema.names)
        _check(table, schema, group, footer.partition)
        first, last = max(group.first, span.first), min(group.last, span.last)
        yield from table.slice(first - group.first, last - first + 1).to_batches(max_chunksize=rows_max)


class _Group(NamedTuple):
    number: int
    first: int
    last: int


def _groups(file: Any, footer: Footer) -> list[_Group]:
    """Return the row groups and their ids. Raises `FragmentDamaged` unless these are the footer's, without gaps."""
    groups: list[_Group] = []
    following = footer.first
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        ids = group.column(_IDS).statistics
        last = following + group.num_rows - 1
        if ids is None or (ids.min, ids.max) != (following, last):
            raise FragmentDamaged(f"row group {number} does not hold the ids from {following} to {last}")
        groups.append(_Group(number, following, last))
        following = last + 1
    if following - 1 != footer.last:
        raise FragmentDamaged(f"the row groups end with id {following - 1}, and the footer says {footer.last}")
    return groups


def _chunks(file: Any, group: _Group, schema: pa.Schema) -> list[Range]:
    return [chunk_of_group(file.metadata, group.number, name) for name in schema.names]


def _check(table: Any, schema: pa.Schema, group: _Group, partition: PartitionId) -> None:
    """Raise `FragmentDamaged` unless columns, rows, ids and partition, as far as read, are as the footer says."""
    if table.schema.remove_metadata() != schema or table.num_rows != group.last - group.first + 1:
        raise FragmentDamaged(f"row group {group.number} holds other columns, or other rows, than the footer says")
    wrong = False
    if "transaction_id" in schema.names:
        ids = table.column("transaction_id").to_numpy()
        wrong = bool((ids != np.arange(group.first, group.last + 1)).any())
    if "partition" in schema.names:
        wrong = wrong or bool((table.column("partition").to_numpy() != partition).any())
    if wrong:
        raise FragmentDamaged(
            f"the rows of row group {group.number} are not those of partition {partition} from {group.first} to "
            f"{group.last}, as its footer says"
        )


class StillTime(NamedTuple):
    """A commit time that several batches of a partition have."""

    first: TransactionId
    """The first id of the second batch that has it."""
    time_us: int


class _Rows(NamedTuple):
    """Consecutive transactions: of each its commit time, and the first id of the batch that it is in."""

    first: TransactionId
    times_us: Any
    batches: Any


def last_at(
    store: ObstoreStore, pieces: Sequence[FragmentRange], sizes: Mapping[FragmentName, int], time_us: int
) -> tuple[TransactionId, StillTime | None]:
    """Return the last id with a commit time of `time_us` (microseconds UTC) or before, -1 for none; and the first time
    behind it that several batches have, None if none does. `pieces` are of one partition, from its first id on, and
    `sizes` are the bytes of their fragments. Blocks; raises `FragmentDamaged`, which names the fragment, and what the
    store raises."""
    start = _later(store, pieces, sizes, time_us)
    last = pieces[start].span.first - 1 if start < len(pieces) else pieces[-1].span.last if pieces else NO_TRANSACTION
    before: tuple[int, int] | None = None  # the time and the batch of the row before
    for piece in pieces[start:]:
        for rows in _rows(store, piece, sizes[piece.fragment], piece.span):
            # Times never decrease, so the rows up to the time are those at the beginning.
            upto = int(np.searchsorted(rows.times_us, time_us, side="right"))
            if upto:
                last = rows.first + upto - 1
            times, batches = rows.times_us[upto:], rows.batches[upto:]
            if not len(times):
                continue
            if before is not None:
                times, batches = np.append(before[0], times), np.append(before[1], batches)
            same = np.flatnonzero((times[1:] == times[:-1]) & (batches[1:] != batches[:-1]))
            if len(same):
                return last, StillTime(int(batches[same[0] + 1]), int(times[same[0]]))
            before = int(times[-1]), int(batches[-1])
    return last, None


def _later(
    store: ObstoreStore, pieces: Sequence[FragmentRange], sizes: Mapping[FragmentName, int], time_us: int
) -> int:
    """Return the index of the first piece whose last transaction is later than the time, or `len(pieces)`."""
    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if time_of(store, pieces[middle], sizes, pieces[middle].span.last) > time_us:
            high = middle
        else:
            low = middle + 1
    return low


def time_of(store: ObstoreStore, piece: FragmentRange, sizes: Mapping[FragmentName, int], id: TransactionId) -> int:
    """Return the commit time of a transaction of the piece, in microseconds UTC. Otherwise as `last_at`."""
    (rows,) = _rows(store, piece, sizes[piece.fragment], Span(id, id))
    return int(rows.times_us[0])


def _rows(store: ObstoreStore, piece: FragmentRange, size: int, span: Span) -> Iterator[_Rows]:
    """Yield the transactions of a span of the piece. Raises `FragmentDamaged`, which names the fragment."""
    source, following = store.source(piece.fragment.path, size), span.first
    with of_fragment(piece.fragment), closing(source) if isinstance(source, RangeFile) else nullcontext():
        for rows in columns_in(source, piece.fragment, span, ["timestamp", "batch_first"]):
            times, batches = rows.column(0).cast("int64").to_numpy(), rows.column(1).to_numpy()
            yield _Rows(following, times, batches)
            following += rows.num_rows
