"""What to archive: the ids that are committed and in no fragment yet, as spans, each the work of one writer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polonaise.errors import invariant
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.terms import TransactionId

FRAGMENT_BYTES: Final = 256 * 1024 * 1024
"""The default size of a fragment in bytes of batches, before Parquet makes them smaller: as a segment."""


def spans_to_write(
    fragments: Iterable[FragmentName],
    committed: TransactionId,
    *,
    ids_max: int | None = None,
    rest: bool = True,
) -> list[Span]:
    """Return the ids up to `committed` that none of a partition's fragments holds, in order.

    With `ids_max` they are cut at the multiples of it, the same in every plan; then the ids after the last multiple,
    which do not fill a span yet, are left for another time unless `rest`.
    """
    invariant(ids_max is None or ids_max > 0, "a span holds at least one id")
    holes = cover(fragments, Span(0, committed)).holes
    if ids_max is None:
        return list(holes)
    spans = [part for hole in holes for part in _cut(hole, ids_max)]
    if spans and not rest and spans[-1].last == committed and (committed + 1) % ids_max:
        spans.pop()
    return spans


def _cut(hole: Span, ids_max: int) -> list[Span]:
    edges = range((hole.first // ids_max + 1) * ids_max, hole.last + 1, ids_max)
    firsts = [hole.first, *edges]
    lasts = [*(edge - 1 for edge in edges), hole.last]
    return [Span(first, last) for first, last in zip(firsts, lasts, strict=True)]


def belongs(batch: Batch, span: Span, limit: TransactionId) -> bool:
    """Tell whether the writer of `span` takes this batch: if it begins in the span and ends at `limit` or below."""
    return span.first <= batch.first <= span.last and batch.last <= limit
