"""The two files of a `JsonLinesTarget`: lines are appended to one, and the other says durably which of them count."""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Mapping
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import DirectoryInUse, NotFound, ViewUnavailable, ViewUnfit, invariant
from polonaise.host import DirectoryLock, Disk, File, Identity, opened_file, write_whole
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.linesmemory import NOTHING_COUNTED, CountedLines, LinesMemory, read_memory
from polonaise.player.protocol.entries import Fence
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_MEMORY: Final = ".memory"
"""What the name of the memory's file adds to that of the file of lines."""
_STEPS_BYTES_MAX: Final = 64 * 1024
"""The bytes of steps behind which the memory's file is written anew."""


class _Steps:
    """The memory's file, as it was written whole: what is read after a failed sync need not be on the disk."""

    def __init__(self, file: File, whole: bytes) -> None:
        self.file = file
        self.identity: Identity | None = None
        self.begin = self.end = len(whole)
        """Where the first step was noted, and where the next one is."""
        self.tail = (0, whole)
        """The last bytes, and where they begin: before the last step, where a hole would end."""


class LinesFile:
    """A file of lines and its memory, opened, locked and checked. After an error of any method close it, and open them
    anew: the files may hold less than it believes."""

    def __init__(
        self, disk: Disk, path: str, lock: DirectoryLock, file: File, identity: Identity, memory: LinesMemory | None
    ) -> None:
        self._disk = disk
        self._path = path
        self._lock = lock
        self._file = file
        self._identity = identity
        self.memory = memory
        """What is kept durably; None before the first fence."""
        self._steps: _Steps | None = None
        """The memory's file, once this object has written it."""

    @classmethod
    async def opened(cls, disk: Disk, path: str, *, again: bool = False) -> LinesFile:
        """Open the files, and cut what does not count. Make the file if it is missing, unless it is opened `again`.
        Raises `ViewUnavailable` while somebody else has them open, `ViewUnfit` for files that do not go together, and
        what the disk raises."""
        if not await disk.exists(path):
            # Before the lock makes the file. Nobody writes a memory without having the file open.
            memory = await _load(disk, path)
            if again or (memory is not None and (memory.counted.size or memory.noted)):
                raise _does_not_fit(path, "is gone")
        try:
            lock = await disk.lock(path)
        except DirectoryInUse as error:
            raise ViewUnavailable(
                f"{path} is in use: another process, or another target of this one, writes it. End that one, or give "
                "each a file of its own"
            ) from error
        except NotFound as error:
            raise ViewUnavailable(f"{path} can't be made, because its directory does not exist: make that") from error
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(lock.release)
            # To append: if somebody cuts the file at the wrong moment, lines come too early in it, and make no hole.
            file = await disk.open(path, append=True)
            stack.push_async_callback(file.close)
            identity = await disk.identity(path)
            if identity is None:
                raise _does_not_fit(path, "is gone")
            memory = await _load(disk, path)
            kept = await _settled(disk, file, path, memory)
            made = cls(disk, path, lock, file, identity, kept)
            if kept is not None and kept != memory:
                # At once: what somebody else writes from now on is not taken for what is left of this step.
                await made._write_whole(kept)
            stack.pop_all()
        return made

    async def keep_fence(self, fence: Fence, source: DeliverySource) -> None:
        """Keep this fence durably. Raises `ViewUnfit` as `append` does."""
        await self._check_in_place()
        memory = self.memory or LinesMemory(source, fence, NOTHING_COUNTED, {})
        await _check_end(self._file, self._path, memory.counted)
        memory = memory._replace(fence=fence)
        await self._write_whole(memory)
        self.memory = memory

    async def append(self, lines: bytes, applied: Mapping[PartitionId, TransactionId]) -> None:
        """Append whole lines, and keep durably that these partitions are applied up to these ids.

        Raises `ViewUnfit` if somebody else has changed the files, which may happen between any two of these calls: by
        their size before the lines are noted and behind them, and by the last lines. A memory that was removed or
        changed is written whole again.
        """
        memory = self.memory
        invariant(memory is not None, "lines are appended under a fence")
        assert memory is not None
        counted = memory.counted
        whole = await self._check_in_place()
        await _check_end(self._file, self._path, counted)
        if not whole:
            _log.warning("%s%s was removed or changed while in use, and is written again", self._path, _MEMORY)
        memory = memory.with_step(lines, applied)
        step = memory.step()
        steps = self._steps
        if steps is None or not whole or steps.end + len(step) > max(_STEPS_BYTES_MAX, 2 * steps.begin):
            steps = await self._write_whole(memory)
        # Before the lines: what a crash leaves of them is known by this, and what somebody else writes is left alone.
        begin = steps.end
        await steps.file.write(begin, [step], sync=True)
        steps.end += len(step)
        if lines:
            await self._file.write(counted.size, [lines], sync=True)
        memory = memory.with_step_ended()
        if (size := await self._file.size()) != memory.counted.size:
            raise _other_size(self._path, size, memory.counted.size)
        self.memory = memory
        # Not synced: if it is lost, the lines themselves say that they are there.
        ended = memory.step_ended()
        await steps.file.write(steps.end, [ended])
        steps.tail = (begin - 1, b"\n" + step + ended)

    async def _check_in_place(self) -> bool:
        """Return whether the memory's file is as it was written, by its name, its size and its end. Raises `ViewUnfit`
        if one of the paths leads to another file than the one that is open."""
        if await self._disk.identity(self._path) != self._identity:
            raise _does_not_fit(self._path, "was moved or replaced")
        if (steps := self._steps) is None:
            return True  # it is about to be written whole
        found = await self._disk.identity(self._path + _MEMORY)
        if found not in (None, steps.identity):
            raise _does_not_fit(self._path, "has another memory beside it than was written")
        begin, tail = steps.tail
        return found is not None and await steps.file.read(begin, len(tail) + 1) == tail

    async def _write_whole(self, memory: LinesMemory) -> _Steps:
        """Write the memory's file anew, without a step that is noted; return it. Its directory is synced with it."""
        if self._steps is not None:
            steps, self._steps = self._steps, None
            await steps.file.close()
        directory, name = posixpath.split(self._path + _MEMORY)
        whole = memory.whole()
        await write_whole(self._disk, directory, name, [whole])
        self._steps = steps = _Steps(await self._disk.open(self._path + _MEMORY), whole)
        steps.identity = await self._disk.identity(self._path + _MEMORY)
        return steps

    async def close(self) -> None:
        """Close both files, then unlock them: not before the last call to the disk has ended, even if it hangs."""
        await self._file.close()
        if self._steps is not None:
            await self._steps.file.close()
        self._lock.release()


async def _load(disk: Disk, path: str) -> LinesMemory | None:
    try:
        raw = await disk.load(path + _MEMORY)
    except NotFound:
        return None
    return read_memory(raw, path + _MEMORY)


async def _check_end(file: File, path: str, counted: CountedLines) -> None:
    """Raise `ViewUnfit` unless the file ends where its lines end, with those of the last step."""
    size, last_size, last_crc = counted
    last = await file.read(size - last_size, last_size + 1)  # tells the size as well, unless that is another
    if len(last) != last_size and (found := await file.size()) != size:
        raise _other_size(path, found, size)
    if crc32(last) != last_crc:
        raise _does_not_hold_last(path)


async def _check_last(file: File, path: str, counted: CountedLines) -> None:
    """Raise `ViewUnfit` unless the lines of the last step that counts are where it has written them."""
    if crc32(await file.read(counted.size - counted.last_size, counted.last_size)) != counted.last_crc:
        raise _does_not_hold_last(path)


async def _settled(disk: Disk, file: File, path: str, memory: LinesMemory | None) -> LinesMemory | None:
    """Return the memory with its last step ended or undone, by what is there of its lines; what is left is cut. Raises
    `ViewUnfit` unless the file has what the memory counts, and nothing that others have written."""
    size = await file.size()
    if memory is None:
        if size:
            raise ViewUnfit(
                f"{path} holds something, and there is no {path}{_MEMORY} that says what: give the target a file of "
                "its own, or put the memory back"
            )
        return None
    counted = memory.counted.size
    if size < counted:
        raise _other_size(path, size, counted)
    await _check_last(file, path, memory.counted)
    through = counted
    if (noted := memory.noted) is not None:
        through = noted.counted.size
        lines = await file.read(counted, through - counted)
        if through == counted or (len(lines) == through - counted and crc32(lines) == noted.counted.last_crc):
            if size > through:
                raise _other_size(path, size, through)
            # Written again: whoever has written them may have ended before they were synced, or since that failed.
            if lines:
                async with opened_file(disk, path) as in_place:
                    await in_place.write(counted, [lines], sync=True)
                # A cut just now would have left a hole before them.
                await _check_last(file, path, memory.counted)
            return memory.with_step_ended()
        if not noted.may_have_left(lines):
            raise _other_size(path, size, counted)
    if memory.noted_first and size > through:
        raise _other_size(path, size, counted)
    if size > counted:
        _log.warning("%s: the last %d bytes are of a step that was not ended, and are cut", path, size - counted)
        # Synced before the memory forgets the step.
        await file.truncate(counted)
        await file.sync()
    return memory._replace(noted=None, noted_first=True)


def _other_size(path: str, size: int, written: int) -> ViewUnfit:
    what = f"has {size:,} bytes, and {written:,} were written"
    if size < written:
        return _does_not_fit(path, what)
    return _does_not_fit(
        path, what, f"Take out what lies behind them, such as by `truncate -s {written} {path}`; or put"
    )


def _does_not_hold_last(path: str) -> ViewUnfit:
    return _does_not_fit(path, "does not hold what was written last")


def _does_not_fit(path: str, what: str, advice: str = "Put") -> ViewUnfit:
    return ViewUnfit(
        f"{path} {what}: another program has changed it. {advice} both it and {path}{_MEMORY} back from a backup of "
        "the same moment; or move both away, start this process again, and everything is delivered again"
    )
