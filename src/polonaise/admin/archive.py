"""Archiving without Spark: what is committed and not yet in fragments is read from the servers and written there."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from polonaise.client.log import Log
from polonaise.errors import FragmentDamaged, WrongClusterKey
from polonaise.fragments.format import Footer, Writer, batches_in, footer_in, open_fragment
from polonaise.fragments.protocol.coverage import Coverage, Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName, partition_prefix
from polonaise.fragments.store import ObjectStore
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger(__name__)

FRAGMENT_BYTES: Final = 256 * 1024 * 1024
"""Of batches, before Parquet makes them smaller: as much as a segment holds."""
_FOOTER_BYTES: Final = 64 * 1024
"""Fetched of a fragment to learn what it is; more than most footers have."""


class Archived(NamedTuple):
    """A fragment that was written just now."""

    fragment: FragmentName
    bytes: int


async def fragments_of(store: ObjectStore, partition: PartitionId) -> dict[FragmentName, int]:
    """The fragments of a partition, in the order of their names, and how many bytes each has."""
    listed = await store.list(partition_prefix(partition))
    return {name: each.bytes for each in listed if (name := FragmentName.parse(each.path)) is not None}


async def partitions_in(store: ObjectStore) -> list[PartitionId]:
    """The partitions that have fragments."""
    names = [FragmentName.parse(each.path) for each in await store.list()]
    return sorted({name.partition for name in names if name is not None})


async def archive(
    log: Log,
    store: ObjectStore,
    partition: PartitionId,
    *,
    fragment_bytes: int = FRAGMENT_BYTES,
    rest: bool = False,
    timeout: float | None = None,
) -> AsyncGenerator[Archived, None]:
    """Write what is committed and not in the store yet, fragment by fragment; each is verified, then told.

    A part that does not fill a fragment yet is left for the next time, unless `rest`. Several archivers may run at the
    same time, and any of them may be killed: what they write twice is the same object, or overlaps. Raises what
    reading and the store raise, and `WrongClusterKey` for a store that holds another cluster's fragments.
    """
    fragments = await fragments_of(store, partition)
    if fragments and (await _footer_of(store, *list(fragments.items())[-1])).cluster_key != log.cluster_key:
        raise WrongClusterKey(f"{store} holds fragments of another cluster: choose another address, one per cluster")
    after = archived_up_to(fragments)
    committed = await log.high_water_mark(partition, timeout=timeout)
    if after >= committed:
        return
    writer, size = Writer(log.cluster_key), 0
    async for batch in log.read_batches(partition, after=after, until=committed, timeout=timeout):
        if batch.first > committed:
            break
        writer.add(batch)
        size += batch.length
        if size >= fragment_bytes:
            yield await _store(store, writer)
            writer, size = Writer(log.cluster_key), 0
    if size and rest:
        yield await _store(store, writer)


async def _footer_of(store: ObjectStore, name: FragmentName, size: int) -> Footer:
    """What a fragment of so many bytes says of itself, without the rest of it if that can be."""
    length = min(size, _FOOTER_BYTES)
    try:
        footer = footer_in(await store.get_range(name.path, size - length, length))
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path}: {error.text}") from error
    return footer or open_fragment_bytes(await store.get(name.path), name)[0]


async def _store(store: ObjectStore, writer: Writer) -> Archived:
    footer, data = await asyncio.to_thread(writer.finish)
    raw = data.to_pybytes()
    name = FragmentName(footer.partition, footer.first, footer.last, hashlib.sha256(raw).hexdigest())
    written = await store.put_if_absent(name.path, raw)
    await verified(store, name)
    _log.info("%s %s, %d bytes", "wrote" if written else "found", name.path, len(raw))
    return Archived(name, len(raw))


# ------------------------------------------------------------------ verifying


def open_fragment_bytes(raw: bytes, name: FragmentName) -> tuple[Footer, object]:
    """As `format.open_fragment`, of an object that was fetched whole: its digest and its ids are those of its name.

    Raises `FragmentDamaged`, which names the object.
    """
    if hashlib.sha256(raw).hexdigest() != name.digest:
        raise FragmentDamaged(f"{name.path}: its bytes are not those that it was named for: restore it from a copy")
    try:
        footer, file = open_fragment(raw)
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path}: {error.text}") from error
    if footer[1:4] != name[:3]:
        raise FragmentDamaged(f"{name.path} holds partition {footer.partition}, {footer.first} to {footer.last}")
    return footer, file


async def verified(store: ObjectStore, name: FragmentName) -> Footer:
    """Fetch a fragment and make every batch of it again. Raises `FragmentDamaged`, which names it."""
    raw = await store.get(name.path)
    footer, _ = open_fragment_bytes(raw, name)
    await asyncio.to_thread(_check_batches, raw, name)
    return footer


def _check_batches(raw: bytes, name: FragmentName) -> None:
    try:
        for _ in batches_in(raw):  # each is made again, and compared with the CRC that it had
            pass
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path}: {error.text}") from error


@dataclass
class StoreReport:
    """A partition's fragments, read and compared with each other."""

    partition: PartitionId
    fragments: int = 0
    transactions: int = 0
    bytes: int = 0
    last: TransactionId = -1
    """The last id up to which everything is in good fragments; -1 for nothing."""
    holes: tuple[Span, ...] = ()
    wrong: list[str] = field(default_factory=list)
    """Damaged fragments, and those that are not of one log with the others."""

    @property
    def troubles(self) -> list[str]:
        """What is not well, line by line; nothing when all is."""
        return self.wrong + [f"nothing holds {span.first} to {span.last}" for span in self.holes]


async def verify(store: ObjectStore, partition: PartitionId) -> StoreReport:
    """Read every fragment of a partition: is each as it was written, are they of one log, is anything missing?"""
    report = StoreReport(partition)
    good: list[tuple[FragmentName, Footer]] = []
    for name, size in (await fragments_of(store, partition)).items():
        report.fragments += 1
        report.bytes += size
        try:
            good.append((name, await verified(store, name)))
        except FragmentDamaged as error:
            report.wrong.append(error.text)
    report.wrong += contradictions(good)
    covered = _cover_all([name for name, _ in good])
    report.holes = covered.holes
    report.transactions = sum(piece.span.last - piece.span.first + 1 for piece in covered.pieces)
    report.last = archived_up_to([name for name, _ in good])
    return report


def _cover_all(names: Sequence[FragmentName]) -> Coverage:
    return cover(names, Span(0, max((name.last for name in names), default=-1)))


def contradictions(good: Sequence[tuple[FragmentName, Footer]]) -> list[str]:
    """Fragments of another cluster than the first one, or that go on from another batch than the one before them."""
    wrong: list[str] = []
    ends = {footer.last: footer.last_crc for _, footer in good}
    for name, footer in good:
        if footer.cluster_key != good[0][1].cluster_key:
            wrong.append(f"{name.path} is of another cluster than {good[0][0].path}")
        elif ends.get(footer.first - 1, footer.previous_crc) != footer.previous_crc:
            wrong.append(f"{name.path} goes on from another batch than the one that ends at {footer.first - 1}")
    return wrong
