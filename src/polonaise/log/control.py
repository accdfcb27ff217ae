"""The control file: a storage directory's identity, and what each of its partitions has promised.

Layout: a sector of header, then for partition p three sectors at a place of its own, 512 + p * 1536: copy A, copy B
and the evidence slot. Nothing is counted or chained, so no crash between two writes can make one partition's sectors
unreadable by touching another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import (
    Closed,
    ControlFileDamaged,
    ControlFileMissing,
    DirectoryGone,
    NotInitialized,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
    invariant,
)
from polonaise.host import DirectoryLock, Disk, File, Host, Identity
from polonaise.log.openfiles import SharedSync
from polonaise.log.promises import (
    NO_EVIDENCE,
    NOTHING_TRIMMED,
    SECTOR_BYTES,
    Promises,
    PromiseSector,
    Slot,
    SyncEvidence,
    TrimMark,
)
from polonaise.terms import PartitionId

FORMAT_VERSION: Final = 1
CONTROL_FILE: Final = "polonaise-storage.ctl"
LOCK_FILE: Final = "disk.lock"
PARTITION_BYTES: Final = 3 * SECTOR_BYTES

_RESTORE: Final = "restore it, or wipe its directory and let this node come back as a new one"
_HEADER: Final = struct.Struct("<4sHHq16s")
_MAGIC: Final = b"PLNW"
_CRC_OFFSET: Final = 124
_EVIDENCE_PAUSE_S: Final = 0.1
"""Evidence is written at most this often: more of it would cost each append a second trip to the disk's threads."""


def encode_header(cluster_key: bytes, created_us: int) -> bytes:
    raw = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, created_us, cluster_key).ljust(_CRC_OFFSET, b"\0")
    return (raw + crc32(raw).to_bytes(4, "little")).ljust(SECTOR_BYTES, b"\0")


def decode_header(raw: bytes, path: str) -> bytes:
    """The cluster key. Raises `ControlFileDamaged` or `UnsupportedFormat`, which name `path`."""
    if len(raw) < _CRC_OFFSET + 4 or raw[:4] != _MAGIC:
        raise ControlFileDamaged(f"the control file {path} does not begin as one: {_RESTORE}")
    if crc32(raw[:_CRC_OFFSET]) != int.from_bytes(raw[_CRC_OFFSET : _CRC_OFFSET + 4], "little"):
        raise ControlFileDamaged(f"the header of the control file {path} does not fit its CRC: {_RESTORE}")
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
    """The copy that holds in a partition's three sectors, which of them it is, and the furthest evidence of sync.

    None when neither copy can be read. Raises `ControlFileDamaged`, which names `path`, when a newer one is known to
    have existed.
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
    if slot is not None and slot.sequence > sequence:
        raise ControlFileDamaged(f"{path}: the last promise ({slot.sequence}) of partition {partition} is unreadable")
    evidence = copy.evidence
    if slot is not None and slot.cuts == copy.cuts:
        evidence = max(evidence, slot.evidence, key=lambda e: (e.last, e.segment_first, e.offset))
    return copy, newest, evidence


class ControlSlot:
    """One partition's sectors in the control file, and what they say.

    Used by one task at a time. `save`, `begin_cut` and `begin_trim` are durable on return; if they can't be, the
    process stops: a node that can't keep promises must not be there to be asked.
    """

    def __init__(self, control: ControlFile, copy: PromiseSector, evidence: SyncEvidence, newest: int) -> None:
        self._control = control
        self._copy = copy
        self._newest = newest
        self.evidence = evidence
        """The furthest place that this log is known to have been synced to."""

    @property
    def partition(self) -> PartitionId:
        return self._copy.partition

    @property
    def cluster_key(self) -> bytes:
        return self._control.cluster_key

    @property
    def promises(self) -> Promises:
        return self._copy.promises

    @property
    def cuts(self) -> int:
        return self._copy.cuts

    @property
    def trimmed(self) -> TrimMark:
        return self._copy.trimmed

    async def save(self, promises: Promises) -> None:
        """Replace the promises."""
        await self._write(self._copy._replace(promises=promises, evidence=self.evidence))

    async def record_loss(self, last: int) -> None:
        """From now on this copy may have lost what is above `last`, and bytes above it are not believed."""
        await self.save(self.promises.lost(last))

    async def record_failed_sync(self, last: int) -> None:
        """Bytes above `last` are not believed from now on. None of them was acknowledged: nothing is lost."""
        await self.save(self.promises.distrusted(last))

    async def begin_cut(self, evidence: SyncEvidence) -> None:
        """The log is about to be cut there: what was noted above it counts no more, nor will it be missed."""
        self.evidence = evidence
        promises = self.promises
        if promises.untrusted:
            promises = promises.distrusted(evidence.last)
        # A log that is cut to nothing begins anew, wherever it began before.
        trimmed = self.trimmed if evidence.last >= self.trimmed.first - 1 else NOTHING_TRIMMED
        await self._write(
            self._copy._replace(cuts=self.cuts + 1, evidence=evidence, promises=promises, trimmed=trimmed)
        )

    async def begin_trim(self, trimmed: TrimMark) -> None:
        """What lies below is about to be removed: from now on it is not missed, and what is left of it is rubbish."""
        await self._write(self._copy._replace(trimmed=trimmed, evidence=self.evidence))

    def note(self, evidence: SyncEvidence) -> None:
        """The log is synced up to there. Written soon, without a sync."""
        self.evidence = evidence
        self._control.note(self)

    def encode_evidence(self) -> bytes:
        return Slot(self.partition, self._copy.sequence, self.cuts, self.evidence).encode()

    async def _write(self, copy: PromiseSector) -> None:
        """Durable in the older sector first, then, unsynced, in the other: one rotten sector forgets nothing."""
        copy = copy._replace(sequence=self._copy.sequence + 1)
        target = 1 - self._newest
        sector = copy.encode()
        await self._control.write_copy(self.partition, target, sector, sync=True)
        self._copy, self._newest = copy, target
        await self._control.write_copy(self.partition, 1 - target, sector, sync=False)
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
        positions: tuple[Identity | None, ...],
    ) -> None:
        """Use `open`."""
        self._host = host
        self._places = positions
        self._lock = lock
        self._file = file
        self.directory = directory
        self.cluster_key = cluster_key
        self._sync = SharedSync(self._sync_or_fail)  # thousands of partitions may be opened at the same time
        self._sync_names = SharedSync(lambda: host.disk.sync_directory(directory))
        self._noted: dict[PartitionId, ControlSlot] = {}
        self._wake = asyncio.Event()
        self._closing: asyncio.Future[None] | None = None
        self._writer = host.spawn(self._write_evidence(), "control file evidence")

    @classmethod
    async def open(cls, host: Host, directory: str, cluster_key: bytes | None = None) -> ControlFile:
        """Take the directory, and read or make its control file.

        An empty directory is made one of the cluster `cluster_key`. Raises `DirectoryInUse`, `ControlFileMissing`
        (partitions without their promises), `ControlFileDamaged`, `UnsupportedFormat`, `WrongClusterKey`, and
        `NotInitialized` for an empty directory without a key.
        """
        disk = host.disk
        await _make_directory(disk, directory)
        lock = await disk.lock(f"{directory}/{LOCK_FILE}")
        try:
            path = f"{directory}/{CONTROL_FILE}"
            if not await disk.exists(path):
                await _create(host, directory, cluster_key)
            file = await disk.open(path)
            try:
                found = decode_header(await file.read(0, SECTOR_BYTES), path)
                if cluster_key is not None and found != cluster_key:
                    raise WrongClusterKey(
                        f"the storage directory {directory} belongs to another cluster, and was left as it is: "
                        "correct the path, or put the directory back that belongs there"
                    )
                # What can be read may have been written by a process that died before its sync.
                await file.sync()
                await disk.sync_directory(directory)
            except BaseException:
                await file.close()
                raise
        except BaseException:  # cancelled too: a process that goes on must be able to take the directory again
            lock.release()
            raise
        return cls(host, directory, lock, file, found, await _places(disk, directory))

    async def check_in_place(self) -> None:
        """Raises `DirectoryGone` unless who opens the directory now finds the files that this process has open.

        The system says nothing of itself: files that were removed can still be written.
        """
        if await _places(self._host.disk, self.directory) != self._places:
            raise DirectoryGone(
                f"{self.directory} was removed, moved or replaced under the running node, which has let go of it: put "
                "back what belongs there if it was moved, then start the node again; an empty directory is filled from "
                "the other replicas"
            )

    def partition_directory(self, partition: PartitionId) -> str:
        return f"{self.directory}/{partition}"

    async def partitions(self) -> list[PartitionId]:
        """The partitions that have files here, readable or not."""
        names = await self._host.disk.list(self.directory)
        return sorted(int(name) for name in names if name.isdecimal())

    async def load(self, partition: PartitionId) -> ControlSlot | None:
        """What this node promised for the partition; None when it was never created here.

        It is written once more, where it is, before anybody is told: what reads back may only be in the memory of the
        machine, left there by a process that died or whose sync failed. Where it is, because until it is durable the
        other sector may be the only one that a power loss leaves whole.

        Raises `ControlFileDamaged` when there are files whose promises can't be read, or when a newer promise than
        the one that can be read is known to have existed.
        """
        await self._flush_evidence()
        raw = await self._file.read(offset_of(partition), PARTITION_BYTES)
        path = f"{self.directory}/{CONTROL_FILE}"
        found = newest_promises(raw, partition, path)
        if found is None:
            if await self._host.disk.exists(self.partition_directory(partition)):
                raise ControlFileDamaged(f"{path}: both copies of the promises of partition {partition} are unreadable")
            return None
        copy, newest, evidence = found
        loaded = ControlSlot(self, copy, evidence, newest)
        await self.write_copy(partition, newest, copy.encode(), sync=True)
        await loaded.save(copy.promises)
        return loaded

    async def create(self, partition: PartitionId) -> ControlSlot:
        """Make a partition: its promises first, then its directory, so that a directory always has promises.

        The file grows by the write alone: another partition may be made at the same time, and a length that was asked
        for before it wrote would cut its promises off.
        """
        disk = self._host.disk
        start = offset_of(partition)
        copy = PromiseSector(partition, 1, 0, Promises(), NO_EVIDENCE)
        await self._file.write(start, [copy.encode(), copy.encode(), bytes(SECTOR_BYTES)], sync=True)
        await disk.make_directory(self.partition_directory(partition))
        await self._sync_names()
        return ControlSlot(self, copy, NO_EVIDENCE, 0)

    async def write_copy(self, partition: PartitionId, position: int, sector: bytes, *, sync: bool) -> None:
        try:
            await self._file.write(offset_of(partition) + position * SECTOR_BYTES, [sector])
        except PolonaiseError as error:
            self._host.fail(error)
            raise
        if sync:
            await self._sync()

    async def _sync_or_fail(self) -> None:
        """It fails for all: one that follows would not tell what this one has lost."""
        try:
            await self._file.sync()
        except Closed:
            raise  # by ourselves, with nobody left to be told
        except PolonaiseError as error:
            self._host.fail(error)
            raise

    def note(self, slot: ControlSlot) -> None:
        self._noted[slot.partition] = slot
        self._wake.set()

    async def close(self) -> None:
        """Write what is noted, and give the directory back; to its end, also when whoever waits is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        try:
            await self._flush_evidence()
        finally:
            await self._file.close()  # first: nothing may be written under way once another has the directory
            self._lock.release()

    async def _write_evidence(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush_evidence()
            await asyncio.sleep(_EVIDENCE_PAUSE_S)

    async def _flush_evidence(self) -> None:
        """Write what was noted, so that who loads the partition again in this process knows no less."""
        while self._noted:
            partition = next(iter(self._noted))
            sector = self._noted.pop(partition).encode_evidence()
            # Evidence that could not be written is evidence that is missing, which is allowed for.
            with contextlib.suppress(PolonaiseError):
                await self._file.write(offset_of(partition) + 2 * SECTOR_BYTES, [sector])


async def _places(disk: Disk, directory: str) -> tuple[Identity | None, ...]:
    """Which files lead to the directory's promises, and to its lock: without this one another node may take it."""
    return tuple([await disk.identity(f"{directory}/{name}") for name in (CONTROL_FILE, LOCK_FILE)])


def offset_of(partition: PartitionId) -> int:
    """Where a partition's sectors begin."""
    invariant(partition >= 0, "partitions are numbered from 0")
    return SECTOR_BYTES + partition * PARTITION_BYTES


async def _create(host: Host, directory: str, cluster_key: bytes | None) -> None:
    """Make the control file of an empty directory, whole or not at all."""
    disk = host.disk
    names = [name for name in await disk.list(directory) if name.isdecimal()]
    if names:
        raise ControlFileMissing(
            f"partitions {', '.join(names)} are in {directory} without {CONTROL_FILE}: what they promised is unknown. "
            "Restore the file, or wipe the directory and let this node come back as a new one"
        )
    if cluster_key is None:
        raise NotInitialized(f"the storage directory {directory} is empty and no cluster key was given")
    path = f"{directory}/{CONTROL_FILE}"
    file = await disk.open(f"{path}.new", create=True)
    try:
        await file.truncate(0)
        await file.write(0, [encode_header(cluster_key, host.clock.wall_us())], sync=True)
    finally:
        await file.close()
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)


async def _make_directory(disk: Disk, directory: str) -> None:
    """Make the directory and its parents, for good: each name lasts only once its parent is synced."""
    await disk.make_directory(directory)
    parent = _parent(directory)
    await disk.sync_directory(parent)
    while parent not in (".", "/"):
        parent = _parent(parent)
        # Further up they may be closed to this process; then they are older than it.
        with contextlib.suppress(PolonaiseError):
            await disk.sync_directory(parent)


def _parent(path: str) -> str:
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or ("/" if slash else ".")
