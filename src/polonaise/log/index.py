"""The index of a segment: where each batch lies, in memory while it is needed, and as a file beside the segment.

The file is a 128-byte header and an entry (first id, file offset, commit time) per batch, written at checkpoints only.
The header has a CRC over all entries up to its checkpoint: what a crash leaves is a whole checkpoint or nothing. An
entry is a shortcut and no proof. A checkpoint is evidence that the batches it covers had been synced.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.host import File
from polonaise.terms import PartitionId, TransactionId

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 128
ENTRY_BYTES: Final = 24

_HEADER: Final = struct.Struct("<4sHH16sIqQQqII")
_MAGIC: Final = b"PLNX"
_CRC_OFFSET: Final = HEADER_BYTES - 4

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
        entries = array("q", bytes(ENTRY_BYTES * (stop - start)))
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
        raw = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, *self).ljust(_CRC_OFFSET, b"\0")
        return raw + crc32(raw).to_bytes(4, "little")

    @classmethod
    def decode(cls, raw: bytes) -> Checkpoint | None:
        """Return the checkpoint in `raw`; None for anything that is not one of this format."""
        if len(raw) < HEADER_BYTES or raw[:4] != _MAGIC:
            return None
        if crc32(raw[:_CRC_OFFSET]) != int.from_bytes(raw[_CRC_OFFSET:HEADER_BYTES], "little"):
            return None
        _, version, _, key, *rest = _HEADER.unpack_from(raw)
        if version != FORMAT_VERSION:
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
        await file.write(HEADER_BYTES + ENTRY_BYTES * self.batches, [entries])
        await file.write(0, [checkpoint.encode()], sync=True)
        self.batches, self._crc = len(index), crc


async def load(file: File, identity: SegmentIdentity) -> tuple[Checkpoint, Index] | None:
    """Return the last checkpoint in an index file of this segment, with its entries; None unless it is whole."""
    checkpoint = Checkpoint.decode(await file.read(0, HEADER_BYTES))
    if checkpoint is None or (checkpoint.cluster_key, checkpoint.partition, checkpoint.first) != identity:
        return None
    length = ENTRY_BYTES * checkpoint.batches
    if length > await file.size() - HEADER_BYTES:
        return None
    raw = await file.read(HEADER_BYTES, length)
    if len(raw) != length or crc32(raw) != checkpoint.entries_crc:
        return None
    return checkpoint, Index.decode(raw)
