"""Commit times in fragments: which transactions are not later than a time, and where times stand still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, NamedTuple

import numpy as np

from polonaise.fragments.columns import columns_in
from polonaise.fragments.objects import of_fragment
from polonaise.fragments.protocol.coverage import FragmentRange, Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import RangeFile
from polonaise.fragments.store import ObstoreStore
from polonaise.terms import NO_TRANSACTION, TransactionId


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
    behind it that several batches have, None if none does.

    `pieces` are of one partition, from its first id on, and `sizes` are the bytes of their fragments. Blocks; raises
    `FragmentDamaged`, which names the fragment, and what the store raises.
    """
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
