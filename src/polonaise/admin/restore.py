"""Restoring a log from its fragments: the directory of a new log, with the very batches that were archived.

Nothing that was in a batch changes: ids, request ids, registers, evidence, commit times, CRCs. The nodes' promises and
the coordinator's values are made as if the copies had just ended a session together, all whole; so the first server
opens the log by the ordinary rules, and what is appended follows. `docs/decisions/0012` says what was decided.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from polonaise.admin.newdirectory import new_directory
from polonaise.admin.replicas import Replicas
from polonaise.coordination.values import (
    Assignment,
    Beginning,
    ClusterDescription,
    Engagement,
    Owner,
    PartitionValue,
)
from polonaise.errors import BadOption, FragmentDamaged, HistoryIncomplete
from polonaise.fragments.format import Footer, batches_in
from polonaise.fragments.objects import PUT_BACK, contradictions, footer_of, fragments_of, open_bytes, partitions_in
from polonaise.fragments.protocol.coverage import FragmentRange, Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObjectStore
from polonaise.host import Host
from polonaise.host.real import RealHost
from polonaise.log.batch import Batch
from polonaise.log.partitionlog import LogSettings
from polonaise.node.addresses import check_storage_address
from polonaise.node.embedded import (
    PARTITIONS_MAX,
    SEGMENT_BATCHES_MAX,
    SEGMENT_BYTES_MAX,
    STORAGE_MAX,
    coordinator_of,
    make_log,
    storage_directory,
    storage_names,
)
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, TransactionId

_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Of batches, made again in another thread and then written with one sync."""
_SESSIONS_APART: Final = 2**32
_GENERATIONS_APART: Final = 2**10
_UNIQUE_IDS_APART: Final = 2**20
"""Numbers begin so far above the highest that the fragments tell of: the log that they are of may have given out more
since, which left no trace. No directory or client of that log must ever pass for one of this."""
_UNIQUE_ID_MAX: Final = 2**31 - 1
_NOBODY: Final = 0
"""A server id that is never given out: the last owner of every partition, and dead."""


class Key(enum.Enum):
    """Which cluster the restored log is."""

    SAME = "same"
    """The one that was archived: its views and its fragment store go on with it."""
    NEW = "new"
    """Another one: it can't be taken for the one that was archived."""


@dataclass(frozen=True, slots=True)
class HowToRestore:
    """What is restored, and what of."""

    storage: int = 1
    """So many storage directories of an embedded log."""
    nodes: tuple[StorageId, ...] = ()
    """The addresses of the storage nodes of a cluster with a coordinator in a directory; empty for an embedded log."""
    partitions: int | None = None
    """How many partitions the log has; None for up to the last one that has fragments."""
    until: Mapping[PartitionId, TransactionId] | None = None
    """The last id of each partition, or of the last whole batch below it."""
    until_time_us: int | None = None
    """No batch of a later commit time."""
    key: Key | None = None
    """None for the same, which is not assumed when anything is left out."""


class RestoredPartition:
    """What was restored of one partition, and which numbers it tells of."""

    def __init__(self, partition: PartitionId, held: TransactionId) -> None:
        self.partition = partition
        self.held = held
        """The last id in the store; -1 for a partition that has no fragments, and begins empty."""
        self.last: TransactionId = NO_TRANSACTION
        """The last id restored; -1 for none."""
        self.cut: Span | None = None
        """The batch that the last id asked for lies in, and that goes beyond it: nothing of it is restored."""
        self.last_crc = 0
        self.batches = 0
        self.bytes = 0
        self.last_commit_time_us = 0
        self.session = self.generation = self.unique_id = 0
        """The highest in the batches."""

    def take(self, batch: Batch) -> None:
        self.last, self.last_crc = batch.last, batch.crc
        self.batches += 1
        self.bytes += batch.length
        self.last_commit_time_us = batch.commit_time_us
        self.session = max(self.session, batch.session)
        self.generation = max(self.generation, batch.generation)
        self.unique_id = max(self.unique_id, max(batch.client_ids))


@dataclass(frozen=True, slots=True)
class Restored:
    """A log that was restored."""

    directory: str
    cluster_key: bytes
    partitions: tuple[RestoredPartition, ...]
    """Up to the last one that has fragments; those after it are new."""


@dataclass
class _Source:
    """What of a store is restored. Found before anything is written."""

    cluster_key: bytes
    pieces: dict[PartitionId, Sequence[FragmentRange]] = field(default_factory=dict)
    held: dict[PartitionId, TransactionId] = field(default_factory=dict)


async def restore(
    store: ObjectStore,
    directory: str,
    how: HowToRestore,
    tell: Callable[[RestoredPartition], None] = lambda partition: None,
) -> Restored:
    """Make the directory of a log from a store's fragments; `tell` is called after each partition.

    Whole batches are restored: those that end at or below the given ids, and are not later than the given time. Until
    it has returned, the directory holds no log, and says so to whoever opens it; it may be killed at any time, and be
    run again, which begins anew.

    Raises, with nothing written: `BadOption` for what can't be meant, `HistoryIncomplete` for a store with holes or
    contradictions, which are named, `AlreadyInitialized` for a directory with a log, `DirectoryInUse`. And
    `FragmentDamaged`, which names the fragment, what the store raises and what the disk does.
    """
    names = _checked_nodes(how)
    source = await _survey(store, how)
    count = _partition_count(source, how)
    cluster_key = secrets.token_bytes(16) if _key(how, source) is Key.NEW else source.cluster_key
    host = RealHost()
    try:
        async with new_directory(host.disk, directory, embedded=not how.nodes):
            restored = await _write(host, store, directory, how, source, cluster_key, tell)
            description = ClusterDescription(cluster_key, count, names)
            coordinator = coordinator_of(host, directory)
            try:
                await coordinator.initialize(description, _beginning(restored, names))
            finally:
                await coordinator.close()
            if not how.nodes:
                await make_log(host.disk, directory)
    finally:
        host.close()
    return Restored(directory, cluster_key, tuple(restored))


# ------------------------------------------------------------------ what to restore


def _checked_nodes(how: HowToRestore) -> tuple[StorageId, ...]:
    """The names of the storage nodes."""
    if not how.nodes:
        if not 1 <= how.storage <= STORAGE_MAX:
            raise BadOption(f"{how.storage} storage directories can't be meant: from 1 to {STORAGE_MAX}")
        return storage_names(how.storage)
    for address in how.nodes:
        check_storage_address(address)
    if len(set(how.nodes)) < len(how.nodes):
        raise BadOption(f"{', '.join(how.nodes)}: a storage node is named twice")
    return how.nodes


def _partition_count(source: _Source, how: HowToRestore) -> int:
    least = max(source.pieces) + 1
    count = least if how.partitions is None else how.partitions
    if not least <= count <= PARTITIONS_MAX:
        raise BadOption(f"{count} partitions can't be meant: the store has fragments of partition {least - 1}")
    return count


def _key(how: HowToRestore, source: _Source) -> Key:
    """The same key says: views, sinks and the fragment store are this log's. They are not, of what was left out."""
    if how.key is not None:
        return how.key
    left_out = how.until is not None and any(how.until[number] < held for number, held in source.held.items())
    if how.until_time_us is not None or left_out:
        raise BadOption(
            "transactions are left out that the store holds, and views perhaps: should this be a log of its own, which "
            "their views and their store refuse (a new key, --new-key), or go on as the one that was archived (the "
            "same key, --same-key), after the views that know more were made anew and the store was replaced?"
        )
    return Key.SAME


async def _survey(store: ObjectStore, how: HowToRestore) -> _Source:
    """Which fragments to take, after a look at all of them: their names and footers make one log without holes."""
    partitions = await partitions_in(store)
    if not partitions:
        raise HistoryIncomplete(f"{store} holds no fragments: check its address")
    if how.until is not None and set(how.until) != set(partitions):
        named, there = ", ".join(map(str, sorted(how.until))), ", ".join(map(str, partitions))
        raise BadOption(f"ids are named of partitions {named}, and {store} holds partitions {there}: name each of them")
    source: _Source | None = None
    for number in partitions:
        good: list[tuple[FragmentName, Footer]] = []
        for name, size in (await fragments_of(store, number)).items():
            good.append((name, await footer_of(store, name, size)))
        cluster_key = good[0][1].cluster_key
        source = source or _Source(cluster_key)
        wrong = contradictions(good)
        if cluster_key != source.cluster_key:
            wrong.append(f"the fragments of partition {number} are of another cluster than those before it")
        if wrong:
            raise HistoryIncomplete(f"{store}: {'; '.join(wrong)}")
        names = [name for name, _ in good]
        source.held[number] = max(name.last for name in names)
        source.pieces[number] = _pieces(store, number, names, source.held[number], how)
    assert source is not None
    return source


def _pieces(
    store: ObjectStore, number: PartitionId, names: Sequence[FragmentName], held: TransactionId, how: HowToRestore
) -> Sequence[FragmentRange]:
    last = held if how.until is None else how.until[number]
    if last > held:
        raise HistoryIncomplete(f"{store} holds partition {number} up to {held}: it can't be restored up to {last}")
    covered = cover(names, Span(0, last))
    if covered.holes:
        missing = ", ".join(f"{hole.first} to {hole.last}" for hole in covered.holes)
        raise HistoryIncomplete(f"{store} lacks ids of partition {number}: {missing}; {PUT_BACK}")
    return covered.pieces


# ------------------------------------------------------------------ from fragments to segments


async def _write(
    host: Host,
    store: ObjectStore,
    directory: str,
    how: HowToRestore,
    source: _Source,
    cluster_key: bytes,
    tell: Callable[[RestoredPartition], None],
) -> list[RestoredPartition]:
    directories = [storage_directory(directory, number) for number in range(len(how.nodes) or how.storage)]
    settings = LogSettings() if how.nodes else LogSettings(SEGMENT_BYTES_MAX, SEGMENT_BATCHES_MAX)
    restored: list[RestoredPartition] = []
    async with Replicas(host, directories, cluster_key, settings) as replicas:
        for number in range(max(source.pieces) + 1):
            partition = RestoredPartition(number, source.held.get(number, NO_TRANSACTION))
            await _write_partition(replicas, store, source.pieces.get(number, ()), partition, how)
            restored.append(partition)
            tell(partition)
    return restored


async def _write_partition(
    replicas: Replicas,
    store: ObjectStore,
    pieces: Sequence[FragmentRange],
    partition: RestoredPartition,
    how: HowToRestore,
) -> None:
    """A partition of which nothing is restored is not made: it begins as in any new log."""
    async with aclosing(_chunks(store, pieces, partition, how)) as chunks:
        first = await anext(chunks, None)
        if first is None:
            return
        copies = await replicas.partition(partition.partition)
        try:
            await copies.append(first)
            async for chunk in chunks:
                await copies.append(chunk)
            await copies.finish(partition.session + _SESSIONS_APART)
        finally:
            await copies.close()


async def _chunks(
    store: ObjectStore, pieces: Sequence[FragmentRange], partition: RestoredPartition, how: HowToRestore
) -> AsyncGenerator[list[Batch], None]:
    """The batches to restore, noted in `partition`. One fragment is in memory."""
    for piece in pieces:
        raw = await store.get(piece.fragment.path)
        await asyncio.to_thread(open_bytes, raw, piece.fragment)
        batches = _batches(raw, piece, partition, how)
        while chunk := await asyncio.to_thread(_next_chunk, batches):
            yield chunk
        if partition.last < piece.span.last:
            return


def _batches(raw: bytes, piece: FragmentRange, partition: RestoredPartition, how: HowToRestore) -> Iterator[Batch]:
    """Those of a fragment that follow what was restored, up to the limits; fragments may overlap."""
    last_allowed = partition.held if how.until is None else how.until[partition.partition]
    try:
        for batch in map(_parsed, batches_in(raw)):
            if batch.last <= partition.last:
                continue
            if (batch.first, batch.previous_crc) != (partition.last + 1, partition.last_crc):
                raise HistoryIncomplete(
                    f"{piece.fragment.path} goes on from another batch than the one that ends at {partition.last}"
                )
            if batch.last > last_allowed:
                partition.cut = Span(batch.first, batch.last) if batch.first <= last_allowed else None
                return
            if how.until_time_us is not None and batch.commit_time_us > how.until_time_us:
                return
            partition.take(batch)
            yield batch
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{piece.fragment.path}: {error.text}") from error


def _parsed(raw: bytes) -> Batch:
    return Batch.parse(raw, verify=False)  # it was made, and compared with its CRC, just now


def _next_chunk(batches: Iterator[Batch]) -> list[Batch]:
    chunk: list[Batch] = []
    size = 0
    for batch in batches:
        chunk.append(batch)
        size += batch.length
        if size >= _CHUNK_BYTES:
            break
    return chunk


# ------------------------------------------------------------------ what the coordinator is told


def _beginning(restored: Sequence[RestoredPartition], names: tuple[StorageId, ...]) -> Beginning:
    """A session that all replicas took part in, whose end is to be decided by the first server: they all agree."""
    values: dict[PartitionId, PartitionValue] = {}
    owners: dict[PartitionId, Owner] = {}
    for partition in restored:
        if partition.last == NO_TRANSACTION:
            continue
        generation, session = partition.generation + _GENERATIONS_APART, partition.session + _SESSIONS_APART
        engagements = {name: Engagement(session) for name in names}
        values[partition.partition] = PartitionValue(generation, session, names, engagements=engagements)
        owners[partition.partition] = Owner(_NOBODY, "unix:restored", generation)
    unique_id = max((partition.unique_id for partition in restored), default=0)
    # Near the end of the numbers, which a log hardly sees, half of those that are left.
    unique_id = min(unique_id + _UNIQUE_IDS_APART, (unique_id + _UNIQUE_ID_MAX) // 2)
    return Beginning(values, Assignment(owners), unique_id)
