"""Find the transaction at a commit time. Commit times never decrease, so a few reads are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polonaise.errors import HistoryTrimmed
from polonaise.fragments.protocol.coverage import FragmentRange, Span, archived_up_to, cover
from polonaise.spark.fragmentfiles import columns_from
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from polonaise.spark.queryhistory import QueryHistory


def first_at(history: QueryHistory, partition: PartitionId, time_us: int, end: TransactionId) -> TransactionId:
    """Return the first transaction committed at `time_us` (microseconds UTC) or later; `end` if there is none.

    Raises `HistoryTrimmed` if it may be in a range that is in no fragment known here.
    """
    if history.replica is not None:
        held = history.replica.first_at(partition, time_us, end)
        # The replica's first transaction is late enough: an earlier one, which was trimmed, may be so too.
        trimmed = history.store is not None and held <= history.replica.begin(partition)
        return _in_fragments(history, partition, time_us, held) if trimmed else held
    if history.log is None:
        return _in_fragments(history, partition, time_us, end)
    try:
        with history.log.read_time(partition, since=time_us, timeout=history.timeout_s) as found:
            first = next(iter(found), None)
    except HistoryTrimmed as error:
        if history.store is None:
            raise history.trimmed(error) from error
        # Archived history has no gap at its beginning: what the servers still hold begins at its end, or before.
        archived = archived_up_to(history.fragments(partition))
        return _in_fragments(history, partition, time_us, min(archived + 1, end))
    return end if first is None else min(first.id, end)


def _in_fragments(history: QueryHistory, partition: PartitionId, time_us: int, end: TransactionId) -> TransactionId:
    """Return the same, looking only at fragments below `end`."""
    pieces = cover(history.fragments(partition), Span(0, end - 1)).pieces
    low, high = 0, len(pieces)
    while low < high:  # find the first piece whose last transaction is not before that time
        middle = (low + high) // 2
        last = pieces[middle].span.last
        if _times(history, pieces[middle], Span(last, last))[0] < time_us:
            low = middle + 1
        else:
            high = middle
    if low == len(pieces):
        return end
    return pieces[low].span.first + int(np.searchsorted(_times(history, pieces[low], pieces[low].span), time_us))


def _times(history: QueryHistory, piece: FragmentRange, span: Span) -> Any:
    """Return the commit times, microseconds UTC, of part of a piece."""
    assert history.store is not None
    size = history.fragments(piece.fragment.partition)[piece.fragment]
    batches = columns_from(history.store, piece.fragment, size, span, ["timestamp"], cluster_key=history.cluster_key)
    return np.concatenate([batch.column(0).cast("int64").to_numpy() for batch in batches])
