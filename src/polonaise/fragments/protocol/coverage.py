"""The coverage of ids by fragments: which to read for a range, what none of them holds, and what to archive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from polonaise.errors import invariant
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, TransactionId


class Span(NamedTuple):
    """Ids from `first` to `last`, both included."""

    first: TransactionId
    last: TransactionId

    @property
    def length(self) -> int:
        """How many ids these are."""
        return self.last - self.first + 1


class BatchEnd(NamedTuple):
    """The end of a batch of the log. What has the same batch there has the same ones before it."""

    last: TransactionId
    """The last id of the batch."""
    crc: int
    """Its CRC, which the batch behind it carries."""


class FragmentRange(NamedTuple):
    """A part of a range, and the fragment to take it from."""

    fragment: FragmentName
    span: Span
    """The ids to take from the fragment: fragments may overlap, and each id is taken from one."""


class Coverage(NamedTuple):
    """The parts of a range of ids that fragments hold, and those that none holds."""

    pieces: tuple[FragmentRange, ...]
    holes: tuple[Span, ...]


def cover(fragments: Iterable[FragmentName], wanted: Span) -> Coverage:
    """Cover `wanted` with the fewest fragments of one partition, each id once; every process chooses the same ones."""
    rising = sorted(fragments, key=lambda each: (each.first, -each.last, each.digest))
    pieces: list[FragmentRange] = []
    holes: list[Span] = []
    position, number = wanted.first, 0
    best: FragmentName | None = None
    while position <= wanted.last:
        while number < len(rising) and rising[number].first <= position:
            if best is None or rising[number].last > best.last:
                best = rising[number]
            number += 1
        if best is None or best.last < position:
            following = rising[number].first if number < len(rising) else wanted.last + 1
            holes.append(Span(position, min(following - 1, wanted.last)))
            position = following
            continue
        last = min(best.last, wanted.last)
        pieces.append(FragmentRange(best, Span(position, last)))
        position = last + 1
    return Coverage(tuple(pieces), tuple(holes))


def archived_up_to(fragments: Iterable[FragmentName]) -> TransactionId:
    """Return the id up to which everything from 0 is in these fragments of one partition; -1 for nothing."""
    end = -1
    for fragment in sorted(fragments):
        if fragment.first > end + 1:
            break
        end = max(end, fragment.last)
    return end


def may_be_only_copy(store: object, partition: PartitionId, first: TransactionId, last: TransactionId) -> str:
    """Return why ids that lie in a store are not to be given up lightly, and how they are kept, as sentences."""
    return (
        f"The ids {first} to {last} of partition {partition} are committed, as nothing else is archived, and {store} "
        f"may have their only copy. {how_to_keep(store)}"
    )


def how_to_keep(store: object) -> str:
    return (
        f"To keep them, archive what the other partitions hold, once they are open (polonaise archive run LOG {store} "
        "--rest), stop this cluster for good, and make it again from the store (polonaise archive restore "
        f"{store} NEW-DIRECTORY --nodes A=HOST:PORT,…)"
    )


FRAGMENT_BYTES: Final = 256 * 1024 * 1024
"""The default size of a fragment in bytes of batches, before Parquet makes them smaller: as a segment."""


def spans_to_write(
    fragments: Iterable[FragmentName], committed: TransactionId, *, ids_max: int | None = None, rest: bool = True
) -> list[Span]:
    """Return the ids up to `committed` that none of a partition's fragments holds, in order. With `ids_max` they are
    cut at the multiples of it, the same in every plan; then the ids after the last multiple, which do not fill a span
    yet, are left for another time unless `rest`."""
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
