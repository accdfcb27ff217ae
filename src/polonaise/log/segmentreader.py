"""Read a log through each segment's index, with the CRCs of frames and batches checked and open files shared."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from polonaise.errors import BatchDamaged, NotFound, PolonaiseError, SegmentDamaged, UnsupportedFormat
from polonaise.host import Disk, File, opened_file
from polonaise.log.batch import Batch
from polonaise.log.segment import (
    HEADER_BYTES,
    DamageFound,
    Index,
    IndexFile,
    Scan,
    Segment,
    SegmentHeader,
    name,
    open_batch,
    read_preamble,
    scan,
)
from polonaise.log.tail import Opened, empty_scan, load_index
from polonaise.terms import TransactionId


class SegmentCache:
    """The open segments of all partitions of a node. At most `capacity` of those that are not in use are kept."""

    def __init__(self, capacity: int = 32) -> None:
        self._capacity = capacity
        self._opened: dict[str, Opened] = {}
        self._idle: OrderedDict[Opened, str] = OrderedDict()
        """The segments that are not in use, each with its path; the one that was used last is at the end."""

    def __len__(self) -> int:
        """How many open segments the cache has, in use or not."""
        return len(self._opened)

    def take(self, path: str) -> Opened | None:
        """Return the segment if it is open, to be given back with `release`; None otherwise."""
        opened = self._opened.get(path)
        if opened is not None:
            opened.users += 1
            self._idle.pop(opened, None)
        return opened

    def put(self, path: str, opened: Opened) -> None:
        self._opened[path] = opened
        opened.path = path

    async def release(self, opened: Opened) -> None:
        """Give back a segment. It stays open, unless the cache has forgotten it and this was its last user."""
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
        """Forget these segments, whose files are changed or closed for good; files in use, by their last user."""
        async with AsyncExitStack() as closing:  # one that fails to close, or a cancelled caller, leaves none open
            for path in paths:
                opened = self._opened.pop(path, None)
                if opened is not None:
                    opened.path = None
                    if self._idle.pop(opened, None) is not None:
                        closing.push_async_callback(opened.file.close)

    async def give_up(self, opened: Opened) -> None:
        """Give back a segment and forget it; its last user closes its file."""
        if opened.path is not None:
            del self._opened[opened.path]
            opened.path = None
        await self.release(opened)


class Reader:
    """Reads the segments of one partition."""

    def __init__(self, disk: Disk, directory: str, cache: SegmentCache) -> None:
        self._disk = disk
        self._directory = directory
        self._cache = cache

    def path(self, segment: Segment) -> str:
        return f"{self._directory}/{name(segment.first)}"

    async def read(
        self, segment: Segment, first: TransactionId, last: TransactionId, bytes_max: int, part_last: TransactionId = -1
    ) -> list[Batch]:
        """Return the segment's batches from the one with `first` on, as `PartitionLog.read`. Raises `DamageFound`."""
        async with self._in_use(segment) as opened:
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

    async def check_beginning(self, segment: Segment) -> int:
        """Verify the header and the preamble of the segment, and return their size in bytes. Raises `DamageFound`."""
        async with self._in_use(segment) as opened:
            header = segment.header
            if await self._disk.identity(self.path(segment)) is None:
                raise removed(self.path(segment), segment.first)
            try:
                header_read = SegmentHeader.decode(await opened.file.read(0, HEADER_BYTES))
                await read_preamble(opened.file, header)
            except SegmentDamaged as error:
                raise DamageFound(f"segment {name(segment.first)}: {error.text}", segment.first - 1) from error
            if header_read != header:
                raise DamageFound(f"the header of segment {name(segment.first)} was changed", segment.first - 1)
            return header.data_start

    async def fits(self, segment: Segment) -> bool:
        """Whether the file of the segment's name now begins and ends as the segment does. It is read from now on."""
        path = self.path(segment)
        await self._cache.drop([path])
        try:
            async with opened_file(self._disk, path) as file:
                header = SegmentHeader.decode(await file.read(0, HEADER_BYTES))
                return header == segment.header and await file.size() == segment.end
        except (NotFound, SegmentDamaged, UnsupportedFormat):
            return False

    async def index(self, segment: Segment) -> Index:
        """Return the segment's index: where its batches lie, and when they were committed."""
        async with self._in_use(segment) as opened:
            return opened.index

    @asynccontextmanager
    async def _in_use(self, segment: Segment) -> AsyncIterator[Opened]:
        try:
            opened = self._cache.take(self.path(segment)) or await self._open(segment)
            try:
                yield opened
            finally:
                await self._cache.release(opened)
        except NotFound as error:
            raise removed(self.path(segment), segment.first) from error

    async def _open(self, segment: Segment) -> Opened:
        path = self.path(segment)
        file = await self._disk.open(path)
        try:
            opened = Opened(file, await self._index_of(segment, file))
        except BaseException:  # also when cancelled: only this call can close the file
            await file.close()
            raise
        # Another read may have opened the same segment meanwhile: one of the two files is kept.
        opened_by_other = self._cache.take(path)
        if opened_by_other is None:
            self._cache.put(path, opened)
            return opened
        await file.close()
        return opened_by_other

    async def _index_of(self, segment: Segment, file: File) -> Index:
        """Return the index of a sealed segment; make it from the segment unless a whole index file covers all of it."""
        loaded = await load_index(self._disk, self._directory, segment.header)
        if loaded is not None:
            checkpoint, index = loaded
            if checkpoint.end == segment.end and len(index):
                return index
        scanned = await _scanned(segment, file)
        await self._write_index(segment, scanned)
        return scanned.index

    async def _write_index(self, segment: Segment, scanned: Scan) -> None:
        """Write the index that was just made, so that it need not be made again. A failure harms nothing."""
        header = segment.header
        writer = IndexFile(header.identity)
        with suppress(PolonaiseError):
            async with opened_file(self._disk, f"{self._directory}/{name(header.first, 'idx')}", create=True) as file:
                await writer.write(
                    file, scanned.index, end=scanned.end, last=scanned.last, with_registers=len(scanned.changed)
                )

    async def _examine(self, segment: Segment, opened: Opened) -> None:
        """Read the whole segment, as no batch was where the index says. Raises `DamageFound` if it is wrong."""
        scanned = await _scanned(segment, opened.file)
        if not opened.written:
            opened.index = scanned.index
            await self._write_index(segment, scanned)


def removed(path: str, first: TransactionId, cuts: int = 0) -> DamageFound:
    """Return the error for a segment whose file somebody else removed or replaced; `first` is its first id."""
    return DamageFound(f"{path} was removed or replaced under the running node", first - 1, cuts)


async def _scanned(segment: Segment, file: File) -> Scan:
    """Return a scan of the whole segment. Raises `DamageFound` when it does not all read as it was written."""
    scanned = await scan(file, segment.header, empty_scan(segment.header, b""), segment.end)
    if scanned.end != segment.end:
        raise DamageFound(f"segment {name(segment.first)}: {scanned.bad or 'its end is missing'}", scanned.last)
    return scanned


async def _read(segment: Segment, opened: Opened, first: int, last: int, bytes_max: int, part_last: int) -> list[Batch]:
    """Return the batches for `Reader.read`. Raises `BatchDamaged` when they are not where the index says."""
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
            raise BatchDamaged(f"the index names batch {firsts[position]} where batch {batch.first} is")
        batches.append(batch)
    return batches


def _span(segment: Segment, index: Index, first: int, last: int, bytes_max: int, part_last: int) -> tuple[int, int]:
    """Return where in the index the batches for `Reader.read` begin, and the position after the last one."""
    # Up to the segment's last id and not to the end of the index: the writer's own may have grown meanwhile.
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
