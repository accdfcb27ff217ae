"""The control file: a storage directory's identity, and what each of its partitions has promised.

Layout: a sector of header, then for partition p three sectors of its own, from offset 512 + p * 1536 on: copy A, copy B
and the evidence slot, of 512 bytes each. So a crash during a write to one partition's sectors leaves those of all
others readable. At best a disk writes a sector whole or not at all; whatever else happens to one shows by the CRC over
the whole sector.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import struct
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import (
    Closed,
    ControlFileDamaged,
    DirectoryGone,
    DiskFull,
    NotInitialized,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
    fault,
    invariant,
)
from polonaise.host import DirectoryLock, Disk, File, Host, Identity, write_whole
from polonaise.log.openfiles import SharedSync
from polonaise.recoverycommand import RECOVER
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED, PartitionId, SessionId, TransactionId

SECTOR_BYTES: Final = 512

_COPY: Final = struct.Struct("<4sIIIQQqqqqqqqqqqI")
_COPY_MAGIC: Final = b"PLNC"
_SLOT: Final = struct.Struct("<4sIIIQQqqq")
_SLOT_MAGIC: Final = b"PLNE"


class SyncEvidence(NamedTuple):
    """A position up to which the log was synced: all ids up to `last`.

    In files: all before the segment whose first id is `segment_first`, and the first `offset` bytes of that one.
    """

    segment_first: TransactionId
    offset: int
    last: TransactionId


NO_EVIDENCE: Final = SyncEvidence(0, 0, NO_TRANSACTION)
"""The evidence of a log of which nothing was synced yet."""


class TrimMark(NamedTuple):
    """Where the log begins after a trim: every id below `first` was dropped on request."""

    first: TransactionId
    previous_crc: int
    """The CRC of the batch before `first`. A segment that begins at `first` and names another CRC is of another log."""


NOTHING_TRIMMED: Final = TrimMark(0, 0)
"""The mark of a log that begins at 0: never trimmed, or begun anew since."""


@dataclass(frozen=True, slots=True)
class Promises:
    """A replica's durable word on one partition. `docs/replication.md` says who raises what, and why.

    When the copy is emptied, all but `fence` and `untrusted_above` go back to their defaults.
    """

    fence: SessionId = NO_SESSION
    """The largest session that the replica was told of: messages of a smaller one are refused."""
    joined: SessionId = NO_SESSION
    """The last session that the replica was made clean for, or a later one that reset the log's head and cut it."""
    prepared: TransactionId = NO_TRANSACTION
    """The last id that the copy held when it joined a session last; a cut for a reset of the head lowers it."""
    confirmed: TransactionId = NO_TRANSACTION
    """Up to this id, but for what may be lost, the copy is certainly the log. Falls only when the head is reset or the
    copy emptied. A batch ends there; or, where a server of an earlier version trimmed, it goes on, and is committed as
    a whole."""
    lost_above: TransactionId = UNRESOLVED
    """The id above which acknowledged ids may have been lost; UNRESOLVED when none were. Moved up as ids are confirmed
    again, and cleared only by joining a session or by emptying the copy."""
    untrusted_above: TransactionId = UNRESOLVED
    """The id above which the files may hold bytes that must not be believed; UNRESOLVED when all are believed. Up to
    this id everything is synced. Cleared by a cut there or below. By itself no loss: what was not synced was not
    acknowledged."""

    @property
    def may_have_lost(self) -> bool:
        """Whether acknowledged ids may be gone from this copy."""
        return self.lost_above != UNRESOLVED

    @property
    def untrusted(self) -> bool:
        """Whether bytes above `untrusted_above` have to be cut before anything is appended."""
        return self.untrusted_above != UNRESOLVED

    def lost(self, last: TransactionId) -> Promises:
        """Return these promises with the note that acknowledged ids above `last` may be lost: their bytes are bad."""
        # The lower one: a second loss does not make the first one good.
        lost_before = self.lost_above if self.may_have_lost else last
        return replace(self.distrusted(last), lost_above=min(lost_before, last))

    def distrusted(self, last: TransactionId) -> Promises:
        """Return these promises with the note that bytes above `last` must not be believed; that is no loss."""
        untrusted_before = self.untrusted_above if self.untrusted else last
        return replace(self, untrusted_above=min(untrusted_before, last))


class PromiseSector(NamedTuple):
    """One of the two copies of a partition's promises. Of two valid copies, the one with the larger sequence counts."""

    partition: PartitionId
    sequence: int
    cuts: int
    """The number of cuts of the log so far: evidence noted under another number speaks of bytes that are gone."""
    promises: Promises
    evidence: SyncEvidence
    trimmed: TrimMark = NOTHING_TRIMMED

    def encode(self) -> bytes:
        p = self.promises
        return _sealed(
            _COPY.pack(
                _COPY_MAGIC, 0, self.partition, 0, self.sequence, self.cuts,
                p.fence, p.joined, p.prepared, p.confirmed, p.lost_above, p.untrusted_above,
                *self.evidence, *self.trimmed,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, sector: bytes, partition: PartitionId) -> PromiseSector | None:
        """Return the copy in `sector`; None unless the sector is a valid copy of this partition's promises."""
        if not _intact(sector, _COPY_MAGIC):
            return None
        _, _, owner, _, sequence, cuts, fence, joined, prepared, confirmed, lost, untrusted, *rest = _COPY.unpack_from(
            sector
        )
        if owner != partition:
            return None
        promises = Promises(fence, joined, prepared, confirmed, lost, untrusted)
        return cls(owner, sequence, cuts, promises, SyncEvidence(*rest[:3]), TrimMark(*rest[3:]))


class Slot(NamedTuple):
    """The evidence slot, rewritten soon after a sync of the log or a change of promises, and never synced by itself.

    Losing it, or finding an old one, makes the node know less and never something false. `cuts` binds it to the log
    since its last cut; `sequence` is that of the newest `PromiseSector` that was durable when it was written.
    """

    partition: PartitionId
    sequence: int
    cuts: int
    evidence: SyncEvidence

    def encode(self) -> bytes:
        return _sealed(_SLOT.pack(_SLOT_MAGIC, 0, self.partition, 0, self.sequence, self.cuts, *self.evidence))

    @classmethod
    def decode(cls, sector: bytes, partition: PartitionId) -> Slot | None:
        """Return the evidence in `sector`; None unless the sector is a valid evidence slot of this partition."""
        if not _intact(sector, _SLOT_MAGIC):
            return None
        _, _, owner, _, sequence, cuts, *evidence = _SLOT.unpack_from(sector)
        if owner != partition:
            return None
        return cls(owner, sequence, cuts, SyncEvidence(*evidence))


def _sealed(packed: bytes) -> bytes:
    sector = bytearray(packed.ljust(SECTOR_BYTES, b"\0"))
    struct.pack_into("<I", sector, 4, crc32(memoryview(sector)[8:]))
    return bytes(sector)


def _intact(sector: bytes, magic: bytes) -> bool:
    if len(sector) != SECTOR_BYTES or sector[:4] != magic:
        return False
    return int.from_bytes(sector[4:8], "little") == crc32(memoryview(sector)[8:])


FORMAT_VERSION: Final = 1
CONTROL_FILE: Final = "polonaise-storage.ctl"
LOCK_FILE: Final = "disk.lock"
PARTITION_BYTES: Final = 3 * SECTOR_BYTES

WIPE: Final = (
    "if the other replicas are whole, move this node's directory away and start the node with an empty one, which is "
    "filled from them; keep the old one until it was (an older copy of the file would not know what was promised since)"
)
"""What to do about a damaged control file, for messages."""
_PUT_RIGHT: Final = {
    "": "put back what belongs there if it was moved, then start the node again; an empty directory is filled from the "
    "other replicas",
    CONTROL_FILE: f"put back the file itself if it was moved away, then start the node again; otherwise, {WIPE}",
    LOCK_FILE: "nothing is lost: start the node again, which makes this file anew; no other process may use the "
    "directory meanwhile",
}
"""What to do where the directory itself (""), or this file of it, is not in its place. The first counts."""
_HEADER: Final = struct.Struct("<4sHHq16s")
_MAGIC: Final = b"PLNW"
_CRC_OFFSET: Final = 124
_EVIDENCE_PAUSE_S: Final = 0.1
"""The most seconds, or so, that noted evidence waits to be written: at every sync it would cost a second trip."""


def encode_header(cluster_key: bytes, created_us: int) -> bytes:
    """Return the header sector of a control file."""
    raw = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, created_us, cluster_key).ljust(_CRC_OFFSET, b"\0")
    return (raw + crc32(raw).to_bytes(4, "little")).ljust(SECTOR_BYTES, b"\0")


def decode_header(raw: bytes, path: str) -> bytes:
    """Return the cluster key in a header sector. Raises `ControlFileDamaged` or `UnsupportedFormat`."""
    if len(raw) < _CRC_OFFSET + 4 or raw[:4] != _MAGIC:
        raise ControlFileDamaged(f"{path} is not a control file: {WIPE}")
    if crc32(raw[:_CRC_OFFSET]) != int.from_bytes(raw[_CRC_OFFSET : _CRC_OFFSET + 4], "little"):
        raise ControlFileDamaged(f"the header of the control file {path} does not fit its CRC: {WIPE}")
    _, version, _, _, cluster_key = _HEADER.unpack_from(raw)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path} is of storage format {version}; this version of Polonaise reads format {FORMAT_VERSION}: "
            "run the version that wrote it, or a newer one"
        )
    return bytes(cluster_key)


def newest_promises(
    sectors: bytes, partition: PartitionId, path: str
) -> tuple[PromiseSector, int, SyncEvidence] | None:
    """Return the newest valid copy of a partition's promises, its position (0 or 1), and the furthest sync evidence.

    None when neither copy can be read. Raises `ControlFileDamaged` when a newer one is known to have existed.
    """
    raw = [sectors[at : at + SECTOR_BYTES] for at in range(0, PARTITION_BYTES, SECTOR_BYTES)]
    copies = [PromiseSector.decode(sector, partition) for sector in raw[:2]]
    slot = Slot.decode(raw[2], partition)
    valid = [(copy.sequence, position) for position, copy in enumerate(copies) if copy is not None]
    if not valid:
        return None
    sequence, newest = max(valid)
    copy = copies[newest]
    assert copy is not None
    # The slot names the newest copy that was durable when it was written. To go on from an older one would forget a
    # promise, and let a fenced session write again.
    if slot is not None and slot.sequence > sequence:
        raise ControlFileDamaged(
            f"{path}: the newest copy ({slot.sequence}) of the promises of partition {partition} is unreadable: {WIPE}"
        )
    evidence = copy.evidence
    # Evidence from before the last cut speaks of bytes that are gone: to believe it would be to miss them.
    if slot is not None and slot.cuts == copy.cuts:
        evidence = max(evidence, slot.evidence, key=lambda e: (e.last, e.segment_first, e.offset))
    return copy, newest, evidence


class ControlSlot:
    """One partition's sectors in the control file: its promises, and the evidence of sync. For one task at a time.

    `save`, `begin_cut` and `begin_trim` are durable on return; if they can't be, the node stops (`Host.fail`): one that
    can't keep promises must not go on answering.
    """

    def __init__(self, control: ControlFile, copy: PromiseSector, evidence: SyncEvidence, newest: int) -> None:
        self._control = control
        self._copy = copy
        self._newest = newest
        self.evidence = evidence
        """The furthest position up to which this log is known to be synced; a cut sets it back."""

    @property
    def partition(self) -> PartitionId:
        return self._copy.partition

    @property
    def cluster_key(self) -> bytes:
        return self._control.cluster_key

    @property
    def promises(self) -> Promises:
        """The promises that were last made durable."""
        return self._copy.promises

    @property
    def cuts(self) -> int:
        return self._copy.cuts

    @property
    def trimmed(self) -> TrimMark:
        """Where the log begins after the last trim; `NOTHING_TRIMMED` before the first, and after a cut at -1."""
        return self._copy.trimmed

    async def save(self, promises: Promises) -> None:
        await self._write(self._copy._replace(promises=promises, evidence=self.evidence))

    async def record_loss(self, last: int) -> None:
        """Record that this copy may have lost ids above `last`, and that bytes above that id are not believed."""
        await self.save(self.promises.lost(last))

    async def record_failed_sync(self, last: int) -> None:
        """Record that bytes above `last` are not believed. None of them was acknowledged, so nothing is lost."""
        await self.save(self.promises.distrusted(last))

    async def begin_cut(self, evidence: SyncEvidence) -> None:
        """Record that the log is about to be cut at `evidence`: from now on, bytes missing above that are no loss."""
        # Earlier evidence reaches above the cut. With the new count of cuts, what is still in the slot is void too.
        self.evidence = evidence
        promises = self.promises
        # If the cut goes deeper than the mark was, what is between them is about to go as well: a crash on the way must
        # not let it be believed again.
        if promises.untrusted:
            promises = promises.distrusted(evidence.last)
        # A log that is cut to nothing begins anew at 0, although it was trimmed: it is filled from the others.
        trimmed = self.trimmed if evidence.last >= self.trimmed.first - 1 else NOTHING_TRIMMED
        await self._write(
            self._copy._replace(cuts=self.cuts + 1, evidence=evidence, promises=promises, trimmed=trimmed)
        )

    async def begin_trim(self, trimmed: TrimMark) -> None:
        """Record that the log is about to be trimmed: from now on, ids missing below `trimmed` are no loss."""
        await self._write(self._copy._replace(trimmed=trimmed, evidence=self.evidence))

    def note(self, evidence: SyncEvidence) -> None:
        """Note that the log is synced up to `evidence`. The evidence slot is written soon, without a sync."""
        self.evidence = evidence
        self._control.note(self)

    def encode_evidence(self) -> bytes:
        return Slot(self.partition, self._copy.sequence, self.cuts, self.evidence).encode()

    async def _write(self, copy: PromiseSector) -> None:
        """Write a copy durably into the older sector, then, unsynced, into the other one: one sector may rot."""
        copy = copy._replace(sequence=self._copy.sequence + 1)
        # Into the older sector: until the sync has returned, the other one must still hold what was promised before.
        target = 1 - self._newest
        sector = copy.encode()
        await self._control.write_copy(self.partition, target, sector, sync=True)
        self._copy, self._newest = copy, target
        await self._control.write_copy(self.partition, 1 - target, sector, sync=False)
        # The evidence slot will name the sequence of this copy: should both sectors read back as older copies one day,
        # `newest_promises` sees that a newer one existed.
        self._control.note(self)


class ControlFile:
    """The open control file of a storage directory, which this process holds until `close`."""

    def __init__(
        self,
        host: Host,
        directory: str,
        lock: DirectoryLock,
        file: File,
        cluster_key: bytes,
        identities: dict[str, Identity | None],
    ) -> None:
        """Private: a control file is opened with `open`."""
        self._host = host
        self._identities = identities
        self._lock = lock
        self._file = file
        self.directory = directory
        self.cluster_key = cluster_key
        # Shared, because thousands of partitions may be opened at the same time.
        self._sync = SharedSync(lambda: self._or_fail(file.sync()))
        self._sync_names = SharedSync(lambda: host.disk.sync_directory(directory))
        self._noted: dict[PartitionId, ControlSlot] = {}
        self._wake = asyncio.Event()
        self._closing: asyncio.Future[None] | None = None
        self._writer = host.spawn(self._write_evidence(), "control file evidence")

    @classmethod
    async def open(cls, host: Host, directory: str, cluster_key: bytes | None = None) -> ControlFile:
        """Lock the directory for this process, and read its control file; an empty one is made for the cluster
        `cluster_key`.

        Raises `DirectoryInUse`, `control_file_missing` for partitions' directories without a control file,
        `ControlFileDamaged`, `UnsupportedFormat`, `WrongClusterKey`, and `NotInitialized` for an empty one without a
        key.
        """
        disk = host.disk
        await _make_directory(disk, directory)
        # The lock comes before the first look: two nodes that both found the directory empty would both make its file.
        lock = await disk.lock(f"{directory}/{LOCK_FILE}")
        try:
            path = f"{directory}/{CONTROL_FILE}"
            if not await disk.exists(path):
                await _create(host, directory, cluster_key)
            file = await disk.open(path)
            try:
                key = decode_header(await file.read(0, SECTOR_BYTES), path)
                if cluster_key is not None and key != cluster_key:
                    raise WrongClusterKey(
                        f"the storage directory {directory} belongs to another cluster, and was left as it is: "
                        "correct the path, or put the directory back that belongs there. If the coordinator has lost "
                        f"its data, and a new cluster was made in its place: {RECOVER}"
                    )
                # What can be read may have been written by a process that died before its sync: promises are made on
                # the strength of it, so it must not vanish with the power.
                await file.sync()
                await disk.sync_directory(directory)
                identities = await _identities(disk, directory)
            except BaseException:
                await file.close()
                raise
        except BaseException:  # also when cancelled: a process that goes on must be able to take the directory again
            lock.release()
            raise
        return cls(host, directory, lock, file, key, identities)

    async def check_in_place(self, others: Sequence[str] = ()) -> bool:
        """Raise `DirectoryGone` unless the directory's name still leads to the files that this process has open.

        Files that were removed can still be written. Returns whether one of the `others`, names in the directory, is
        missing.
        """
        found = await _identities(self._host.disk, self.directory, others)
        gone = [name for name in _PUT_RIGHT if found[name] != self._identities[name]]
        if not any(gone):
            return any(found[name] is None for name in others)
        # Of the files of a directory that is gone itself, there is nothing to be told.
        names = gone if gone[0] else gone[:1]
        what = " and ".join(f"{self.directory}/{name}".removesuffix("/") for name in names)
        were = "was" if len(names) == 1 else "were"
        raise DirectoryGone(
            f"{what} {were} removed, moved or replaced under the running node, which has let go of its directory: "
            f"{_PUT_RIGHT[gone[0]]}"
        )

    def partition_directory(self, partition: PartitionId) -> str:
        return f"{self.directory}/{partition}"

    async def partitions(self) -> list[PartitionId]:
        """Return the partitions that have a subdirectory in the storage directory, whether or not it can be read."""
        names = await self._host.disk.list(self.directory)
        return sorted(int(name) for name in names if name.isdecimal())

    async def told_of(self, partition: PartitionId) -> list[int] | None:
        """Return a partition's fence, joined session, confirmed mark, and 1 for a possible loss; None if unreadable."""
        raw = await self._file.read(offset_of(partition), PARTITION_BYTES)
        try:
            promised = newest_promises(raw, partition, f"{self.directory}/{CONTROL_FILE}")
        except ControlFileDamaged:
            return None
        if promised is None:
            return None
        promises = promised[0].promises
        return [promises.fence, promises.joined, promises.confirmed, int(promises.may_have_lost)]

    async def load(self, partition: PartitionId) -> ControlSlot | None:
        """Return what this node promised for the partition; None when the partition was never created here.

        What reads back may only be in the memory of the machine, left there by a process that died or whose sync
        failed. So it is written once more, into the same sector: until it is durable, the other one may be the only
        whole one.

        Raises `ControlFileDamaged` when a promise can't be read that is known to have existed.
        """
        # The sectors are read from the file: evidence that this process noted and has not written would be missing.
        await self._flush_evidence()
        raw = await self._file.read(offset_of(partition), PARTITION_BYTES)
        path = f"{self.directory}/{CONTROL_FILE}"
        promised = newest_promises(raw, partition, path)
        if promised is None:
            if await self._host.disk.exists(self.partition_directory(partition)):
                raise ControlFileDamaged(
                    f"{path}: both copies of the promises of partition {partition} are unreadable: {WIPE}"
                )
            return None
        copy, newest, evidence = promised
        loaded = ControlSlot(self, copy, evidence, newest)
        await self.write_copy(partition, newest, copy.encode(), sync=True)
        # Then both sectors anew: the other one may be old or unreadable, and has to be a copy again.
        await loaded.save(copy.promises)
        return loaded

    async def create(self, partition: PartitionId) -> ControlSlot:
        """Make a partition: its promises first, then its directory, so that a directory always has promises.

        The file's length is never set: another partition may be made at the same time, and its promises would be cut
        off.
        """
        disk = self._host.disk
        start = offset_of(partition)
        copy = PromiseSector(partition, 1, 0, Promises(), NO_EVIDENCE)
        # What failed to become durable may be another partition's, which is made at the same time and is told of no
        # failure: the system tells one of them only. A full disk has harmed nothing that was promised.
        sectors = [copy.encode(), copy.encode(), bytes(SECTOR_BYTES)]
        await self._or_fail(self._file.write(start, sectors, sync=True), spared=(Closed, DiskFull))
        await disk.make_directory(self.partition_directory(partition))
        await self._sync_names()
        return ControlSlot(self, copy, NO_EVIDENCE, 0)

    async def write_copy(self, partition: PartitionId, position: int, sector: bytes, *, sync: bool) -> None:
        """Write a copy of a partition's promises into sector `position` (0 or 1). A failure stops the node."""
        await self._or_fail(self._file.write(offset_of(partition) + position * SECTOR_BYTES, [sector]))
        if sync:
            await self._sync()

    async def _or_fail(self, work: Awaitable[None], spared: tuple[type[PolonaiseError], ...] = (Closed,)) -> None:
        """Await a write or a sync of the file. A failure stops the node, unless it is one of the `spared`.

        A failed sync is not tried again: a later one would not tell what this one has lost.
        """
        try:
            await work
        except spared:
            raise
        except PolonaiseError as error:
            self._host.fail(error)
            raise

    def note(self, slot: ControlSlot) -> None:
        self._noted[slot.partition] = slot
        self._wake.set()

    @property
    def closed(self) -> bool:
        """Whether the file is closed, and the directory unlocked."""
        return self._closing is not None and self._closing.done()

    async def close(self) -> None:
        """Write the noted evidence and unlock the directory; carried out even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # The writer ends first, or it would go on after the last flush and write into a closed file.
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        try:
            await self._flush_evidence()
        finally:
            # The file before the lock: a write under way must not land once another process has the directory.
            await self._file.close()
            self._lock.release()

    async def _write_evidence(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush_evidence()
            await asyncio.sleep(_EVIDENCE_PAUSE_S)

    async def _flush_evidence(self) -> None:
        """Write the evidence that was noted, so that a later `load` in this process finds it in the file."""
        while self._noted:
            partition = next(iter(self._noted))
            sector = self._noted.pop(partition).encode_evidence()
            # Missing evidence makes the node know less, never something false: no reason to fail.
            with contextlib.suppress(PolonaiseError):
                await self._file.write(offset_of(partition) + 2 * SECTOR_BYTES, [sector])


async def _identities(disk: Disk, directory: str, others: Sequence[str] = ()) -> dict[str, Identity | None]:
    """Return the identities of the directory, by an empty name, and of its control file, its lock and `others`."""
    names = (*_PUT_RIGHT, *others)
    found = await disk.identities([f"{directory}/{name}".removesuffix("/") for name in names])
    return dict(zip(names, found, strict=True))


def offset_of(partition: PartitionId) -> int:
    """Return where a partition's three sectors begin in the control file, in bytes."""
    invariant(partition >= 0, "partitions are numbered from 0")
    return SECTOR_BYTES + partition * PARTITION_BYTES


async def _create(host: Host, directory: str, cluster_key: bytes | None) -> None:
    disk = host.disk
    names = [name for name in await disk.list(directory) if name.isdecimal()]
    if names:
        raise fault(
            "control_file_missing",
            f"partitions {', '.join(names)} are in {directory} without {CONTROL_FILE}: what they promised is unknown. "
            f"Put back the file itself if it was moved away; otherwise, {WIPE}",
        )
    if cluster_key is None:
        raise NotInitialized(f"the storage directory {directory} is empty, so it needs a cluster key: give one")
    await write_whole(disk, directory, CONTROL_FILE, [encode_header(cluster_key, host.clock.wall_us())])


async def _make_directory(disk: Disk, directory: str) -> None:
    """Make the directory and its parents, durably: a name survives a crash only once its parent is synced."""
    await disk.make_directory(directory)
    parent = _parent(directory)
    await disk.sync_directory(parent)
    while parent not in (".", "/"):
        parent = _parent(parent)
        # This process may have no rights further up. Then it did not make those directories, and need not sync them.
        with contextlib.suppress(PolonaiseError):
            await disk.sync_directory(parent)


def _parent(path: str) -> str:
    return posixpath.dirname(path.rstrip("/")) or "."
