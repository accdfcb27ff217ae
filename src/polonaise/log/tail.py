"""The tail: the last segment of a log, the only one that is written to."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from polonaise.errors import BatchDamaged, DiskFull, NotFound, PolonaiseError, invariant
from polonaise.host import Buffer, Disk, File
from polonaise.log import index as index_files
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.index import Checkpoint, Index, IndexFile
from polonaise.log.segment import (
    FRAME_BYTES,
    DamageFound,
    Scan,
    Segment,
    SegmentHeader,
    frame_header,
    name,
    open_batch,
    read_preamble,
    scan,
    take,
)
from polonaise.terms import TransactionId

CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
CHECKPOINT_BATCHES: Final = 4_096
"""How much may be written between two checkpoints of the index, in bytes and in batches.

About so much is scanned after a crash. Batches are counted too, because each takes a time to scan, however few bytes it
has.
"""
ZEROS_BYTES_MAX: Final = 64 * 1024
"""How many bytes of zeros are written ahead of the log, at most.

A sync is much quicker when the file has its length already and only contents are written: a longer file has to get its
new length and blocks through the file system's journal, in which the syncs of all files wait for each other.
"""
ZEROS_SHARE: Final = 2
"""No more zeros than the segment's bytes divided by this: one of many small logs takes no room that it does not use."""
SMALL_WRITE_BYTES: Final = 16 * 1024
"""The largest write that gets zeros behind it. A larger one would soon have used them up."""


class Tail:
    """The last segment of a log, with its index and registers in memory and its file open.

    Everything up to `end` is synced: nothing else enters the index.
    """

    def __init__(self, disk: Disk, directory: str, header: SegmentHeader, file: File, found: Scan) -> None:
        self._disk = disk
        self._index_path = f"{directory}/{name(header.first, 'idx')}"
        self._index_file = IndexFile(header.cluster_key, header.partition, header.first)
        self._seed = header.seed
        self._found = found
        self._checkpoint_end = header.data_start
        """The end of the segment as of the last checkpoint of the index."""
        self._zeros_end = 0
        """Where the zeros written ahead end, at most; 0 for none."""
        self._zeros_fit = True
        """Whether the disk has had room for zeros so far."""
        self.header = header
        self.file = file
        self.checkpoints_failed = 0
        """How many checkpoints of the index could not be written."""

    @classmethod
    async def load(
        cls, disk: Disk, directory: str, header: SegmentHeader, file: File, limit: TransactionId | None = None
    ) -> Tail:
        """Read the segment back up to `limit` or the first bad bytes, from its last checkpoint where possible.

        `found` tells how the scan went. Raises `SegmentDamaged` when the preamble can't be read.
        """
        preamble = await read_preamble(file, header)
        known = await load_index(disk, directory, header)
        found = beginning(header, preamble)
        resumed = known is not None and await _resume(file, header, found, known, limit)
        await scan(file, header, found, await file.size(), limit)
        tail = cls(disk, directory, header, file, found)
        if known is not None:
            # A checkpoint covers synced batches only: it is evidence of sync even if it can't be resumed from.
            found.synced = max(found.synced, known[0].end)
            if resumed:
                tail._index_file.resume(known[0])
                tail._checkpoint_end = known[0].end
        return tail

    @property
    def found(self) -> Scan:
        """The scan of the segment, up to date with every write."""
        return self._found

    @property
    def index(self) -> Index:
        """The index of the segment's batches."""
        return self._found.index

    @property
    def end(self) -> int:
        """The offset after the last batch."""
        return self._found.end

    @property
    def segment(self) -> Segment:
        """The segment as it is now, for readers."""
        return Segment(self.header, self.end, self._found.last)

    async def write(self, batches: Sequence[Batch]) -> None:
        """Write and sync the batches as one. On any failure none of them is part of the log."""
        buffers: list[Buffer] = []
        start = offset = self.end
        for batch in batches:
            # Every frame of this write says only what was synced before it: after a crash, a frame must not vouch for
            # others whose sync may never have happened.
            buffers.append(frame_header(batch, offset=offset, synced=start, seed=self._seed))
            buffers.append(batch.view)
            offset += FRAME_BYTES + batch.length
        await self._write(start, offset, buffers)
        # After the sync: readers go by the index, and may see only what is synced.
        for batch in batches:
            take(self._found, batch)
        invariant(self.end == offset, "the index follows the file")
        unwritten = len(self.index) - self._index_file.batches
        # The batches are part of the log by now, whatever becomes of the checkpoint.
        if self.end - self._checkpoint_end >= CHECKPOINT_BYTES or unwritten >= CHECKPOINT_BATCHES:
            await self.checkpoint()

    async def _write(self, start: int, end: int, buffers: list[Buffer]) -> None:
        """Write and sync, with zeros behind a small write that reaches the end of the earlier ones."""
        zeros = 0
        if end > self._zeros_end and end - start <= SMALL_WRITE_BYTES and self._zeros_fit:
            zeros = min(ZEROS_BYTES_MAX, (end - self.header.data_start) // ZEROS_SHARE)
            # Before the write: a write that fails may have left any part of the zeros, and they have to be cut.
            self._zeros_end = end + zeros
        try:
            await self.file.write(start, [*buffers, bytes(zeros)], sync=True)
        except DiskFull:
            if not zeros:
                raise
            # The disk is full with the zeros; without them the batches may still fit. Part of the failed write may lie
            # behind the end: it is removed before the batches are written again.
            self._zeros_fit = False
            await self._cut_zeros()
            await self._write(start, end, buffers)

    async def _cut_zeros(self) -> None:
        """Cut the file at the end of its last batch. Durable after the next sync."""
        await self.file.truncate(self.end)
        self._zeros_end = 0

    async def seal(self) -> None:
        """End the segment where its last batch does. Durable on return, because the next segment's header says so.

        Raises `DiskFull` or `DiskFailed`; the length on the disk is in doubt then.
        """
        if self._zeros_end > self.end:
            await self._cut_zeros()
            await self.file.sync()
        await self.checkpoint()

    async def finish(self) -> None:
        """Cut the zeros and write the index, before the file is closed.

        A failure harms nothing: the next opening makes up for it.
        """
        if self._zeros_end > self.end:
            with contextlib.suppress(PolonaiseError):
                await self._cut_zeros()
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write the index. A failure harms nothing: the index can be made anew from the segment."""
        if self.end == self._checkpoint_end:
            return
        try:
            file = await self._disk.open(self._index_path, create=True)
            try:
                await self._index_file.write(
                    file, self.index, end=self.end, last=self._found.last, with_registers=len(self._found.changed)
                )
            finally:
                await file.close()
            self._checkpoint_end = self.end
        except PolonaiseError:
            # After a failed sync nobody knows what the file holds: the next checkpoint writes all entries again.
            self._index_file.rewrite()
            self.checkpoints_failed += 1

    def place_of_end(self, last: TransactionId) -> int | None:
        """Return how many batches are left when the log is cut to end with `last`; None unless a batch ends there."""
        if last == self._found.last:
            return len(self.index)
        position = bisect_left(self.index.firsts, last + 1)
        if position < len(self.index) and self.index.firsts[position] == last + 1:
            return position
        return None

    def offset_at(self, position: int) -> int:
        """Return the offset of the batch at this position in the index; the end of the segment after the last one."""
        return self.index.offsets[position] if position < len(self.index) else self.end

    async def cut(self, directory: str, count: int, last: TransactionId, last_crc: int) -> None:
        """Keep the first `count` batches, which end with `last`. Durable on return; a crash leaves less cut."""
        end = self.offset_at(count)
        # The index goes first, durably: one that outlived the cut would count as evidence that the cut bytes had been
        # synced, and the next opening would miss them.
        with contextlib.suppress(NotFound):
            await self._disk.remove(self._index_path)
        await self._disk.sync_directory(directory)
        await self.file.truncate(end)
        self._zeros_end = 0
        await self.file.sync()
        self._index_file.rewrite()
        self._checkpoint_end = self.header.data_start
        found = self._found
        # Registers can't be taken back: when a batch that changed some is cut, the segment is read again from its
        # preamble on.
        if found.changed and found.changed[-1] >= count:
            self._found = beginning(self.header, await read_preamble(self.file, self.header))
            await scan(self.file, self.header, self._found, end)
            if self._found.last != last:
                raise DamageFound(self._found.bad, self._found.last)
            return
        self.index.cut(count)
        self._found = Scan(self.index, end, last, last_crc, registers=found.registers, changed=found.changed)

    async def read_again(self, start: int) -> bytes:
        """Return the bytes from `start` up to the end."""
        return await self.file.read(start, self.end - start) if start < self.end else b""

    async def take_back(self) -> None:
        """Remove, durably, what a failed write has left above the end."""
        await self._cut_zeros()
        await self.file.sync()


def beginning(header: SegmentHeader, preamble: bytes) -> Scan:
    """Return a scan of the segment that has read nothing yet, with the registers of its preamble."""
    held: dict[bytes, bytes] = {}
    registers.apply(held, preamble)
    return Scan(Index(), header.data_start, header.first - 1, header.previous_crc, registers=held, changed=array("q"))


async def load_index(disk: Disk, directory: str, header: SegmentHeader) -> tuple[Checkpoint, Index] | None:
    """Return the last checkpoint of a segment's index; None when no usable one exists."""
    try:
        file = await disk.open(f"{directory}/{name(header.first, 'idx')}")
    except NotFound:
        return None
    try:
        return await index_files.load(file, header.cluster_key, header.partition, header.first)
    finally:
        await file.close()


async def _resume(
    file: File, header: SegmentHeader, found: Scan, known: tuple[Checkpoint, Index], limit: TransactionId | None
) -> bool:
    """Take what the checkpoint covers as scanned, and tell whether that could be done.

    It could if the last batch of the checkpoint is where the checkpoint says, and no registers changed below: batches
    that change registers have to be read.
    """
    checkpoint, index = known
    # A checkpoint that reaches above the limit covers batches that are not believed.
    if not len(index) or checkpoint.with_registers or (limit is not None and checkpoint.last > limit):
        return False
    offset = index.offsets[-1]
    if not header.data_start <= offset < checkpoint.end:
        return False
    # The one batch that is read speaks for those before it: each carries the CRC of its predecessor. That they can
    # still be read is not shown by this; a read or the scrub finds out.
    view = memoryview(await file.read(offset, checkpoint.end - offset))
    try:
        batch = open_batch(view, 0, offset=offset, seed=header.seed)
    except BatchDamaged:
        return False
    if (batch.first, batch.last, len(view)) != (index.firsts[-1], checkpoint.last, FRAME_BYTES + batch.length):
        return False
    found.index, found.end, found.last, found.last_crc = index, checkpoint.end, batch.last, batch.crc
    return True
