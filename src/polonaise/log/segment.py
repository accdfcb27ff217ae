"""Segments: the files that hold a partition's batches, as bytes, with their indexes, and the scan that reads them back.

A segment is a 128-byte header, a preamble (the registers as they were before its first batch), and then frames::

    header     magic "PLNS" · format version u16 · flags u16 · creation time µs i64 · cluster key · partition u32 ·
               crc32 of the batch before it u32 · first id i64 · of the segment before it: first id i64, offset of
               its last frame and of its end u64 u64 · bytes and crc32 of the preamble u32 u32 · … · crc32 of the
               header in its last 4 bytes
    frame      magic "PLNF" · crc32 u32 · batch length u32 · batch crc32 u32 · synced offset u64 · own offset u64,
               then the batch

A frame says up to which offset this node had synced the file when it wrote the frame: bytes below may have been
acknowledged, so they are missed if they do not read back. The frame's CRC is seeded with the segment's identity and
covers the frame's own offset, so that a frame with another identity or offset is no frame here.

Zeros may follow the last frame of the segment that is written to (`tail.py`): space that the next frames will take.
They say nothing. If frames that had been synced became zeros, the evidence of sync shows it, like all damage.

The index of a segment, a file beside it, says where each batch lies: a 128-byte header and an entry (first id, file
offset, commit time) per batch, written at checkpoints only. The header has a CRC over all entries up to its checkpoint:
what a crash leaves is a whole checkpoint or nothing. An entry is a shortcut and no proof. A checkpoint is evidence that
the batches it covers had been synced.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from polonaise.checksum import crc32
from polonaise.errors import BatchDamaged, SegmentDamaged, UnsupportedFormat, WrongClusterKey
from polonaise.host import Buffer, Disk, File, write_whole
from polonaise.log import registers
from polonaise.log.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from polonaise.log.batch import Batch, padded
from polonaise.terms import PartitionId, TransactionId

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 128
FRAME_BYTES: Final = 32
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest batch, in bytes, that a frame may claim: checked before anything is read or allocated for it."""
PREAMBLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest preamble, in bytes, that a header may claim: checked before the preamble is read."""
SCAN_BYTES: Final = 1024 * 1024
"""How many bytes a scan reads at a time."""

_HEADER: Final = struct.Struct("<4sHHq16sIIqqQQII")
_HEADER_MAGIC: Final = b"PLNS"
_HEADER_CRC: Final = HEADER_BYTES - 4
REMOVED: Final = b"PLNR removed".ljust(HEADER_BYTES, b"\0")
"""The bytes that replace the header of a segment that is no part of the log any more. Rot would not leave these."""
_FRAME_MAGIC: Final = b"PLNF"
_FRAME_TAIL: Final = struct.Struct("<IIQQ")
_IDENTITY: Final = struct.Struct("<16sIq")


class SegmentRemoved(SegmentDamaged):
    """The segment was removed from the log, and a file with its name is left: a crash or a failed sync broke it off."""


class DamageFound(SegmentDamaged):
    """Bytes that were good once are not any more, or their file is gone.

    The loss has to be recorded (`PartitionLog.lose_above`) before anything else is answered.
    """

    def __init__(self, message: str, last_good: TransactionId, cuts: int = 0) -> None:
        super().__init__(message)
        self.last_good = last_good
        """The last id that is known to lie below the damage."""
        self.cuts = cuts
        """The count of the log's cuts when the read began: a log that was cut since has other bytes there."""


class SegmentHeader(NamedTuple):
    """The header of a segment file."""

    created_us: int
    cluster_key: bytes
    partition: PartitionId
    previous_crc: int
    """The CRC of the batch before `first`; 0 for none."""
    first: TransactionId
    previous_first: TransactionId
    """The first id of the segment before this one; -1 for none."""
    previous_last: int
    """The offset, in the segment before this one, of its last batch's frame; 0 for none."""
    previous_end: int
    """The offset of the end of the segment before this one, which was synced up to there; 0 for none."""
    preamble_bytes: int
    preamble_crc: int

    def encode(self) -> bytes:
        raw = _HEADER.pack(
            _HEADER_MAGIC, FORMAT_VERSION, 0, self.created_us, self.cluster_key, self.partition, self.previous_crc,
            self.first, self.previous_first, self.previous_last, self.previous_end,
            self.preamble_bytes, self.preamble_crc,
        ).ljust(_HEADER_CRC, b"\0")  # fmt: skip
        return raw + crc32(raw).to_bytes(4, "little")

    @classmethod
    def decode(cls, raw: bytes) -> SegmentHeader:
        """Return the header in `raw`. Raises `SegmentDamaged`, `SegmentRemoved` or `UnsupportedFormat`."""
        # First: these bytes have neither magic nor CRC, and would be told as damage, which is repaired.
        if raw[:HEADER_BYTES] == REMOVED:
            raise SegmentRemoved("the segment was removed from the log; the node deletes the file that is left of it")
        if len(raw) < HEADER_BYTES or raw[:4] != _HEADER_MAGIC:
            raise SegmentDamaged("the file does not begin with a segment header")
        # Before the version: rot in that field is damage, and not another format, which is not repaired but refused.
        if crc32(raw[:_HEADER_CRC]) != int.from_bytes(raw[_HEADER_CRC:HEADER_BYTES], "little"):
            raise SegmentDamaged("the CRC of a segment header does not fit")
        _, version, _, created, key, partition, previous_crc, *rest = _HEADER.unpack_from(raw)
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"segment format {version}; this version of Polonaise reads format {FORMAT_VERSION}: "
                "run the version that wrote it, or a newer one"
            )
        header = cls(created, bytes(key), partition, previous_crc, *rest)
        if header.first < 0 or header.preamble_bytes > PREAMBLE_BYTES_MAX:
            raise SegmentDamaged(
                f"the segment header claims first id {header.first} and {header.preamble_bytes} bytes of preamble; ids "
                f"begin at 0, and a preamble has at most {PREAMBLE_BYTES_MAX} bytes"
            )
        return header

    @property
    def data_start(self) -> int:
        """The offset of the first frame."""
        return HEADER_BYTES + padded(self.preamble_bytes)

    @property
    def identity(self) -> SegmentIdentity:
        """The cluster key, the partition and the first id, by which the index file knows the segment."""
        return self.cluster_key, self.partition, self.first

    @property
    def seed(self) -> int:
        """The number made of the identity, from which the CRC of each frame of this file starts."""
        return seed_of(*self.identity)


def seed_of(cluster_key: bytes, partition: PartitionId, first: TransactionId) -> int:
    """Return the number from which the CRC of each frame of a segment file starts. Needs no header."""
    return crc32(_IDENTITY.pack(cluster_key, partition, first))


class SegmentSource(Protocol):
    """An open file from which a segment can be read."""

    async def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""


@dataclass(slots=True)
class Segment:
    """A segment that belongs to the log: what is known of it without opening it."""

    header: SegmentHeader
    end: int
    """The offset after its last batch."""
    last: TransactionId
    """The last id in it; the one before its first when it is empty."""

    @property
    def first(self) -> TransactionId:
        """The first id of the segment, which names its file."""
        return self.header.first


def name(first: TransactionId, suffix: str = "seq") -> str:
    """Return the file name of the segment that begins with `first`; with the suffix "idx", that of its index."""
    return f"{first:020d}.{suffix}"


def frame_header(batch: Batch, *, offset: int, synced: int, seed: int) -> bytes:
    """Return the header of the batch's frame, which begins at `offset` of its segment.

    `synced` is the offset up to which the file was synced before, `seed` the segment's `SegmentHeader.seed`.
    """
    tail = _FRAME_TAIL.pack(batch.length, batch.crc, synced, offset)
    return _FRAME_MAGIC + crc32(tail, seed).to_bytes(4, "little") + tail


class FrameHeader(NamedTuple):
    """A frame header that was read and checked."""

    length: int
    """The length in bytes of the batch that follows."""
    batch_crc: int
    synced: int
    """The offset up to which the file had been synced when the frame was written."""


def open_frame(view: Buffer, at: int, *, offset: int, seed: int) -> FrameHeader | None:
    """Return the frame header at position `at` of `view`; None unless one is there that fits `offset` and `seed`."""
    raw = bytes(view[at : at + FRAME_BYTES])
    if len(raw) < FRAME_BYTES or raw[:4] != _FRAME_MAGIC:
        return None
    if crc32(raw[8:], seed) != int.from_bytes(raw[4:8], "little"):
        return None
    length, batch_crc, synced, position = _FRAME_TAIL.unpack_from(raw, 8)
    if position != offset or not BATCH_HEADER_BYTES <= length <= BATCH_BYTES_MAX:
        return None
    return FrameHeader(length, batch_crc, synced)


def open_batch(view: memoryview, at: int, *, offset: int, seed: int) -> Batch:
    """Return the batch whose frame begins at position `at` of `view`. Raises `BatchDamaged` unless all is right."""
    header = open_frame(view, at, offset=offset, seed=seed)
    if header is None:
        raise BatchDamaged(f"no frame at offset {offset}")
    start = at + FRAME_BYTES
    batch = Batch.parse(view[start : start + header.length])
    if batch.length != header.length or batch.crc != header.batch_crc:
        raise BatchDamaged(f"the frame at offset {offset} is of another batch")
    return batch


async def create(disk: Disk, directory: str, header: SegmentHeader, preamble: bytes) -> File:
    """Make a new, empty segment, durably, and return its open file. A crash leaves it whole, or nothing new."""
    padding = bytes(padded(len(preamble)) - len(preamble))
    # Half a header, left by a crash, would look like damage.
    await write_whole(disk, directory, name(header.first), [header.encode(), preamble, padding])
    return await disk.open(f"{directory}/{name(header.first)}")


async def read_header(file: File, partition: PartitionId, cluster_key: bytes, first: TransactionId) -> SegmentHeader:
    """Return the header of the segment that should begin with `first`.

    Raises `SegmentDamaged`, `UnsupportedFormat`, or `WrongClusterKey` for a file of another cluster.
    """
    header = SegmentHeader.decode(await file.read(0, HEADER_BYTES))
    if header.cluster_key != cluster_key:
        raise WrongClusterKey(
            f"segment {name(first)} of partition {partition} belongs to another cluster: put this node's own file back"
        )
    if header.partition != partition or header.first != first:
        raise SegmentDamaged(
            f"the header of segment {name(first)} is of partition {header.partition}, from {header.first} on"
        )
    return header


async def follows(file: SegmentSource, header: SegmentHeader, after: SegmentHeader) -> bool:
    """Tell whether the segment in `file` ends with the batch that the next segment, of the header `after`, follows.

    Only the header of that batch's frame is read: each batch carries the CRC of its predecessor, so those before it are
    right as well. Raises `SegmentDamaged` when no frame is where `after` says that the last one was.
    """
    offset = after.previous_last
    frame = open_frame(await file.read(offset, FRAME_BYTES), 0, offset=offset, seed=header.seed)
    if frame is None:
        raise SegmentDamaged(f"segment {name(header.first)} has no frame at offset {offset}, where its last batch was")
    return frame.batch_crc == after.previous_crc and offset + FRAME_BYTES + frame.length == after.previous_end


async def read_preamble(file: SegmentSource, header: SegmentHeader) -> bytes:
    """Return the encoded registers before the segment's first batch. Raises `SegmentDamaged`."""
    raw = await file.read(HEADER_BYTES, header.preamble_bytes)
    if len(raw) != header.preamble_bytes or crc32(raw) != header.preamble_crc:
        raise SegmentDamaged(f"the preamble of segment {name(header.first)} does not fit its CRC")
    return raw


_INDEX_VERSION: Final = 1
_INDEX_HEADER_BYTES: Final = 128
_ENTRY_BYTES: Final = 24

_INDEX_HEADER: Final = struct.Struct("<4sHH16sIqQQqII")
_INDEX_MAGIC: Final = b"PLNX"
_INDEX_CRC: Final = _INDEX_HEADER_BYTES - 4

SegmentIdentity = tuple[bytes, PartitionId, TransactionId]
"""The cluster key, the partition and the first id of a segment: no other one of a node has the same three."""


class Index:
    """The batches of one segment, in order: their first ids, frames' offsets, and commit times (microseconds UTC)."""

    __slots__ = ("firsts", "offsets", "times")

    def __init__(self) -> None:
        self.firsts = array("q")
        self.offsets = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.firsts)

    def add(self, first: TransactionId, offset: int, time_us: int) -> None:
        self.firsts.append(first)
        self.offsets.append(offset)
        self.times.append(time_us)

    def cut(self, count: int) -> None:
        """Keep the first `count` batches."""
        del self.firsts[count:], self.offsets[count:], self.times[count:]

    def position(self, transaction: TransactionId) -> int:
        """Return the position of the batch with this id: -1 for an id below the segment, the last for one above."""
        return bisect_right(self.firsts, transaction) - 1

    def position_at_time(self, time_us: int) -> int:
        """Return the position of the first batch committed at this time or later; the number of batches if none was."""
        return bisect_left(self.times, time_us)

    def encode(self, start: int, stop: int) -> bytes:
        """Return the entries from position `start` to before `stop`, as they lie in the file."""
        entries = array("q", bytes(_ENTRY_BYTES * (stop - start)))
        entries[0::3] = self.firsts[start:stop]
        entries[1::3] = self.offsets[start:stop]
        entries[2::3] = self.times[start:stop]
        return entries.tobytes()

    @classmethod
    def decode(cls, raw: bytes) -> Index:
        entries = array("q")
        entries.frombytes(raw)
        index = cls()
        index.firsts, index.offsets, index.times = entries[0::3], entries[1::3], entries[2::3]
        return index


class Checkpoint(NamedTuple):
    """The header of an index file: which segment it is for, and how far it goes."""

    cluster_key: bytes
    partition: PartitionId
    first: TransactionId
    batches: int
    end: int
    """The offset in the segment after the last batch of the checkpoint."""
    last: TransactionId
    """The last id that the checkpoint covers."""
    entries_crc: int
    with_registers: int
    """How many of the batches that the checkpoint covers change registers."""

    def encode(self) -> bytes:
        raw = _INDEX_HEADER.pack(_INDEX_MAGIC, _INDEX_VERSION, 0, *self).ljust(_INDEX_CRC, b"\0")
        return raw + crc32(raw).to_bytes(4, "little")

    @classmethod
    def decode(cls, raw: bytes) -> Checkpoint | None:
        """Return the checkpoint in `raw`; None for anything that is not one of this format."""
        if len(raw) < _INDEX_HEADER_BYTES or raw[:4] != _INDEX_MAGIC:
            return None
        if crc32(raw[:_INDEX_CRC]) != int.from_bytes(raw[_INDEX_CRC:_INDEX_HEADER_BYTES], "little"):
            return None
        _, version, _, key, *rest = _INDEX_HEADER.unpack_from(raw)
        if version != _INDEX_VERSION:
            return None
        return cls(bytes(key), *rest)


class IndexFile:
    """The writer of one segment's index file."""

    def __init__(self, identity: SegmentIdentity) -> None:
        self._identity = identity
        self.batches = 0
        """How many entries of the file are right; the next checkpoint writes those after them. 0: it writes all."""
        self._crc = 0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Let the next checkpoint write only the entries after those of `checkpoint`, which is in the file."""
        self.batches, self._crc = checkpoint.batches, checkpoint.entries_crc

    def rewrite(self) -> None:
        """Let the next checkpoint write all entries: the file is gone or can't be believed."""
        self.batches = self._crc = 0

    async def write(self, file: File, index: Index, *, end: int, last: TransactionId, with_registers: int) -> None:
        """Write a checkpoint of the index. Durable on return."""
        entries = index.encode(self.batches, len(index))
        crc = crc32(entries, self._crc)
        checkpoint = Checkpoint(*self._identity, len(index), end, last, crc, with_registers)
        # One sync for both: if a crash keeps the header without its entries, the CRC over them says so.
        await file.write(_INDEX_HEADER_BYTES + _ENTRY_BYTES * self.batches, [entries])
        await file.write(0, [checkpoint.encode()], sync=True)
        self.batches, self._crc = len(index), crc


async def read_index(file: File, identity: SegmentIdentity) -> tuple[Checkpoint, Index] | None:
    """Return the last checkpoint in an index file of this segment, with its entries; None unless it is whole."""
    checkpoint = Checkpoint.decode(await file.read(0, _INDEX_HEADER_BYTES))
    if checkpoint is None or (checkpoint.cluster_key, checkpoint.partition, checkpoint.first) != identity:
        return None
    length = _ENTRY_BYTES * checkpoint.batches
    if length > await file.size() - _INDEX_HEADER_BYTES:
        return None
    raw = await file.read(_INDEX_HEADER_BYTES, length)
    if len(raw) != length or crc32(raw) != checkpoint.entries_crc:
        return None
    return checkpoint, Index.decode(raw)


@dataclass(slots=True)
class Scan:
    """The state of a scan: what it has read, from its start up to the first bytes that do not follow."""

    index: Index
    end: int
    """The offset after the last good batch."""
    last: TransactionId
    """The last id read; the one before the first of the segment when no batch was."""
    last_crc: int
    """The CRC of the last good batch, or of the batch before the segment."""
    synced: int = 0
    """The highest offset that any frame, those after bad bytes included, or the index's checkpoint says was synced."""
    registers: dict[bytes, bytes] = field(default_factory=dict)
    """The registers after the last good batch: right if those before the first batch were put in at the start."""
    changed: array[int] = field(default_factory=lambda: array("q"))
    """The positions in the index of the batches that change registers."""
    bad: str = ""
    """What was bad where the scan ended; empty if it ended at its limit, at zeros or at the end of the bytes."""
    torn: bool = False
    """Whether the bad bytes may be those of a write that never ended: no frame says that they had been synced."""

    def add(self, batch: Batch) -> None:
        if batch.registers_bytes:
            self.changed.append(len(self.index))
            registers.apply(self.registers, batch.registers)
        self.index.add(batch.first, self.end, batch.commit_time_us)
        self.end += FRAME_BYTES + batch.length
        self.last, self.last_crc = batch.last, batch.crc


@dataclass(slots=True)
class Window:
    """The part of a file that a scan has in memory."""

    file: SegmentSource
    stop: int
    at: int = 0
    view: memoryview = field(default_factory=lambda: memoryview(b""))

    async def need(self, offset: int, length: int) -> bool:
        """Get `length` bytes from `offset` into `view`; return False if `stop` or the file's end comes before."""
        if offset + length > self.stop:
            return False
        if not self.at <= offset or offset + length > self.at + len(self.view):
            self.view = memoryview(await self.file.read(offset, min(max(length, SCAN_BYTES), self.stop - offset)))
            self.at = offset
        return offset + length <= self.at + len(self.view)


async def scan(
    file: SegmentSource, header: SegmentHeader, scanned: Scan, stop: int, limit: TransactionId | None = None
) -> Scan:
    """Read batches from where `scanned` ends up to offset `stop`, or to the last one that ends at or below `limit`.

    Checks the CRCs of frames and batches, that ids are dense, and that each batch carries the CRC of the one before.
    Bad bytes end the scan: `scanned.bad` says why. Returns `scanned`.
    """
    async for _ in walk(file, header, scanned, stop, limit):
        pass
    return scanned


async def walk(
    file: SegmentSource, header: SegmentHeader, scanned: Scan, stop: int, limit: TransactionId | None = None
) -> AsyncGenerator[tuple[int, Batch], None]:
    """Scan as `scan` does, and yield each batch with its frame's offset, as soon as `scanned` covers the batch.

    What looks damaged is read once more: a node may be writing to the file, and later frames vouch for what was not
    written yet when it was read.
    """
    window, seed = Window(file, stop), header.seed
    read_again = -1
    while scanned.end < stop:
        if limit is not None and scanned.last >= limit:
            return
        offset, frame, bad = scanned.end, None, "no frame"
        if await window.need(offset, FRAME_BYTES):
            frame = open_frame(window.view, offset - window.at, offset=offset, seed=seed)
        if frame is None:
            # Only zeros up to the end: space written ahead of the log, and its normal end.
            if await end_of_bytes(file, offset, stop) == offset:
                return
        else:
            scanned.synced = max(scanned.synced, frame.synced)
            if not await window.need(offset, FRAME_BYTES + frame.length):
                await _judge_bad(file, header, scanned, stop, "a batch cut short")
                return
            try:
                batch = open_batch(window.view, offset - window.at, offset=offset, seed=seed)
                check_registers(batch)
                bad = ""
            except BatchDamaged as error:
                bad = error.text
        if bad:
            await _judge_bad(file, header, scanned, stop, bad)
            if scanned.torn or read_again == offset:
                return
            read_again, scanned.bad, window = offset, "", Window(file, stop)
            continue
        if (
            batch.first != scanned.last + 1
            or batch.previous_crc != scanned.last_crc
            or batch.partition != header.partition
        ):
            scanned.bad = f"the batch from {batch.first} does not follow {scanned.last}"
            return
        if limit is not None and batch.last > limit:
            return
        scanned.add(batch)
        yield offset, batch


async def intact_batches(
    file: SegmentSource, seed: int, start: int, stop: int
) -> AsyncGenerator[tuple[int, Batch], None]:
    """Yield every whole batch between the offsets `start` and `stop`, with its frame's offset: what is left behind
    damage.

    Nothing checks whether one follows another. A frame says at which offset of which file it lies.
    """
    following = start
    async with aclosing(_frames_in(file, seed, start, stop)) as frames:
        async for offset, frame in frames:
            if offset < following:  # within the batch before
                continue
            raw = memoryview(await file.read(offset, FRAME_BYTES + frame.length))
            try:
                batch = open_batch(raw, 0, offset=offset, seed=seed)
            except BatchDamaged:
                continue  # its length may be what rotted: search within it as well
            yield offset, batch
            following = offset + FRAME_BYTES + batch.length


async def _frames_in(
    file: SegmentSource, seed: int, start: int, stop: int
) -> AsyncGenerator[tuple[int, FrameHeader], None]:
    while start + FRAME_BYTES <= stop:
        chunk = await file.read(start, min(SCAN_BYTES, stop - start))
        if len(chunk) < FRAME_BYTES:
            return
        at = chunk.find(_FRAME_MAGIC)
        while at >= 0:
            frame = open_frame(chunk, at, offset=start + at, seed=seed)
            if frame is not None:
                yield start + at, frame
            at = chunk.find(_FRAME_MAGIC, at + 1)
        start += len(chunk) - FRAME_BYTES + 1


def check_registers(batch: Batch) -> None:
    """Raise `BatchDamaged` unless the batch's register changes can be read."""
    if batch.registers_bytes:
        for _ in registers.decode(batch.registers):
            pass


async def end_of_bytes(file: SegmentSource, start: int, stop: int) -> int:
    """Return the offset after the last byte between `start` and `stop` that is not 0; `start` if all are 0."""
    end = offset = start
    while offset < stop and (chunk := await file.read(offset, min(SCAN_BYTES, stop - offset))):
        if written := chunk.rstrip(b"\0"):
            end = offset + len(written)
        offset += len(chunk)
    return end


async def _judge_bad(file: SegmentSource, header: SegmentHeader, scanned: Scan, stop: int, why: str) -> None:
    """Record the bad bytes at `scanned.end`, and whether later frames say that they had been synced.

    A frame of the same write says nothing about them: the sync after that write may never have happened.
    """
    scanned.bad = f"{why} at offset {scanned.end}"
    # The frame at the end is the bad one. Frames begin at multiples of 8.
    async for _, frame in _frames_in(file, header.seed, scanned.end + 8, stop):
        scanned.synced = max(scanned.synced, frame.synced)
    scanned.torn = scanned.synced <= scanned.end
