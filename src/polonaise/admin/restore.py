"""Restore a log from its fragments: make the directory of a new log, with the very batches that were archived.

Nothing within a batch changes: ids, request ids, registers, evidence, commit times, CRCs. The nodes' promises and the
coordinator's values are written as if all copies had just ended a session together, each of them whole. So the first
server opens the log by the ordinary rules, and appends follow. See `docs/decisions/0012`.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from polonaise.admin.archive import no_fragments
from polonaise.admin.newdirectory import new_directory
from polonaise.admin.replicas import Replicas, new_replicas
from polonaise.admin.restoretimes import check_now, ids_at
from polonaise.coordination.coordinator import UNIQUE_ID_MAX
from polonaise.coordination.values import (
    NOBODY,
    Assignment,
    Beginning,
    ClusterDescription,
    Engagement,
    Owner,
    PartitionValue,
)
from polonaise.errors import BadOption, FragmentDamaged, fault
from polonaise.fragments.agreement import MOVE_OUT, contradictions, ids_to_compare
from polonaise.fragments.format import batches_in
from polonaise.fragments.objects import PUT_BACK, fragments_of, looked_at, open_bytes, partitions_in
from polonaise.fragments.protocol.coverage import FragmentRange, Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObjectStore, ObstoreStore
from polonaise.fragments.topicrecord import recorded_topics
from polonaise.host import Host
from polonaise.host.real import RealHost
from polonaise.log.batch import Batch
from polonaise.log.partitionlog import LogSettings
from polonaise.node.addresses import check_storage_addresses
from polonaise.node.embedded import (
    SEGMENT_BATCHES_MAX,
    SEGMENT_BYTES_MAX,
    STORAGE_MAX,
    coordinator_of,
    make_log,
    storage_directory,
    storage_names,
)
from polonaise.terms import (
    NO_TRANSACTION,
    PARTITIONS_MAX,
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
    counted,
)
from polonaise.topics import ClusterTopics

_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes of batches that are decoded in another thread and then written with one sync."""
_SESSIONS_APART: Final = 2**32
"""How far above the highest session in what is restored of a partition the new log's last session is.

The archived log may have gone on after that: no storage directory of it must pass for one of the new log.
"""
_GENERATIONS_APART: Final = 2**10
"""How far above the highest generation in what is restored of a partition the new log's last generation is."""
_UNIQUE_IDS_APART: Final = 2**20
"""How far above the highest client id in what is restored the unique ids of the new log begin.

The archived log may have given out more unique ids, of which that shows nothing. No client or server of that log must
ever pass for one of the new log.
"""


class Key(enum.Enum):
    """The identity of the restored log."""

    SAME = "same"
    """The archived cluster: its views and its fragment store go on with the restored log."""
    NEW = "new"
    """A new cluster, which can't be mistaken for the archived one."""


@dataclass(frozen=True, slots=True)
class HowToRestore:
    """Options of a restore: what to restore, and into which kind of log."""

    storage: int = 1
    """Number of storage directories of an embedded log."""
    nodes: Mapping[StorageId, str] = field(default_factory=dict)
    """Addresses of the storage nodes by name, for a cluster with a coordinator in a directory; empty for an embedded
    log."""
    partitions: int | None = None
    """Number of partitions of the new log, without those of topics. None for up to the last one that has fragments or,
    if the archived cluster had topics, for as many as it had."""
    until: Mapping[PartitionId, TransactionId] | None = None
    """Last id to restore of each partition; a batch that goes beyond is left out whole. None for no such limits."""
    until_time_us: int | None = None
    """Restore what is before the first batch with a later commit time, in microseconds UTC; None for no such limit.

    Refused if commit times stand still behind it: then no time cuts all partitions at one moment."""
    now_us: int | None = None
    """The time by this machine's clock that `until_time_us` was counted back from, in microseconds UTC; None if that
    was given as a time."""
    key: Key | None = None
    """The choice of a key; None for the same one, if no time is given and nothing is left out."""


@dataclass
class RestoredPartition:
    """The result of a restore for one partition, with the highest session, generation and client id in its batches."""

    partition: PartitionId
    in_store_up_to: TransactionId
    """The last id in the store; -1 for a partition without fragments, which begins empty."""
    last: TransactionId = NO_TRANSACTION
    """The last id that was restored; -1 for none."""
    cut: Span | None = None
    """The batch that goes beyond the requested last id, and was left out whole; None if there is none."""
    last_crc: int = 0
    batches: int = 0
    bytes: int = 0
    session: SessionId = 0
    """The highest session in the batches."""
    generation: Generation = 0
    unique_id: int = 0
    """The highest client id in the batches."""

    def take(self, batch: Batch) -> None:
        self.last, self.last_crc = batch.last, batch.crc
        self.batches += 1
        self.bytes += batch.length
        self.session = max(self.session, batch.session)
        self.generation = max(self.generation, batch.generation)
        self.unique_id = max(self.unique_id, max(batch.client_ids))


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    directory: str
    cluster_key: bytes
    partitions: tuple[RestoredPartition, ...]
    """The result for each partition up to the last one that has fragments. Those after it are new and empty."""


@dataclass
class _Source:
    """The fragments of a store that are to be restored. Chosen before anything is written."""

    cluster_key: bytes
    pieces: dict[PartitionId, Sequence[FragmentRange]] = field(default_factory=dict)
    last: dict[PartitionId, TransactionId] = field(default_factory=dict)
    """The last id in the store, by partition."""
    sizes: dict[FragmentName, int] = field(default_factory=dict)
    """The bytes of each fragment."""
    topics: ClusterTopics | None = None
    """The cluster's topics; None if it had none."""


async def restore(
    store: ObstoreStore,
    directory: str,
    how: HowToRestore,
    tell: Callable[[RestoredPartition], None] = lambda partition: None,
) -> Restored:
    """Make the directory of a log from a store's fragments; `tell` is called after each partition.

    Whole batches are restored: those that end at or below the given ids, and are not later than the given time. Until
    this has returned, a file in the directory says that it holds no log. The restore may be killed at any time and run
    again, and then begins anew; where only the removal of that file was left to do, it removes the file and raises
    `AlreadyInitialized`, as the log is whole and may be in use.

    Raises, with nothing written: `BadOption` for invalid options and for a directory that holds anything else,
    `history_incomplete` for a store with missing ids or contradictions, which are named, `AlreadyInitialized` for a
    directory with a log, `DirectoryInUse`. On the way, too, `history_incomplete` for a batch that does not follow the
    one before it, `FragmentDamaged`, which names the fragment, and what the store and the disk raise.
    """
    nodes = _storage_nodes(how)
    source = await _survey(store, how)
    count = _partition_count(source, how)
    cluster_key = secrets.token_bytes(16) if _key(how, source) is Key.NEW else source.cluster_key
    if how.now_us is not None:
        await check_now(store, source.pieces, source.sizes, how.now_us)
    if how.until_time_us is not None:
        how = replace(how, until=await ids_at(store, source.pieces, source.sizes, how.until_time_us))
    host = RealHost()
    try:
        async with new_directory(host.disk, directory, embedded=not how.nodes):
            restored = await _write(host, store, directory, how, source, cluster_key, tell)
            description = ClusterDescription.new(cluster_key, count, nodes)
            if source.topics is not None:
                description = replace(description, topics=source.topics.topics)
            coordinator = coordinator_of(host, directory)
            try:
                await coordinator.initialize(description, _beginning(restored, description.storage))
            finally:
                await coordinator.close()
            # An embedded log's own file comes last: it is what makes the directory a log to whoever opens it.
            if not how.nodes:
                await make_log(host.disk, directory)
    finally:
        host.close()
    return Restored(directory, cluster_key, tuple(restored))


# ------------------------------------------------------------------ what to restore


def _storage_nodes(how: HowToRestore) -> Mapping[StorageId, str]:
    """Return the addresses of the storage nodes by name, in order. Raises `BadOption`."""
    if not how.nodes:
        if not 1 <= how.storage <= STORAGE_MAX:
            raise BadOption(f"invalid number of storage directories {how.storage}: it must be from 1 to {STORAGE_MAX}")
        names = storage_names(how.storage)
        return dict(zip(names, names, strict=True))
    check_storage_addresses(how.nodes.values(), "--nodes")
    return how.nodes


def _partition_count(source: _Source, how: HowToRestore) -> int:
    least = max(source.pieces) + 1
    if source.topics is not None:
        own = source.topics.partitions
        if not how.nodes:
            raise BadOption(
                f"the store holds topics ({', '.join(sorted(source.topics.topics))}), and an embedded log has none: "
                "restore a cluster (--nodes)"
            )
        if how.partitions not in (None, own):
            raise BadOption(
                f"invalid number of partitions {how.partitions}: the cluster had {own} in no topic, and the ids of its "
                "topics' partitions follow these. Leave it out"
            )
        if least > source.topics.total:
            raise fault(
                "history_incomplete",
                f"the store has fragments of partition {least - 1}, and its record of topics is of a cluster with "
                f"{counted(source.topics.total, 'partition')}: a later one was removed; put it back from a copy of the "
                "store",
            )
        return own
    count = least if how.partitions is None else how.partitions
    if not least <= count <= PARTITIONS_MAX:
        raise BadOption(
            f"invalid number of partitions {count}: it must be from {least}, because the store has fragments of "
            f"partition {least - 1}, to {PARTITIONS_MAX}"
        )
    return count


def _key(how: HowToRestore, source: _Source) -> Key:
    """Return which key to use. The same key says that views, sinks and the store may go on with this log.

    They may not if anything is left out, as it may be with a time limit, so then the operator has to choose
    (`BadOption`).
    """
    if how.key is not None:
        return how.key
    left_out = how.until is not None and any(how.until[number] < last for number, last in source.last.items())
    if how.until_time_us is not None or left_out:
        raise BadOption(
            "transactions are left out that the store holds, and that views may have applied: choose a new key "
            "(--new-key) for a log of its own, which the archived log's views and store refuse; or the same key "
            "(--same-key) to replace the archived log, once the views that know more are made again and the store is "
            "replaced"
        )
    return Key.SAME


async def _survey(store: ObjectStore, how: HowToRestore) -> _Source:
    """Choose the fragments, after checking by names, footers and CRCs that they make one log without missing ids.

    Raises `history_incomplete` if they do not, `FragmentDamaged`, and `BadOption` if last ids are given, but not for
    exactly the partitions in the store.
    """
    partitions = await partitions_in(store)
    if not partitions:
        raise fault("history_incomplete", (await no_fragments(store)).text)
    if how.until is not None and set(how.until) != set(partitions):
        given, archived = ", ".join(map(str, sorted(how.until))), ", ".join(map(str, partitions))
        raise BadOption(
            f"last ids are given for partitions {given}, but {store} holds partitions {archived}: give an id for each"
        )
    source: _Source | None = None
    for number in partitions:
        listed = await fragments_of(store, number)
        ids = ids_to_compare(listed)
        good = [await looked_at(store, name, size, ids[name]) for name, size in listed.items()]
        cluster_key = good[0].footer.cluster_key
        source = source or _Source(cluster_key)
        wrong = [each.what for each in contradictions(good)]
        if cluster_key != source.cluster_key:
            wrong.append(f"the fragments of partition {number} are of another cluster than those before it")
        if wrong:
            raise fault(
                "history_incomplete",
                f"the fragments in {store} are not of one log: {'; '.join(wrong)}. To restore, {MOVE_OUT}",
            )
        source.sizes.update(listed)
        source.last[number] = max(name.last for name in listed)
        source.pieces[number] = _pieces(store, number, list(listed), source.last[number], how)
    assert source is not None
    source.topics = await recorded_topics(store, source.cluster_key)
    return source


def _pieces(
    store: ObjectStore, number: PartitionId, names: Sequence[FragmentName], stored: TransactionId, how: HowToRestore
) -> Sequence[FragmentRange]:
    last = stored if how.until is None else how.until[number]
    if last > stored:
        raise fault(
            "history_incomplete", f"{store} holds partition {number} up to {stored}: it can't be restored up to {last}"
        )
    covered = cover(names, Span(0, last))
    if covered.holes:
        missing = ", ".join(f"{hole.first} to {hole.last}" for hole in covered.holes)
        raise fault("history_incomplete", f"{store} lacks ids of partition {number}: {missing}; {PUT_BACK}")
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
    async with new_replicas(host, directories, cluster_key, settings) as replicas:
        for number in range(max(source.pieces) + 1):
            partition = RestoredPartition(number, source.last.get(number, NO_TRANSACTION))
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
    """Write one partition. If nothing of it is restored, it is not made, and begins as in any new log."""
    async with aclosing(_chunks(store, pieces, partition, how)) as chunks:
        first = await anext(chunks, None)
        if first is None:
            return
        async with replicas.partition(partition.partition) as copies:
            await copies.append(first)
            async for chunk in chunks:
                await copies.append(chunk)
            await copies.finish(partition.session + _SESSIONS_APART)


async def _chunks(
    store: ObjectStore, pieces: Sequence[FragmentRange], partition: RestoredPartition, how: HowToRestore
) -> AsyncGenerator[list[Batch], None]:
    """Yield the batches to restore, and note them in `partition`. One fragment at a time is in memory."""
    for piece in pieces:
        raw = await store.get(piece.fragment.path)
        await asyncio.to_thread(open_bytes, raw, piece.fragment)
        batches = _batches(raw, piece, partition, how)
        while chunk := await asyncio.to_thread(_next_chunk, batches):
            yield chunk
        if partition.last < piece.span.last:
            return  # a limit was reached within this fragment: nothing that follows is restored


def _batches(raw: bytes, piece: FragmentRange, partition: RestoredPartition, how: HowToRestore) -> Iterator[Batch]:
    """Yield the batches of a fragment that follow what was restored, up to the limits. Fragments may overlap."""
    last_allowed = partition.in_store_up_to if how.until is None else how.until[partition.partition]
    try:
        for encoded in batches_in(raw):
            batch = Batch.parse(encoded, verify=False)  # it was just encoded, and compared with its CRC
            if batch.last <= partition.last:
                continue
            if (batch.first, batch.previous_crc) != (partition.last + 1, partition.last_crc):
                raise fault(
                    "history_incomplete",
                    f"{piece.fragment.path} goes on from another batch than the one that ends at {partition.last}",
                )
            if batch.last > last_allowed:
                partition.cut = Span(batch.first, batch.last) if batch.first <= last_allowed else None
                return
            partition.take(batch)
            yield batch
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{piece.fragment.path}: {error.text}") from error


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
    """Return the coordinator's values: a session in which all replicas took part, and whose end they agree on.

    Its owner is nobody alive, so the first server takes over and decides the end, as after any crash.
    """
    values: dict[PartitionId, PartitionValue] = {}
    owners: dict[PartitionId, Owner] = {}
    for partition in restored:
        if partition.last == NO_TRANSACTION:
            continue
        generation, session = partition.generation + _GENERATIONS_APART, partition.session + _SESSIONS_APART
        engagements = {name: Engagement(session) for name in names}
        values[partition.partition] = PartitionValue(generation, session, names, engagements=engagements)
        owners[partition.partition] = Owner(NOBODY, "unix:restored", generation)
    unique_id = max((partition.unique_id for partition in restored), default=0)
    # Near the end of the range of ids, which a log hardly ever reaches, take half of what is left.
    unique_id = min(unique_id + _UNIQUE_IDS_APART, (unique_id + UNIQUE_ID_MAX) // 2)
    return Beginning(values, Assignment(owners), unique_id)
