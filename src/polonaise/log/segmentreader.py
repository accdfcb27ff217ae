"""Read a log through each segment's index, with every CRC checked and a bounded number of open files."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from polonaise.errors import BatchDamaged, NotFound, PolonaiseError, SegmentDamaged
from polonaise.host import Disk, File
from polonaise.log.batch import Batch
from polonaise.log.index import Index, IndexFile
from polonaise.log.segment import (
    HEADER_BYTES,
    DamageFound,
    Scan,
    Segment,
    SegmentHeader,
    name,
    open_batch,
    read_preamble,
    scan,
)
from polonaise.log.tail import beginning, load_index
from polonaise.terms import TransactionId

T = TypeVar("T")


class Opened:
    """A segment's file and index, in use by `users`."""

    __slots__ = ("file", "index", "path", "users", "written")

    def __init__(self, file: File, index: Index, *, written: bool = False) -> None:
        self.file = file
        self.index = index
        self.written = written
        """Whether the index is the writer's own: then it may grow, and is never the one at fault."""
        self.users = 1
        self.path: str | None = None
        """The path by which the cache knows it; None when the cache does not."""


class SegmentCache:
    """The open segments of all partitions of a node. At most `capacity` of those that are not in use are kept."""

    def __init__(self, capacity: int = 32) -> None:
        self._capacity = capacity
        self._opened: dict[str, Opened] = {}
        self._idle: OrderedDict[Opened, str] = OrderedDict()
        """The segments that are not in use, the one that was used last at the end."""

    def __len__(self) -> int:
        """How many segments are known, in use or not."""
        return len(self._opened)

    def take(self, path: str) -> Opened | None:
        """Return the segment if it is open, to be given back with `release`; None otherwise."""
        opened = self._opened.get(path)
        if opened is not None:
            opened.users += 1
            self._idle.pop(opened, None)
        return opened

    def put(self, path: str, opened: Opened) -> None:
        """Add a segment that was just opened, in use by the caller."""
        self._opened[path] = opened
        opened.path = path

    async def release(self, opened: Opened) -> None:
        """Give back a segment. One that is not in use stays open while there is room."""
        opened.users -= 1
        if opened.users:
            return
        if opened.path is None:
            await opened.file.close()
            return
        self._idle[opened] = opened.path
        if len(self._idle) > self._capacity:
            oldest, path = self._idle.popitem(last=False)
            del self._opened[path]
            await oldest.file.close()

    async def drop(self, paths: Iterable[str]) -> None:
        """Forget these segments: their files are to be changed, or are closed for good.

        Files in use are closed by their last user.
        """
        unused: list[File] = []
        for path in paths:
            opened = self._opened.pop(path, None)
            if opened is not None:
                opened.path = None
                if self._idle.pop(opened, None) is not None:
                    unused.append(opened.file)
        await close_all(unused)

    async def give_up(self, opened: Opened) -> None:
        """Give back a segment that is to be forgotten."""
        if opened.path is not None:
            del self._opened[opened.path]
            opened.path = None
        await self.release(opened)


async def close_all(files: Iterable[File]) -> None:
    """Close all of these files, also when the caller is cancelled on the way."""
    cancelled: asyncio.CancelledError | None = None
    for file in files:
        try:
            await file.close()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Reader:
    """Reads the segments of one partition."""

    def __init__(self, disk: Disk, directory: str, cache: SegmentCache) -> None:
        self._disk = disk
        self._directory = directory
        self._cache = cache

    def path(self, segment: Segment) -> str:
        """Return the path of the segment's file."""
        return f"{self._directory}/{name(segment.first)}"

    async def read(
        self,
        segment: Segment,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        part_last: TransactionId = -1,
    ) -> list[Batch]:
        """Return the batches of the segment from the one with `first` on, none that ends above `last`.

        With `part_last`, only those that begin at `first` or above and at that id or below. Not more than `bytes_max`
        bytes unless a single batch is larger. Raises `DamageFound`.
        """

        async def read(opened: Opened) -> list[Batch]:
            try:
                return await _read(segment, opened, first, last, bytes_max, part_last)
            except BatchDamaged:
                # Either the bytes or the index may be wrong: only the first is damage of the log.
                await self._examine(segment, opened)
            try:
                return await _read(segment, opened, first, last, bytes_max, part_last)
            except BatchDamaged as error:
                position = max(opened.index.position(first), 0)
                raise DamageFound(error.text, opened.index.firsts[position] - 1) from error

        return await self._use(segment, read)

    async def check_beginning(self, segment: Segment) -> int:
        """Verify the header and the preamble of the segment, and return their size in bytes. Raises `DamageFound`."""

        async def check(opened: Opened) -> int:
            header = segment.header
            if await self._disk.identity(self.path(segment)) is None:
                raise removed(self.path(segment), segment.first)
            try:
                read = SegmentHeader.decode(await opened.file.read(0, HEADER_BYTES))
                await read_preamble(opened.file, header)
            except SegmentDamaged as error:
                raise DamageFound(f"segment {name(segment.first)}: {error.text}", segment.first - 1) from error
            if read != header:
                raise DamageFound(f"segment {name(segment.first)} has another header", segment.first - 1)
            return header.data_start

        return await self._use(segment, check)

    async def index(self, segment: Segment) -> Index:
        """Return the segment's index: where its batches lie, and when they were committed."""

        async def index(opened: Opened) -> Index:
            return opened.index

        return await self._use(segment, index)

    async def _use(self, segment: Segment, use: Callable[[Opened], Awaitable[T]]) -> T:
        """Run `use` on the open segment. Raises `DamageFound` when its file is gone."""
        try:
            opened = self._cache.take(self.path(segment)) or await self._open(segment)
            try:
                return await use(opened)
            finally:
                await self._cache.release(opened)
        except NotFound as error:
            raise removed(self.path(segment), segment.first) from error

    async def _open(self, segment: Segment) -> Opened:
        """Open the segment and its index, for the cache."""
        path = self.path(segment)
        file = await self._disk.open(path)
        try:
            opened = Opened(file, await self._index_of(segment, file))
        except BaseException:  # also when cancelled: only this call can close the file
            await file.close()
            raise
        # Another read may have opened the same segment meanwhile: one of the two files is kept.
        raced = self._cache.take(path)
        if raced is None:
            self._cache.put(path, opened)
            return opened
        await file.close()
        return raced

    async def _index_of(self, segment: Segment, file: File) -> Index:
        """Return the index of a sealed segment, made from the segment when the file is missing or not whole."""
        known = await load_index(self._disk, self._directory, segment.header)
        if known is not None and known[0].end == segment.end and len(known[1]):
            return known[1]
        found = await _scanned(segment, file)
        await self._keep(segment, found)
        return found.index

    async def _keep(self, segment: Segment, found: Scan) -> None:
        """Write the index that was just made, so that it need not be made again."""
        header = segment.header
        writer = IndexFile(header.cluster_key, header.partition, header.first)
        with suppress(PolonaiseError):
            file = await self._disk.open(f"{self._directory}/{name(header.first, 'idx')}", create=True)
            try:
                await writer.write(file, found.index, end=found.end, last=found.last, with_registers=len(found.changed))
            finally:
                await file.close()

    async def _examine(self, segment: Segment, opened: Opened) -> None:
        """Read the whole segment, because what the index points to is not there, to learn which of the two is wrong.

        Raises `DamageFound` when the segment is; corrects the index otherwise.
        """
        found = await _scanned(segment, opened.file)
        if not opened.written:
            opened.index = found.index
            await self._keep(segment, found)


def removed(path: str, first: TransactionId, cuts: int = 0) -> DamageFound:
    """Return the damage of a segment, beginning with `first`, whose file another process removed."""
    return DamageFound(f"{path} was removed under the running node", first - 1, cuts)


async def _scanned(segment: Segment, file: File) -> Scan:
    """Return a scan of the whole segment. Raises `DamageFound` when it does not all read as it was written."""
    found = await scan(file, segment.header, beginning(segment.header, b""), segment.end)
    if found.end != segment.end:
        raise DamageFound(f"segment {name(segment.first)}: {found.bad or 'it is cut short'}", found.last)
    return found


async def _read(segment: Segment, opened: Opened, first: int, last: int, bytes_max: int, part_last: int) -> list[Batch]:
    """Return the batches that the index points to. Raises `BatchDamaged` when they are not there."""
    index = opened.index
    start, stop = _span(segment, index, first, last, bytes_max, part_last)
    if start >= stop:
        return []
    firsts, offsets = index.firsts[start:stop], index.offsets[start:stop]
    base = offsets[0]
    end = index.offsets[stop] if stop < len(index) else segment.end
    if not segment.header.data_start <= base < end <= segment.end:
        raise BatchDamaged("the index points outside of the segment")
    view = memoryview(await opened.file.read(base, end - base))
    batches: list[Batch] = []
    for position, offset in enumerate(offsets):
        batch = open_batch(view, offset - base, offset=offset, seed=segment.header.seed)
        if batch.first != firsts[position]:
            raise BatchDamaged(f"the index says {firsts[position]} where {batch.first} is")
        batches.append(batch)
    return batches


def _span(segment: Segment, index: Index, first: int, last: int, bytes_max: int, part_last: int) -> tuple[int, int]:
    """Return the positions start..stop of the batches to read: see `Reader.read`."""
    start = max(index.position(first), 0)
    stop = index.position(last + 1) if last < segment.last else index.position(segment.last) + 1
    if part_last >= 0:
        start = bisect_left(index.firsts, first)
        stop = min(stop, index.position(part_last) + 1)
    if start >= stop:
        return start, start
    full = bisect_right(index.offsets, index.offsets[start] + bytes_max) - 1
    end = index.offsets[stop] if stop < len(index) else segment.end
    if end - index.offsets[start] > bytes_max:
        stop = min(stop, max(start + 1, full))
    return start, stop
