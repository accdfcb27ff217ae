"""The two files of a `JsonLinesTarget`: lines are appended to one, and the other says durably which of them count."""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Mapping
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import DirectoryInUse, NotFound, ViewUnavailable, ViewUnfit, invariant
from polonaise.host import DirectoryLock, Disk, File, Identity
from polonaise.host.wholefiles import write_whole
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.linesmemory import NOTHING_COUNTED, LinesMemory, read_memory
from polonaise.player.protocol.entries import Fence
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_MEMORY: Final = ".memory"
"""What the name of the memory's file has behind that of the file of lines."""
_STEPS_BYTES_MAX: Final = 64 * 1024
"""The bytes of steps behind which the memory's file is written anew."""


class LinesFile:
    """A file of lines and its memory, opened, locked and checked.

    After an error of any method the files may hold less than this object believes: close it, and open them anew.
    """

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
        self._steps: File | None = None
        """The memory's file, if steps may be written to it: none before this object has written it whole.

        What is read from it after a sync that has failed need not be on the disk.
        """
        self._steps_end = self._steps_begin = 0
        self._steps_identity: Identity | None = None

    @classmethod
    async def opened(cls, disk: Disk, path: str, *, again: bool = False) -> LinesFile:
        """Open the files, and cut what does not count. Make the file if it is missing, unless it is opened `again`.

        Raises `ViewUnavailable` while somebody else has them open, `ViewUnfit` for files that do not go together, and
        what the disk raises.
        """
        if not await disk.exists(path):
            # Before the lock makes the file. Nobody writes a memory without having the file open.
            memory = await _load(disk, path)
            if again or (memory is not None and memory.counted.size):
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
            file = await disk.open(path)
            stack.push_async_callback(file.close)
            identity = await disk.identity(path)
            if identity is None:
                raise _does_not_fit(path, "is gone")
            memory = await _load(disk, path)
            await _check(file, path, memory)
            stack.pop_all()
        return cls(disk, path, lock, file, identity, memory)

    async def keep_fence(self, fence: Fence, source: DeliverySource) -> None:
        """Keep this fence durably. Raises `ViewUnfit` as `append` does."""
        await self._check_in_place()
        if self.memory is None:
            await self._write_whole(LinesMemory(source, fence, NOTHING_COUNTED, {}))
        else:
            await self._write_whole(self.memory._replace(fence=fence))

    async def append(self, lines: bytes, applied: Mapping[PartitionId, TransactionId]) -> None:
        """Append whole lines, and keep durably that these partitions are applied up to these ids.

        Raises `ViewUnfit` if somebody else has changed the files: what is written now might be lost with them. A memory
        that was removed or cut is written whole again, because this object knows what was in it.
        """
        memory = self.memory
        invariant(memory is not None, "lines are appended under a fence")
        assert memory is not None
        counted = memory.counted
        whole = await self._check_in_place()
        if (size := await self._file.size()) != counted.size:
            raise _does_not_fit(self._path, f"has {size:,} bytes, and {counted.size:,} were written")
        if not whole:
            _log.warning("%s%s was removed or cut while in use, and is written again", self._path, _MEMORY)
            await self._write_whole(memory)
        if lines:
            await self._file.write(counted.size, [lines], sync=True)
        memory = memory._replace(counted=counted.followed_by(lines), applied={**memory.applied, **applied})
        step = memory.step(applied)
        if self._steps is None or self._steps_end + len(step) > max(_STEPS_BYTES_MAX, 2 * self._steps_begin):
            await self._write_whole(memory)
            return
        await self._steps.write(self._steps_end, [step], sync=True)
        self._steps_end += len(step)
        self.memory = memory

    async def _check_in_place(self) -> bool:
        """Return whether the memory's file is as it was written, as far as its name and its size tell.

        Raises `ViewUnfit` if one of the paths leads to another file than the one that is open.
        """
        if await self._disk.identity(self._path) != self._identity:
            raise _does_not_fit(self._path, "was moved or replaced")
        if self._steps is None:
            return True  # it is about to be written whole
        found = await self._disk.identity(self._path + _MEMORY)
        if found not in (None, self._steps_identity):
            raise _does_not_fit(self._path, "has another memory beside it than was written")
        return found is not None and await self._steps.size() == self._steps_end

    async def _write_whole(self, memory: LinesMemory) -> None:
        """Write the memory's file anew. Its directory is synced with it, and so the name of the file of lines."""
        if self._steps is not None:
            steps, self._steps = self._steps, None
            await steps.close()
        directory, name = posixpath.split(self._path + _MEMORY)
        whole = memory.whole()
        await write_whole(self._disk, directory, name, [whole])
        self._steps = await self._disk.open(self._path + _MEMORY)
        self._steps_identity = await self._disk.identity(self._path + _MEMORY)
        self._steps_begin = self._steps_end = len(whole)
        self.memory = memory

    async def close(self) -> None:
        """Close both files, then unlock them: not before the last call to the disk has ended, even if it hangs."""
        for file in (self._file, self._steps):
            if file is not None:
                await file.close()
        self._lock.release()


async def _load(disk: Disk, path: str) -> LinesMemory | None:
    try:
        raw = await disk.load(path + _MEMORY)
    except NotFound:
        return None
    return read_memory(raw, path + _MEMORY)


async def _check(file: File, path: str, memory: LinesMemory | None) -> None:
    """Raise `ViewUnfit` unless the file has what the memory counts, and cut it there."""
    size = await file.size()
    if memory is None:
        if size:
            raise ViewUnfit(
                f"{path} holds something, and there is no {path}{_MEMORY} that says what: give the target a file of "
                "its own, or put the memory back"
            )
        return
    counted, last_size, last_crc = memory.counted
    if size < counted:
        raise _does_not_fit(path, f"has {size:,} bytes, and {counted:,} were written")
    if crc32(await file.read(counted - last_size, last_size)) != last_crc:
        raise _does_not_fit(path, "does not hold what was written last")
    if size > counted:
        _log.warning("%s: the last %d bytes are of a step that was not ended, and are cut", path, size - counted)
        # Synced with the next lines: until then, these bytes do not count either way.
        await file.truncate(counted)


def _does_not_fit(path: str, what: str) -> ViewUnfit:
    return ViewUnfit(
        f"{path} {what}: another program has changed it. Put both it and {path}{_MEMORY} back from a backup of the "
        "same moment; or move both away, start this process again, and everything is delivered again"
    )
