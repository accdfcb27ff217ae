"""A disk with a bound on the files that are open at a time, however many are in use one after the other.

The file used longest ago is closed first, and opened again when it is needed. That forgets nothing: a log syncs all it
writes before anybody is told of it, and what a failed sync was to cover is cut before anything else is written.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from polonaise.errors import Closed, NotFound
from polonaise.host import Buffer, Disk, File, Identity
from polonaise.host.unawaited import retrieve

T = TypeVar("T")


class SharedSync:
    """Shares syncs: all callers that come while one is under way wait for the next one, which begins after that."""

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync
        self._running: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a sync is under way or waits to begin."""
        return self._next is not None or (self._running is not None and not self._running.done())

    async def __call__(self) -> None:
        """Return once a sync has ended that began after this call. Raises, to each caller, what the sync raises."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(retrieve)  # it goes on when all its callers are cancelled, and may fail then
        await asyncio.shield(self._next)  # others wait for the same one: a cancelled caller must not end it

    async def _after(self, before: asyncio.Future[None] | None) -> None:
        """Sync once the sync `before` has ended. Whoever calls from then on waits for another one."""
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await self._sync()


class OpenFiles:
    """A disk that closes unused files when too many are open; a file to open waits while all of these are in use."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._open: OrderedDict[_KeptFile, None] = OrderedDict()
        """The open files, the one that was used last at the end."""
        self._opening = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._syncs: dict[str, SharedSync] = {}
        # All else is the disk's own.
        self.load = disk.load
        self.exists = disk.exists
        self.identity = disk.identity
        self.identities = disk.identities
        self.space = disk.space
        self.list = disk.list
        self.entries = disk.entries
        self.make_directory = disk.make_directory
        self.rename = disk.rename
        self.remove = disk.remove
        self.lock = disk.lock

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open)

    async def open(self, path: str, *, create: bool = False, append: bool = False) -> File:
        """Open the file; close others, not in use, if too many are open. See `Disk.open`."""
        file = await self._disk.open(path, create=create, append=append)
        try:
            identity = await self._disk.identity(path)
        except BaseException:  # also when cancelled: only this call can close the file
            await file.close()
            raise
        kept = _KeptFile(self, path, file, identity, append=append)
        self._open[kept] = None
        try:
            await self._make_room(kept)
        except BaseException:  # also when cancelled: only this call can close the file
            await kept.close()
            raise
        return kept

    @property
    def under_way_s(self) -> float:
        return self._disk.under_way_s

    async def sync_directory(self, path: str) -> None:
        """Sync the directory, in one sync with all callers that ask for it at the same time."""
        shared = self._syncs.get(path)
        if shared is None:
            shared = self._syncs[path] = SharedSync(lambda: self._disk.sync_directory(path))
        await shared()
        if not shared.busy:
            self._syncs.pop(path, None)

    # ------------------------------------------------------------------ for the files

    async def reopened(self, kept: _KeptFile) -> File:
        """Open the file again, once fewer than the allowed number are in use. Raises `NotFound` if it was replaced."""
        while self._opening + sum(1 for other in self._open if other.users) >= self._files_max:
            await self._wait_for_free_file()
        self._opening += 1
        try:
            file = await self._disk.open(kept.path, append=kept.append)
            try:
                if await self._disk.identity(kept.path) != kept.identity:
                    raise NotFound(f"{kept.path!r} was replaced while it was not open")
            except BaseException:  # also when cancelled: only this call can close the file
                await file.close()
                raise
        finally:
            self._opening -= 1
        kept.file = file
        self._open[kept] = None
        await self._make_room(kept)
        return file

    def used(self, kept: _KeptFile) -> None:
        """Note that the file was used just now."""
        if kept in self._open:
            self._open.move_to_end(kept)

    async def _wait_for_free_file(self) -> None:
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            await free
        except BaseException:  # cancelled, perhaps when its turn had come: pass the turn on
            self.freed()
            raise

    def freed(self) -> None:
        """Let the next waiting call, if there is one, try to open its file."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return

    async def forget(self, kept: _KeptFile) -> None:
        self._open.pop(kept, None)
        file, kept.file = kept.file, None
        if file is not None:
            await file.close()

    async def _make_room(self, spared: _KeptFile) -> None:
        """Close files until few enough are open: those used longest ago, except `spared` and those in use."""
        while len(self._open) > self._files_max:
            unused = next((kept for kept in self._open if not kept.users and kept is not spared), None)
            if unused is None:
                return
            await self.forget(unused)


class _KeptFile:
    """A file that is open as far as its users can tell, and closed when other files need its place."""

    def __init__(self, files: OpenFiles, path: str, file: File, identity: Identity | None, *, append: bool) -> None:
        self._files = files
        self._closed = False
        self._opening = asyncio.Lock()
        self.path = path
        self.append = append
        self.identity = identity
        """What the file's name led to when it was opened first."""
        self.file: File | None = file
        self.users = 0

    async def read(self, offset: int, length: int) -> bytes:
        return await self._use(lambda file: file.read(offset, length))

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        await self._use(lambda file: file.write(offset, buffers, sync=sync))

    async def sync(self) -> None:
        await self._use(lambda file: file.sync())

    async def truncate(self, length: int) -> None:
        await self._use(lambda file: file.truncate(length))

    async def size(self) -> int:
        return await self._use(lambda file: file.size())

    async def close(self) -> None:
        """Close the file for good, also when it is just being opened again."""
        self._closed = True
        await self._files.forget(self)

    async def _use(self, call: Callable[[File], Awaitable[T]]) -> T:
        """Run `call` on the open file, which is not closed for the sake of other files until the call ends."""
        self.users += 1
        try:
            file = self.file
            if file is None or self._closed:
                file = await self._reopen()
            self._files.used(self)
            return await call(file)
        finally:
            self.users -= 1
            self._files.freed()

    async def _reopen(self) -> File:
        async with self._opening:
            try:
                if self.file is None and not self._closed:
                    await self._files.reopened(self)
            finally:  # also when cancelled: a `close` that came meanwhile found no open file to close
                if self._closed:
                    await self._files.forget(self)
            if self.file is None:
                raise Closed(f"{self.path!r} was closed")
            return self.file
