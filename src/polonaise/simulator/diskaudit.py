"""What really lies on the disks: each replica's durable batches, read without any code of the storage node."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from zlib import crc32

from polonaise.errors import BatchDamaged, SegmentDamaged
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.control import CONTROL_FILE, offset_of
from polonaise.log.promises import NOTHING_TRIMMED, SECTOR_BYTES, PromiseSector, TrimMark
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader, open_batch, open_frame
from polonaise.simulator.disk import SimulatedDisk
from polonaise.simulator.observations import Body, parse_body
from polonaise.terms import PartitionId, Transaction, TransactionId


@dataclass(slots=True)
class DiskReplica:
    """One replica's copy of one partition, as far as it reads."""

    name: str
    batches: list[Batch] = field(default_factory=list)
    first: TransactionId = 0
    """What is below was trimmed, says its control file."""
    bad: str = ""
    """Where it does not read; empty when all of it does."""

    @property
    def last(self) -> TransactionId:
        return self.batches[-1].last if self.batches else self.first - 1


def _segments(disk: SimulatedDisk, directory: str, partition: PartitionId) -> list[tuple[str, TransactionId]]:
    """The segment files, and the first ids that they are named for."""
    prefix = f"{directory}/{partition}/"
    return [
        (path, int(path[len(prefix) : -4]))
        for path in disk.paths()
        if path.startswith(prefix) and path.endswith(".seq")
    ]


def promised_by(disk: SimulatedDisk, directory: str, partition: PartitionId) -> PromiseSector | None:
    """The promises that would still be there if the power went now; None when there are none that read."""
    path = f"{directory}/{CONTROL_FILE}"
    if path not in disk.paths():
        return None
    control, start = bytes(disk.file(path).durable), offset_of(partition)
    copies = [PromiseSector.decode(control[at : at + SECTOR_BYTES], partition) for at in (start, start + SECTOR_BYTES)]
    return max((copy for copy in copies if copy is not None), key=lambda copy: copy.sequence, default=None)


def trimmed_by(disk: SimulatedDisk, directory: str, partition: PartitionId) -> TrimMark:
    """What the node would say it has trimmed."""
    copy = promised_by(disk, directory, partition)
    return copy.trimmed if copy is not None else NOTHING_TRIMMED


def read_replica(name: str, disk: SimulatedDisk, directory: str, partition: PartitionId) -> DiskReplica:
    """Every batch of every segment; reading goes on with the next segment after bad bytes."""
    replica = DiskReplica(name, first=trimmed_by(disk, directory, partition).first)
    for path, first in _segments(disk, directory, partition):
        if first >= replica.first:
            try:
                _read_segment(bytes(disk.file(path).durable), replica)
            except (SegmentDamaged, BatchDamaged) as error:
                replica.bad = f"{path}: {error}"
    return replica


def _read_segment(raw: bytes, replica: DiskReplica) -> None:
    header = SegmentHeader.decode(raw)
    view, offset = memoryview(raw), header.data_start
    stop = offset + len(raw[offset:].rstrip(b"\0"))  # zeros are space that is set aside
    while offset < stop:
        batch = open_batch(view, offset, offset=offset, seed=header.seed)
        replica.batches.append(batch)
        offset += FRAME_BYTES + batch.length
    # Last, for batches do not rest on it. Before the first of them nobody was promised anything of this file.
    preamble = raw[HEADER_BYTES : HEADER_BYTES + header.preamble_bytes]
    if offset > header.data_start and crc32(preamble) != header.preamble_crc:
        raise SegmentDamaged("its preamble does not fit its CRC")


def durable_last(disk: SimulatedDisk, directory: str, partition: PartitionId) -> TransactionId:
    """The last id that would still be there if the power went now; a quick look without the node's own code."""
    begin = trimmed_by(disk, directory, partition).first
    last = begin - 1
    for path, first in _segments(disk, directory, partition):
        if first >= begin:
            last, goes_on = _segment_end(bytes(disk.file(path).durable), last)
            if not goes_on:
                break
    return last


@lru_cache(maxsize=256)  # it is looked at several times a second, and most segments are as they were
def _segment_end(raw: bytes, last: TransactionId) -> tuple[TransactionId, bool]:
    """The last id after this segment, which follows `last`; and whether the next one may go on from there."""
    try:
        header = SegmentHeader.decode(raw)
    except SegmentDamaged:
        return last, False
    offset = header.data_start
    while (frame := open_frame(raw, offset, offset=offset, seed=header.seed)) is not None:
        start = offset + FRAME_BYTES
        offset = start + frame.length
        if offset > len(raw):
            break
        try:
            batch = Batch.parse(memoryview(raw)[start:offset])
        except BatchDamaged:
            break  # Torn: its frame was written, the batch was not.
        if batch.first != last + 1:
            return last, False
        last = batch.last
    return last, True


class FinalLog:
    """One partition's log in the end, taken apart for the checkers."""

    def __init__(self, partition: PartitionId, batches: list[Batch]) -> None:
        self.partition = partition
        self.batches = batches
        self.transactions: list[Transaction] = []
        self.bodies: list[Body | None] = []
        self.batch_places: list[int] = []
        """By id: the place of its batch."""
        self.marks: list[TransactionId] = []
        """By id: the client high-water mark that it was judged by."""
        self.locks: list[list[tuple[int, int]]] = []
        for place, batch in enumerate(batches):
            self.transactions.extend(batch.transactions(own=True))
            self.batch_places.extend([place] * batch.count)
            evidence = batch.evidence()
            if evidence is not None:
                self.marks.extend(evidence.client_high_water_marks.tolist())
                self.locks.extend(evidence.locks(index) for index in range(batch.count))
        self.bodies = [parse_body(transaction.data) for transaction in self.transactions]
        self.batch_ends = list(accumulate(batch.count for batch in batches))

    def __len__(self) -> int:
        return len(self.transactions)

    def registers_after(self) -> list[tuple[TransactionId, dict[bytes, bytes]]]:
        """The registers after each batch that changed them, with that batch's last id."""
        held: dict[bytes, bytes] = {}
        stages: list[tuple[TransactionId, dict[bytes, bytes]]] = [(-1, {})]
        for batch in self.batches:
            if batch.registers_bytes:
                registers.apply(held, batch.registers)
                stages.append((batch.last, dict(held)))
        return stages
