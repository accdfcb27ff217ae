"""Which transaction a time falls on: commit times never decrease, so a few looks tell."""

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
    """The first transaction committed at this time or later, microseconds UTC; `end` if there is none.

    Raises `HistoryTrimmed` when that may be in a range which is in no fragments that are known here.
    """
    if history.replica is not None:
        held = history.replica.first_at(partition, time_us, end)
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
        # What no server holds is archived without a gap from the beginning on, so what follows that is the first left.
        archived = archived_up_to(history.fragments(partition))
        return _in_fragments(history, partition, time_us, min(archived + 1, end))
    return end if first is None else min(first.id, end)


def _in_fragments(history: QueryHistory, partition: PartitionId, time_us: int, end: TransactionId) -> TransactionId:
    """The same by what the store holds below `end`."""
    pieces = cover(history.fragments(partition), Span(0, end - 1)).pieces
    low, high = 0, len(pieces)
    while low < high:  # the first piece whose last transaction is not before that time
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
    """Commit times, microseconds UTC, of transactions of a piece."""
    assert history.store is not None
    size = history.fragments(piece.fragment.partition)[piece.fragment]
    batches = columns_from(history.store, piece.fragment, size, span, ["timestamp"], cluster_key=history.cluster_key)
    return np.concatenate([batch.column(0).cast("int64").to_numpy() for batch in batches])
