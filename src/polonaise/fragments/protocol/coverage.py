"""The fragments to read for a range of ids: the fewest that cover it, and what none of them holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from polonaise.fragments.protocol.names import FragmentName
from polonaise.terms import TransactionId


class Span(NamedTuple):
    """Ids from `first` to `last`, both included."""

    first: TransactionId
    last: TransactionId


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
