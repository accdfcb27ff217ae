"""Divide ranges of history into the splits that tasks read, each from a fragment, the servers or a replica's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.storage.protocol.standing import Bounds
from polonaise.terms import PartitionId, TransactionId


class Split(NamedTuple):
    """The part of a partition's history that one task reads."""

    partition: PartitionId
    span: Span
    fragment: FragmentName | None
    """The fragment to read; None to read from the servers, or from a replica's files."""
    fragment_bytes: int = 0
    """Size of the whole fragment, in bytes; 0 without one."""
    cluster_key: bytes | None = None
    """The key that the fragment or the log must have (`Log.log_key`); None if unknown."""
    bounds: Bounds | None = None
    """What the replica whose files are read proves of its transactions; None to read from servers or a fragment."""


class Extent(NamedTuple):
    """A contiguous range of one partition that is read from one place, and roughly how many bytes it has there."""

    partition: PartitionId
    span: Span
    fragment: FragmentName | None
    bytes: int
    fragment_bytes: int = 0
    bounds: Bounds | None = None
    """The bounds of its splits, see `Split`. Files are never divided: each is read from its beginning."""


def cold_extents(fragments: Mapping[FragmentName, int], partition: PartitionId, wanted: Span) -> list[Extent]:
    """Return the parts of `wanted` that can be read from fragments. `fragments` gives the size of each in bytes."""
    extents = []
    for fragment, span in cover(fragments, wanted).pieces:
        share = span.length / (fragment.last - fragment.first + 1)
        size = fragments[fragment]
        extents.append(Extent(partition, span, fragment, int(size * share), size))
    return extents


def rest_of(extents: Sequence[Extent], wanted: Span) -> list[Span]:
    """Return the parts of `wanted` that the extents do not cover."""
    rest: list[Span] = []
    following = wanted.first
    for extent in sorted(extents, key=lambda each: each.span):
        if extent.span.first > following:
            rest.append(Span(following, extent.span.first - 1))
        following = extent.span.last + 1
    if following <= wanted.last:
        rest.append(Span(following, wanted.last))
    return rest


def divide(extents: Sequence[Extent], split_bytes_max: int, splits_min: int) -> list[Split]:
    """Divide extents into splits of about `split_bytes_max` bytes or less, and at least `splits_min` if possible.
    Extents of a replica's files are not divided, and with one among the extents there may be fewer than
    `splits_min`."""
    total = sum(max(extent.bytes, extent.span.length) for extent in extents)
    # A fragment may hold few bytes per row, as it is compressed: each row counts for one byte at least.
    size = min(split_bytes_max, max(total // splits_min, 1))
    splits = [split for extent in extents for split in _divided(extent, size)]
    # A replica's files are not divided, however many splits were asked for.
    if any(extent.bounds is not None for extent in extents):
        return splits
    while len(splits) < splits_min:
        largest = max(range(len(splits)), key=lambda index: splits[index].span.length, default=None)
        if largest is None or splits[largest].span.length < 2:
            break
        splits[largest : largest + 1] = _halves(splits[largest])
    return splits


def _divided(extent: Extent, size: int) -> Iterator[Split]:
    """Divide an extent into equal numbers of ids: the size of single transactions is not known."""
    if extent.bounds is not None:
        yield Split(extent.partition, extent.span, None, bounds=extent.bounds)
        return
    parts = min(max(-(-max(extent.bytes, extent.span.length) // size), 1), extent.span.length)
    first: TransactionId = extent.span.first
    for part in range(1, parts + 1):
        last = extent.span.first + extent.span.length * part // parts - 1
        yield Split(extent.partition, Span(first, last), extent.fragment, extent.fragment_bytes)
        first = last + 1


def _halves(split: Split) -> list[Split]:
    middle = (split.span.first + split.span.last) // 2
    return [split._replace(span=Span(split.span.first, middle)), split._replace(span=Span(middle + 1, split.span.last))]


def admitted(
    starts: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId], rows_max: int | None
) -> dict[PartitionId, TransactionId]:
    """Return the id before which to stop in each partition, for `rows_max` transactions in all (None: no limit).
    Partitions are read from their id in `starts`; `ends` holds the id after each one's last transaction. Every
    partition with something new gives at least one transaction if `rows_max` allows, so that none waits for the others.
    Beyond that, each gives in proportion to what it has. All of `rows_max` is used if there is that much."""
    waiting = {partition: end - starts[partition] for partition, end in ends.items() if end > starts[partition]}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        shares = waiting
    else:
        each = int(rows_max >= len(waiting))
        rest, over = rows_max - each * len(waiting), total - each * len(waiting)
        shares = {partition: each + (rows - each) * rest // over for partition, rows in waiting.items()}
        unshared = rows_max - sum(shares.values())
        # What rounding left over goes to the partitions with most to read, so that each gets its turn.
        by_need = sorted(waiting, key=lambda partition: (shares[partition] - waiting[partition], partition))
        for partition in by_need[:unshared]:
            shares[partition] += 1
    return {partition: starts[partition] + shares.get(partition, 0) for partition in ends}
