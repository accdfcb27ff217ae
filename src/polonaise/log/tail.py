"""The tail: the last segment of a log, the only one that is written to."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polonaise.errors import BatchDamaged, DiskFull, NotFound, PolonaiseError, invariant
from polonaise.host import Buffer, Disk, File, Identity, opened_file
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.segment import (
    FRAME_BYTES,
    Checkpoint,
    DamageFound,
    Index,
    IndexFile,
    Scan,
    Segment,
    SegmentHeader,
    frame_header,
    name,
    open_batch,
    read_index,
    read_preamble,
    scan,
)
from polonaise.terms import TransactionId

CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
CHECKPOINT_BATCHES: Final = 4_096
"""How much may be written, in bytes and in batches, between two checkpoints of the index: about so much is scanned
after a crash, or all of the segment if a batch below the checkpoint changes registers."""
ZEROS_BYTES_MAX: Final = 64 * 1024
"""How many bytes of zeros are written ahead of the log, at most: a sync is much quicker when the file keeps its length,
because a longer one goes through the file system's journal, in which the syncs of all files wait for each other."""
ZEROS_SHARE: Final = 2
"""Zeros take at most the bytes written so far, divided by this."""
SMALL_WRITE_BYTES: Final = 16 * 1024
"""The largest write that gets zeros behind it. A larger one would soon have used them up."""


@dataclass(eq=False, slots=True)
class Opened:
    """A segment's open file and its index; `users` counts the reads, and the writer, that have them in use."""

    file: File
    index: Index
    written: bool = False
    """Whether the index is the writer's own: it grows with the segment, and if the file differs, the file is wrong."""
    users: int = 1
    path: str | None = None
    """The path by which the cache knows it; None when the cache does not."""


class Tail:
    """The last segment of a log, its index and registers in memory, its file open. Up to `end` all is synced."""

    def __init__(
        self, disk: Disk, directory: str, header: SegmentHeader, file: File, scanned: Scan, identity: Identity | None
    ) -> None:
        self._disk = disk
        self._index_path = f"{directory}/{name(header.first, 'idx')}"
        self._index_file = IndexFile(header.identity)
        self._seed = header.seed
        self._checkpoint_end = header.data_start
        """The offset up to which the checkpoint covers the segment; that of the first frame for none."""
        self._zeros_end = 0
        """The offset up to which zeros may have been written ahead; 0 for none."""
        self._zeros_fit = True
        self.header = header
        self.file = file
        self.identity = identity
        """The identity of the file when it was opened; None if it was gone by then."""
        self.scanned = scanned
        """The scan of the segment, up to date with every write."""
        self.opened: Final = Opened(file, scanned.index, written=True)
        """The file and the index for readers, once the log has adopted this tail."""

    @classmethod
    async def load(
        cls, disk: Disk, directory: str, header: SegmentHeader, file: File, limit: TransactionId | None = None
    ) -> Tail:
        """Read the segment back up to `limit` or the first bad bytes, from its last checkpoint where possible.

        Raises `SegmentDamaged` when the preamble can't be read. The file is closed when this fails.
        """
        try:
            preamble = await read_preamble(file, header)
            loaded = await load_index(disk, directory, header)
            scanned = empty_scan(header, preamble)
            resumed = loaded is not None and await _resume(file, header, scanned, loaded, limit)
            await scan(file, header, scanned, await file.size(), limit)
            identity = await disk.identity(f"{directory}/{name(header.first)}")
        except BaseException:  # also when cancelled: only this call can close the file
            await file.close()
            raise
        tail = cls(disk, directory, header, file, scanned, identity)
        if loaded is not None:
            checkpoint, _ = loaded
            # A checkpoint covers synced batches only: it is evidence of sync even if it can't be resumed from.
            scanned.synced = max(scanned.synced, checkpoint.end)
            if resumed:
                tail._index_file.resume(checkpoint)
                tail._checkpoint_end = checkpoint.end
        return tail

    @property
    def index(self) -> Index:
        return self.scanned.index

    @property
    def end(self) -> int:
        """The offset after the last batch."""
        return self.scanned.end

    @property
    def segment(self) -> Segment:
        return Segment(self.header, self.end, self.scanned.last)

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
            self.scanned.add(batch)
        invariant(self.end == offset, "the index follows the file")
        unwritten = len(self.index) - self._index_file.batches
        # The batches are part of the log by now, whatever becomes of the checkpoint.
        if self.end - self._checkpoint_end >= CHECKPOINT_BYTES or unwritten >= CHECKPOINT_BATCHES:
            await self.checkpoint()

    async def _write(self, start: int, end: int, buffers: list[Buffer]) -> None:
        """Write `buffers` from `start` to `end` and sync. A small write beyond the zeros gets new zeros behind it."""
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
        """Write the index, and end the file where its last batch ends, durably: the next header will say where that is.

        Raises `DiskFull` or `DiskFailed`; the length on the disk is in doubt then.
        """
        if self._zeros_end > self.end:
            await self._cut_zeros()
            await self.file.sync()
        await self.checkpoint()

    async def finish(self) -> None:
        """Cut the zeros and write the index, before the file is closed. A failure harms nothing."""
        if self._zeros_end > self.end:
            with contextlib.suppress(PolonaiseError):
                await self._cut_zeros()
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write the index. A failure harms nothing: the index can be made anew from the segment."""
        if self.end == self._checkpoint_end:
            return
        try:
            async with opened_file(self._disk, self._index_path, create=True) as file:
                await self._index_file.write(
                    file, self.index, end=self.end, last=self.scanned.last, with_registers=len(self.scanned.changed)
                )
            self._checkpoint_end = self.end
        except PolonaiseError:
            # After a failed sync nobody knows what the file holds: the next checkpoint writes all entries again.
            self._index_file.rewrite()

    def batches_up_to(self, last: TransactionId) -> int | None:
        """Return how many batches are left when the log is cut to end with `last`; None if no batch ends with it."""
        if last == self.scanned.last:
            return len(self.index)
        position = bisect_left(self.index.firsts, last + 1)
        if position < len(self.index) and self.index.firsts[position] == last + 1:
            return position
        return None

    def offset_at(self, position: int) -> int:
        """Return where the frame of the batch at this position in the index begins; `end` if no batch is there."""
        return self.index.offsets[position] if position < len(self.index) else self.end

    async def cut(self, directory: str, count: int, last: TransactionId, last_crc: int) -> None:
        """Keep the first `count` batches, which end with `last`. Durable on return; a crash midway may leave more.

        Raises `DamageFound` if batches that are to stay can't be read again, `SegmentDamaged` if the preamble can't.
        """
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
        scanned = self.scanned
        # Registers can't be taken back: when a batch that changed some is cut, the segment is read again from its
        # preamble on.
        if scanned.changed and scanned.changed[-1] >= count:
            self.scanned = empty_scan(self.header, await read_preamble(self.file, self.header))
            await scan(self.file, self.header, self.scanned, end)
            if self.scanned.last != last:
                # To a scan, zeros are the end of the bytes. Here they were batches.
                raise DamageFound(self.scanned.bad or f"zeros at offset {self.scanned.end}", self.scanned.last)
            return
        self.index.cut(count)
        self.scanned = Scan(self.index, end, last, last_crc, registers=scanned.registers, changed=scanned.changed)

    async def read_again(self, start: int) -> bytes:
        """Return the file's bytes from `start` up to `end`; none when `start` is not below that."""
        return await self.file.read(start, self.end - start) if start < self.end else b""

    async def take_back(self) -> None:
        """Remove, durably, what a failed write has left above the end."""
        await self._cut_zeros()
        await self.file.sync()


def empty_scan(header: SegmentHeader, preamble: bytes) -> Scan:
    """Return a scan of the segment that has read nothing yet, with the registers of its preamble."""
    scanned = Scan(Index(), header.data_start, header.first - 1, header.previous_crc)
    registers.apply(scanned.registers, preamble)
    return scanned


async def load_index(disk: Disk, directory: str, header: SegmentHeader) -> tuple[Checkpoint, Index] | None:
    """Return the last checkpoint of a segment's index; None when no usable one exists."""
    try:
        async with opened_file(disk, f"{directory}/{name(header.first, 'idx')}") as file:
            return await read_index(file, header.identity)
    except NotFound:
        return None


async def _resume(
    file: File, header: SegmentHeader, scanned: Scan, loaded: tuple[Checkpoint, Index], limit: TransactionId | None
) -> bool:
    """Take what the checkpoint covers as scanned, and tell whether that could be done.

    Its last batch must be where it says and not above `limit`, and no batch up to there may change registers: those
    have to be read.
    """
    checkpoint, index = loaded
    # A checkpoint that reaches above the limit covers batches that are not believed.
    if not len(index) or checkpoint.with_registers or (limit is not None and checkpoint.last > limit):
        return False
    offset = index.offsets[-1]
    if not header.data_start <= offset < checkpoint.end:
        return False
    # Only the last batch is read. Each carries the CRC of its predecessor, so those that were written before it are
    # right as well. Whether they can still be read is not shown by this; a read or the scrub finds out.
    view = memoryview(await file.read(offset, checkpoint.end - offset))
    try:
        batch = open_batch(view, 0, offset=offset, seed=header.seed)
    except BatchDamaged:
        return False
    if (batch.first, batch.last, len(view)) != (index.firsts[-1], checkpoint.last, FRAME_BYTES + batch.length):
        return False
    scanned.index, scanned.end, scanned.last, scanned.last_crc = index, checkpoint.end, batch.last, batch.crc
    return True
