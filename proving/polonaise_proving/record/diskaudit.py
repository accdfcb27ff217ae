"""The disk audit: read each replica's durable batches from the simulated disks, without the code of the storage node.

It shares only the decoding of single structures with the node, so that a mistake in how the node reads its files can't
hide itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from zlib import crc32

from polonaise.errors import BatchDamaged, SegmentDamaged
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.control import CONTROL_FILE, NOTHING_TRIMMED, SECTOR_BYTES, PromiseSector, TrimMark, offset_of
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader, open_batch, open_frame
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise_proving.record.observations import Body, parse_body


class AuditedFile(Protocol):
    """A file of a disk."""

    @property
    def durable(self) -> bytearray:
        """What would be left of it if the power went now."""
        ...


class AuditedDisk(Protocol):
    """What the audit needs of a disk, so that it knows of no machine."""

    def paths(self) -> list[str]: ...

    def file(self, path: str) -> AuditedFile: ...


@dataclass(slots=True)
class DiskReplica:
    """One replica's copy of one partition, as far as it can be read."""

    name: str
    batches: list[Batch] = field(default_factory=list)
    first: TransactionId = 0
    """The first id that was not trimmed, according to the node's control file."""
    bad: str = ""
    """Where and why the copy can't be read; empty if all of it can."""

    @property
    def last(self) -> TransactionId:
        return self.batches[-1].last if self.batches else self.first - 1


def _segments(disk: AuditedDisk, directory: str, partition: PartitionId) -> list[tuple[str, TransactionId]]:
    """Return the paths of a partition's segment files, each with its first id, which is its file's name."""
    prefix = f"{directory}/{partition}/"
    return [
        (path, int(path[len(prefix) : -4]))
        for path in disk.paths()
        if path.startswith(prefix) and path.endswith(".seq")
    ]


def copies_of_promises(control: bytes | bytearray, partition: PartitionId) -> list[PromiseSector | None]:
    """Return the two copies of a partition's promises in a control file; None for one that can't be read."""
    start = offset_of(partition)
    return [_sector(bytes(control[at : at + SECTOR_BYTES]), partition) for at in (start, start + SECTOR_BYTES)]


_sector = lru_cache(maxsize=256)(PromiseSector.decode)
"""Most looks find the sectors that the one before has found."""


def promised_by(disk: AuditedDisk, directory: str, partition: PartitionId) -> PromiseSector | None:
    """Return a node's promises for a partition, as they would be left if the power went now.

    Of the two copies in its control file, the later one that can be read counts. None without one, or without a file.
    """
    path = f"{directory}/{CONTROL_FILE}"
    if path not in disk.paths():
        return None
    copies = copies_of_promises(disk.file(path).durable, partition)
    return max((copy for copy in copies if copy is not None), key=lambda copy: copy.sequence, default=None)


def trimmed_by(disk: AuditedDisk, directory: str, partition: PartitionId) -> TrimMark:
    """Return the trim mark in the node's promises; `NOTHING_TRIMMED` if those can't be read."""
    copy = promised_by(disk, directory, partition)
    return copy.trimmed if copy is not None else NOTHING_TRIMMED


def read_replica(name: str, disk: AuditedDisk, directory: str, partition: PartitionId) -> DiskReplica:
    """Read every batch of every segment that was not trimmed; after bad bytes go on with the next segment."""
    replica = DiskReplica(name, first=trimmed_by(disk, directory, partition).first)
    for path, first in _segments(disk, directory, partition):
        # The file of a trimmed segment may still be there: a crash came between the trim mark and the removal.
        if first >= replica.first:
            batches, bad = _read_segment(bytes(disk.file(path).durable))
            replica.batches += batches
            if bad:
                replica.bad = f"{path}: {bad}"
    return replica


@lru_cache(maxsize=256)  # the observer reads replicas again and again, mostly with segments that have not changed
def _read_segment(raw: bytes) -> tuple[list[Batch], str]:
    """Return the segment's batches up to bad bytes, if it has any, and what is wrong with these."""
    batches: list[Batch] = []
    try:
        _read_batches(raw, batches)
    except (SegmentDamaged, BatchDamaged) as error:
        return batches, str(error)
    return batches, ""


def _read_batches(raw: bytes, batches: list[Batch]) -> None:
    header = SegmentHeader.decode(raw)
    view, offset = memoryview(raw), header.data_start
    stop = offset + len(raw[offset:].rstrip(b"\0"))  # zeros are space that is set aside
    while offset < stop:
        batch = open_batch(view, offset, offset=offset, seed=header.seed)
        batches.append(batch)
        offset += FRAME_BYTES + batch.length
    # The preamble comes last, for the batches do not rest on it. As long as there is no batch, nobody was promised
    # anything about this file, so it may be torn.
    preamble = raw[HEADER_BYTES : HEADER_BYTES + header.preamble_bytes]
    if offset > header.data_start and crc32(preamble) != header.preamble_crc:
        raise SegmentDamaged("its preamble does not fit its CRC")


def durable_last(disk: AuditedDisk, directory: str, partition: PartitionId) -> TransactionId:
    """Return the partition's last id that would be left on this disk if the power went now.

    If none is left, that is the last one that was trimmed, or -1. Quicker than `read_replica`, for frequent use.
    """
    begin = trimmed_by(disk, directory, partition).first
    last = begin - 1
    for path, first in _segments(disk, directory, partition):
        if first >= begin:
            last, goes_on = _segment_end(bytes(disk.file(path).durable), last)
            if not goes_on:
                break
    return last


@lru_cache(maxsize=256)  # called several times a second, mostly with segments that have not changed
def _segment_end(raw: bytes, last: TransactionId) -> tuple[TransactionId, bool]:
    """Read a segment that should continue after the id `last`. Return the last id in the log now, and whether to go on.

    Do not go on after a header that can't be read or a gap in the ids: what comes later does not continue the log.
    """
    try:
        header = SegmentHeader.decode(raw)
    except SegmentDamaged:
        return last, False
    offset = header.data_start
    # Frames end at the zeros of the space that is set aside, or at a torn one. Either may be the end of the log or of
    # this segment only: by its first id the next segment shows which, so the answer is to go on.
    while (frame := open_frame(raw, offset, offset=offset, seed=header.seed)) is not None:
        start = offset + FRAME_BYTES
        offset = start + frame.length
        if offset > len(raw):
            break  # torn: the file ends within the batch
        try:
            batch = Batch.parse(memoryview(raw)[start:offset])
        except BatchDamaged:
            break  # torn: its frame was written, the batch was not
        if batch.first != last + 1:
            return last, False
        last = batch.last
    return last, True


class FinalLog:
    """One partition's log at the end of a schedule, taken apart for the checkers."""

    def __init__(self, partition: PartitionId, batches: list[Batch]) -> None:
        self.partition = partition
        self.batches = batches
        self.transactions: list[Transaction] = []
        self.batch_places: list[int] = []
        """By id: the index of its batch in `batches`."""
        self.marks: list[TransactionId] = []
        """By id: the client high-water mark by which the transaction was judged. If a batch has no evidence, this is
        shorter than `transactions`, and says nothing."""
        self.locks: list[list[tuple[int, int]]] = []
        """By id: the locks (hash, mode) by which the transaction was judged; as long as `marks`."""
        for place, batch in enumerate(batches):
            self.transactions.extend(batch.transactions(own=True))
            self.batch_places.extend([place] * batch.count)
            evidence = batch.evidence()
            if evidence is not None:
                self.marks.extend(evidence.client_high_water_marks.tolist())
                self.locks.extend(evidence.locks(index) for index in range(batch.count))
        self.bodies: list[Body | None] = [parse_body(transaction.data) for transaction in self.transactions]
        """By id: what the body says of its try; None if it can't be that of one (`parse_body`)."""

    def __len__(self) -> int:
        return len(self.transactions)

    def registers_after(self) -> list[tuple[TransactionId, dict[bytes, bytes]]]:
        """Return the registers after each batch that changed them, each with the batch's last id.

        The first entry is (-1, no registers).
        """
        values: dict[bytes, bytes] = {}
        stages: list[tuple[TransactionId, dict[bytes, bytes]]] = [(-1, {})]
        for batch in self.batches:
            if batch.registers_bytes:
                registers.apply(values, batch.registers)
                stages.append((batch.last, dict(values)))
        return stages
