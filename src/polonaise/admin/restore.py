"""Restore a log from its fragments: make the directory of a new log, with the very batches that were archived.

Nothing within a batch changes: ids, request ids, registers, evidence, commit times, CRCs. The nodes' promises and the
coordinator's values are written as if all copies had just ended a session together, so that the first server opens the
log by the ordinary rules. See `docs/decisions/0012`.
"""

from __future__ import annotations

import asyncio
import enum
import posixpath
import re
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from polonaise.admin.archive import no_fragments
from polonaise.coordination.values import (
    DESCRIPTION,
    NOBODY,
    UNIQUE_ID_MAX,
    Assignment,
    Beginning,
    ClusterDescription,
    Engagement,
    Owner,
    PartitionValue,
)
from polonaise.errors import AlreadyInitialized, BadOption, DiskFailed, FragmentDamaged, fault
from polonaise.fragments.agreement import MOVE_OUT, contradictions, ids_to_compare
from polonaise.fragments.columns import StillTime, last_at, time_of
from polonaise.fragments.format import batches_in
from polonaise.fragments.objects import PUT_BACK, fragments_of, looked_at, open_bytes, partitions_in
from polonaise.fragments.protocol.coverage import FragmentRange, Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObjectStore, ObstoreStore
from polonaise.fragments.topicrecord import recorded_topics
from polonaise.host import Disk, Host, write_file
from polonaise.host.real import RealHost
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile, ControlSlot, Promises
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.node.addresses import COORDINATOR, MARKER, check_storage_addresses
from polonaise.node.embedded import (
    HOST_LOCK,
    RESTORING,
    SEGMENT_BATCHES_MAX,
    SEGMENT_BYTES_MAX,
    STORAGE_MAX,
    coordinator_of,
    lock_path,
    make_log,
    storage_directory,
    storage_names,
)
from polonaise.terms import (
    NO_TRANSACTION,
    PARTITIONS_MAX,
    ClusterTopics,
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
    counted,
)

_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes of batches that are decoded in another thread and then written with one sync."""
_SESSIONS_APART: Final = 2**32
"""How far above the highest restored session of a partition the new log's last session is: the archived log may have
gone on, and no storage directory of it must pass for one of the new log."""
_GENERATIONS_APART: Final = 2**10
"""Likewise of generations."""
_UNIQUE_IDS_APART: Final = 2**20
"""Likewise of unique ids, above the highest client id: no client of that log must pass for one of the new log."""


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
    """Addresses of the storage nodes of a cluster by name; empty for an embedded log."""
    partitions: int | None = None
    """Number of partitions in no topic; None for as many as the archived cluster had, as far as the store tells."""
    until: Mapping[PartitionId, TransactionId] | None = None
    """Last id to restore of each partition; a batch that goes beyond is left out whole. None for no such limits."""
    until_time_us: int | None = None
    """Restore what is before the first batch with a later commit time, in microseconds UTC; None for no such limit.
    Refused if commit times stand still behind it: then no time cuts all partitions at one moment."""
    now_us: int | None = None
    """The time by this machine's clock that `until_time_us` was counted back from, in microseconds UTC, if it was."""
    key: Key | None = None
    """None for the same one, if no time is given and nothing is left out."""


@dataclass
class RestoredPartition:
    """The result of a restore for one partition, with the highest session, generation and client id in its batches."""

    partition: PartitionId
    in_store_up_to: TransactionId
    """The last id in the store; -1 for a partition without fragments, which begins empty."""
    last: TransactionId = NO_TRANSACTION
    """The last id that was restored; -1 for none."""
    cut: Span | None = None
    """The batch that goes beyond the requested last id, and was left out whole."""
    last_crc: int = 0
    batches: int = 0
    bytes: int = 0
    session: SessionId = 0
    generation: Generation = 0
    unique_id: int = 0
    """The highest client id."""

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
    """The result for each partition up to the last one that has fragments; those after it are empty."""


@dataclass
class _Source:
    """The fragments of a store that are to be restored. Chosen before anything is written."""

    cluster_key: bytes
    pieces: dict[PartitionId, Sequence[FragmentRange]] = field(default_factory=dict)
    last: dict[PartitionId, TransactionId] = field(default_factory=dict)
    sizes: dict[FragmentName, int] = field(default_factory=dict)
    """In bytes."""
    topics: ClusterTopics | None = None
    """None if the cluster had none."""


async def restore(
    store: ObstoreStore,
    directory: str,
    how: HowToRestore,
    tell: Callable[[RestoredPartition], None] = lambda partition: None,
) -> Restored:
    """Make the directory of a log from a store's fragments; `tell` is called after each partition.

    Whole batches are restored: those that end at or below the given ids, and are not later than the given time. Until
    this has returned, a file in the directory says that it holds no log. It may be killed and run again, and then
    begins anew; where only the removal of that file was left to do, it does this and raises `AlreadyInitialized`.

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
    """Return which key to use: the same key says that views, sinks and the store may go on with this log.

    They may not if anything is left out, so then the operator has to choose (`BadOption`).
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

    Raises `history_incomplete`, `FragmentDamaged`, and `BadOption` for last ids of other partitions than the store's.
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
    async with AsyncExitStack() as closing:
        controls: list[ControlFile] = []
        for each in directories:
            controls.append(await ControlFile.open(host, each, cluster_key))
            closing.push_async_callback(controls[-1].close)
        for number in range(max(source.pieces) + 1):
            partition = RestoredPartition(number, source.last.get(number, NO_TRANSACTION))
            copies = _copies(host, controls, number, settings)
            await _write_partition(copies, store, source.pieces.get(number, ()), partition, how)
            restored.append(partition)
            tell(partition)
    return restored


async def _write_partition(
    making: AbstractAsyncContextManager[list[_Copy]],
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
        async with making as copies:
            await _append(copies, first)
            async for chunk in chunks:
                await _append(copies, chunk)
            session = partition.session + _SESSIONS_APART
            for slot, log in copies:  # durably: the promises of a node that took part in this session until its end
                await slot.save(Promises(fence=session, joined=session, prepared=log.last, confirmed=log.last))


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


# ------------------------------------------------------------------ commit times


_NEAR_US: Final = 10_000_000
"""By so many microseconds clocks may differ."""


async def ids_at(
    store: ObstoreStore,
    pieces: Mapping[PartitionId, Sequence[FragmentRange]],
    sizes: Mapping[FragmentName, int],
    time_us: int,
) -> dict[PartitionId, TransactionId]:
    """Return the last id of each partition that was committed at a time (microseconds UTC) or before; -1 for none.

    Raises `BadOption` if commit times stand still anywhere behind it: a clock was ahead there, and what is behind that
    time may have been committed before it. Raises `FragmentDamaged` and what the store raises.
    """
    found: dict[PartitionId, TransactionId] = {}
    still: dict[PartitionId, StillTime] = {}
    for partition, parts in pieces.items():
        found[partition], stands_still = await asyncio.to_thread(last_at, store, parts, sizes, time_us)
        if stands_still is not None:
            still[partition] = stands_still
    if still:
        raise BadOption(_refusal(still, found))
    return found


async def check_now(
    store: ObstoreStore,
    pieces: Mapping[PartitionId, Sequence[FragmentRange]],
    sizes: Mapping[FragmentName, int],
    now_us: int,
) -> None:
    """Raise `BadOption` if the store holds what was committed after `now_us`, the time by this machine's clock."""
    for partition, parts in pieces.items():
        if not parts:
            continue
        last = parts[-1].span.last
        newest = await asyncio.to_thread(time_of, store, parts[-1], sizes, last)
        if newest > now_us + _NEAR_US:
            raise BadOption(
                f"it is {_shown(now_us)} by the clock of this machine, and transaction {last} of partition {partition} "
                f"was committed at {_shown(newest)}: one of the clocks is wrong, so how long ago a time was is not "
                "known. Give the time itself, such as 2026-01-31T12:00:00Z"
            )


def _shown(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")


def _refusal(still: Mapping[PartitionId, StillTime], found: Mapping[PartitionId, TransactionId]) -> str:
    partition, (first, time_us) = next(iter(still.items()))
    others = "" if len(still) == 1 else f" (so they do in {len(still) - 1} more)"
    known = f"all up to {found[partition]} were" if found[partition] != NO_TRANSACTION else "none was surely"
    ids = ",".join(f"{number}={id}" for number, id in sorted(found.items()))
    return (
        f"partition {partition}: commit times stand still from id {first} on, at {_shown(time_us)}, because a clock "
        f"was ahead{others}: which of the transactions behind id {found[partition]} were committed before the given "
        "time is not known, so no time cuts all partitions at one moment. Give the last id of each partition instead, "
        f"as PARTITION=ID. Of this one, {known} committed before it. All up to these ids were: --until {ids}"
    )


# ------------------------------------------------------------------ storage directories


class _Copy(NamedTuple):
    slot: ControlSlot
    log: PartitionLog


@asynccontextmanager
async def _copies(
    host: Host, controls: Sequence[ControlFile], partition: PartitionId, settings: LogSettings
) -> AsyncGenerator[list[_Copy], None]:
    """Make a partition's log in the storage directory of each of these control files, and close all at the end."""
    copies: list[_Copy] = []
    async with AsyncExitStack() as closing:
        for control in controls:
            slot = await control.create(partition)
            log = await PartitionLog.open(host, control.partition_directory(partition), slot, settings)
            closing.push_async_callback(log.close)
            copies.append(_Copy(slot, log))
        yield copies


async def _append(copies: Sequence[_Copy], batches: Sequence[Batch]) -> None:
    """Append batches to all copies, durably. Raises what `PartitionLog.append` raises, once none writes any more."""
    for error in await asyncio.gather(*(copy.log.append(batches) for copy in copies), return_exceptions=True):
        if error is not None:
            raise error


# ------------------------------------------------------------------ the new directory


_OURS: Final = re.compile(rf"{RESTORING}|{HOST_LOCK}|{COORDINATOR}|storage-[0-9]+|{MARKER}\.new")
"""Names that a restore makes, and that a killed one may leave."""
_EMBEDDED: Final = b"embedded"
_CLUSTER: Final = b"cluster"
_TEXT: Final = b": such a log is being restored into this directory. It is no log before this file is gone.\n"


@asynccontextmanager
async def new_directory(disk: Disk, directory: str, *, embedded: bool) -> AsyncGenerator[None, None]:
    """Lock the directory while a log is made in it. What an unfinished restore left there is removed first.

    `embedded` says whether an embedded log is made, which ends with a file of its own, or a cluster. Until the block
    has ended well, a file in it says that it is no log. Raises `BadOption` for a directory that holds anything else,
    `AlreadyInitialized` for one with a log (whose file of that kind is removed first, if only this was left to do),
    `DirectoryInUse`, and faults of the disk.
    """
    await disk.make_directory(directory)
    await _end_restore(disk, directory)
    await _check(disk, directory)
    lock = await disk.lock(lock_path(directory))
    try:
        # Checked again under the lock: another restore may have come first, and have ended by now.
        unfinished = await _check(disk, directory)
        # Durable before anything else changes: a crash from here on leaves a directory that says that it is no log.
        await write_file(disk, posixpath.join(directory, RESTORING), [_EMBEDDED if embedded else _CLUSTER, _TEXT])
        await disk.sync_directory(directory)
        for name in unfinished:
            await asyncio.to_thread(_remove, posixpath.join(directory, name))
        await disk.sync_directory(directory)
        yield
        await disk.remove(posixpath.join(directory, RESTORING))
        await disk.sync_directory(directory)
    finally:
        lock.release()


async def _end_restore(disk: Disk, directory: str) -> None:
    """Do the last step of a restore that was killed before it, if that was all, and raise `AlreadyInitialized`."""
    if not await _lacks_only_end(disk, directory):
        return
    lock = await disk.lock(lock_path(directory))
    try:
        # Again under the lock: that restore may have been under way, and have ended by now.
        if await _lacks_only_end(disk, directory):
            await disk.remove(posixpath.join(directory, RESTORING))
            await disk.sync_directory(directory)
            raise AlreadyInitialized(
                f"{directory} holds a whole log already: a restore into it lacked only its last step, the removal of "
                f"{RESTORING}, which was done now; use the log, or restore into a new or an empty directory"
            )
    finally:
        lock.release()


async def _lacks_only_end(disk: Disk, directory: str) -> bool:
    """Whether an unfinished restore lacks only its last step, so that the log may be in use already."""
    names = await disk.list(directory)
    return RESTORING in names and (MARKER in names or await _is_cluster(disk, directory))


async def _check(disk: Disk, directory: str) -> list[str]:
    """Return the names that an unfinished restore has left. Raises `AlreadyInitialized` or `BadOption` for all else."""
    names = set(await disk.list(directory))
    if MARKER in names or (RESTORING in names and await _is_cluster(disk, directory)):
        raise AlreadyInitialized(f"{directory} holds a log already: restore into a new or an empty directory")
    foreign = sorted(name for name in names if not _OURS.fullmatch(name))
    unfinished = sorted(names - {HOST_LOCK, RESTORING, f"{MARKER}.new"})
    if foreign or (unfinished and RESTORING not in names):
        examples = ", ".join((foreign or unfinished)[:3])
        raise BadOption(f"{directory} is not empty (it holds {examples}): restore into a new or an empty directory")
    return unfinished


async def _is_cluster(disk: Disk, directory: str) -> bool:
    """Whether an unfinished restore has made all of a cluster; an embedded log also needs a file of its own."""
    if not await disk.exists(posixpath.join(directory, COORDINATOR, DESCRIPTION)):
        return False
    return not (await disk.load(posixpath.join(directory, RESTORING))).startswith(_EMBEDDED)


def _remove(path: str) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise DiskFailed(
            f"{path}, left by an unfinished restore, can't be removed: {error.strerror or error}"
        ) from error
