"""The disk port: a process's way to the disk of its machine.

A call takes a random time and acts at the end of it, so that overlapping calls act in any order; `identity`,
`identities`, `entries` and `space` act at once. If the process is killed meanwhile, the call happens, or does not, or
happens in part; a sync that has begun goes on to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from polonaise.errors import Closed, DirectoryInUse, DiskFailed, NotFound, PolonaiseError
from polonaise.host import Buffer, DirectoryLock, DiskSpace, File, Identity
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.disk import SimulatedDisk, parts_of
from polonaise_proving.stages.simulated.diskimages import DirectoryImage, FileImage
from polonaise_proving.stages.simulated.loop import Future
from polonaise_proving.stages.simulated.process import Process

T = TypeVar("T")

_UNLIMITED_BYTES: Final = 2**40
"""The size that a disk without a limit says it has."""
_UNDER_WAY: Final = object()
"""Returned by the `act` of a call that goes on, such as a sync: the call's future is resolved later."""


class _Call(NamedTuple):
    """A call under way: it has been made, and has not acted yet."""

    act: Callable[[], Any]
    partly: Callable[[], None] | None
    future: Future
    give_back: Callable[[Any], None] | None


class DiskPort:
    """A process's way to its machine's disk: the port `host.Disk`."""

    def __init__(self, process: Process, disk: SimulatedDisk) -> None:
        self.process = process
        self.disk = disk
        self._loop = process.environment.loop
        self._under_way: dict[int, _Call] = {}
        self._calls = 0
        self._begun_s: dict[Future, float] = {}
        """When calls were made, in virtual seconds, in that order: all that have not returned, and some that have."""
        disk.users.add(process)
        process.at_end.append(self._break_off)

    def submit(
        self,
        act: Callable[[Future], Any],
        partly: Callable[[], None] | None = None,
        give_back: Callable[[Any], None] | None = None,
    ) -> Future:
        """Start a call and return the future of its result.

        `act` runs after a random time. If the process is killed before that, `act` still runs, or `partly` does, which
        does only a part of the work, or neither. `act` also runs if the task that waits for the call is cancelled: then
        `give_back` gets the result.
        """
        self.process.call()
        future = self._loop.create_future()
        self._forget_returned()
        self._begun_s[future] = self._loop.now
        self._calls += 1
        self._under_way[self._calls] = _Call(lambda: act(future), partly, future, give_back)
        self._loop.at(self._loop.now + self.disk.delay_s(), self._act, self._calls)
        return future

    @property
    def under_way_s(self) -> float:
        """For how many seconds the oldest call has not returned; 0 if none is under way."""
        self._forget_returned()
        for begun_s in self._begun_s.values():
            return self._loop.now - begun_s
        return 0.0

    def _forget_returned(self) -> None:
        """Forget the calls before the oldest one that has not returned."""
        while self._begun_s and (oldest := next(iter(self._begun_s))).done():
            del self._begun_s[oldest]

    async def obtain(self, make: Callable[[], T], give_back: Callable[[T], None]) -> T:
        """Call `make` for what must be given back, such as a lock, and give it back if the caller is cancelled."""
        future = self.submit(lambda _: make(), give_back=give_back)
        try:
            made: T = await future
        except BaseException:
            # Cancelled between the future's result and the caller's turn: `submit` has handed it over, and the caller
            # will never have it.
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            raise
        return made

    def sync(self, future: Future, settle: Callable[[bool], None], *, fresh: bool = False) -> object:
        """Begin a sync; at its end, call `settle` with whether it succeeded, even if the process has died.

        If the power goes before its end, `settle` is not called: the loss of power decides what is left. `fresh` says
        that the sync covers a write into space that held nothing yet (see `SimulatedDisk.fail_appends`).
        """
        ends_at = self._loop.now + self.disk.delay_s(sync=True)
        self._loop.at(ends_at, self._synced, self.disk.epoch, future, settle, fresh)
        return _UNDER_WAY

    def _act(self, number: int) -> None:
        call = self._under_way.pop(number, None)
        if call is None:
            return
        future = call.future
        try:
            result = call.act()
        except PolonaiseError as error:
            if not future.done():
                future.set_exception(error)
        else:
            if result is _UNDER_WAY:
                return
            if not future.done():
                future.set_result(result)
            elif call.give_back is not None:
                call.give_back(result)

    def _synced(self, epoch: int, future: Future, settle: Callable[[bool], None], fresh: bool) -> None:
        disk = self.disk
        if epoch != disk.epoch:  # the power went meanwhile, and has decided what is left of the changes
            return
        failed = disk.fails("sync") or (fresh and disk.fails("append"))
        disk.trace.add(Event.SYNC, disk.subject, int(failed))
        settle(not failed)
        if future.done() or self.process.dead:
            return
        if failed:
            future.set_exception(DiskFailed("sync failed: what was not synced before may be lost"))
        else:
            future.set_result(None)

    def _break_off(self, powerless: bool) -> None:
        """Let each call under way of the ended process happen, or not, or in part; none after a power loss."""
        self.disk.users.remove(self.process)
        calls, self._under_way = self._under_way, {}
        for call in () if powerless else calls.values():
            fate = self.disk.random.random()
            try:
                if fate < 0.4:
                    call.act()
                elif fate < 0.7 and call.partly is not None:
                    call.partly()
            except PolonaiseError:
                continue  # the process that would get the error is dead
        self.disk.free_locks(self.process)  # last: a call that happened just now may have taken one

    # -------------------------------------------------------------- polonaise.host.Disk

    async def open(self, path: str, *, create: bool = False, append: bool = False) -> File:
        return await self.obtain(lambda: self._open(path, create, append), OpenFile.let_go)

    def _open(self, path: str, create: bool, append: bool) -> OpenFile:
        return OpenFile(self, self.disk.create(path) if create else self.disk.file(path), path, append=append)

    async def load(self, path: str) -> bytes:
        file = await self.open(path)
        try:
            return await file.read(0, await file.size())
        finally:
            await file.close()

    async def exists(self, path: str) -> bool:
        return bool(await self.submit(lambda _: self.disk.find(path) is not None))

    async def identity(self, path: str) -> Identity | None:
        """Return the identity of what is at `path`, at once; None if nothing is there."""
        # Without a call: a draw for its delay would change what all later calls draw.
        self.process.check_alive()
        node = self.disk.find(path)
        return None if node is None else (0, id(node))

    async def identities(self, paths: Sequence[str]) -> list[Identity | None]:
        return [await self.identity(path) for path in paths]

    async def space(self, path: str) -> DiskSpace:
        """Return the space of the disk, at once: a draw for a delay would change what all later calls draw."""
        self.process.check_alive()
        if self.disk.find(path) is None:
            raise NotFound(f"no file or directory {path!r}")
        used = self.disk.used_bytes()
        total = max(self.disk.capacity_bytes or _UNLIMITED_BYTES, used)
        return DiskSpace(total - used, total)

    async def list(self, directory: str) -> list[str]:
        names: list[str] = await self.submit(lambda _: sorted(self.disk.directory(directory).names))
        return names

    async def entries(self, directory: str) -> dict[str, int]:
        """Return the names in the directory with their numbers, at once, as `identity` does."""
        self.process.check_alive()
        return {name: id(node) for name, node in self.disk.directory(directory).names.items()}

    async def make_directory(self, path: str) -> None:
        await self.submit(lambda _: self._make_directory(path))

    def _make_directory(self, path: str) -> None:
        parts = parts_of(path)
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            if self.disk.find(part) is None:
                directory, name = self.disk.parent(part)
                self.disk.change_names((directory, name, DirectoryImage()))
        self.disk.directory(path)

    async def rename(self, source: str, target: str) -> None:
        await self.submit(lambda _: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        node = self.disk.find(source)
        if node is None:
            raise NotFound(f"no file {source!r}")
        from_directory, from_name = self.disk.parent(source)
        to_directory, to_name = self.disk.parent(target)
        if parts_of(source) != parts_of(target):
            self.disk.change_names((from_directory, from_name, None), (to_directory, to_name, node))

    async def remove(self, path: str) -> None:
        await self.submit(lambda _: self._remove(path))

    def _remove(self, path: str) -> None:
        self.disk.file(path)
        directory, name = self.disk.parent(path)
        self.disk.change_names((directory, name, None))

    async def sync_directory(self, path: str) -> None:
        await self.submit(lambda future: self._sync_directory(path, future))

    def _sync_directory(self, path: str, future: Future) -> object:
        changes = self.disk.unsynced_names(self.disk.directory(path))
        return self.sync(future, lambda done: self.disk.settle_names(changes, done=done))

    async def lock(self, path: str) -> DirectoryLock:
        return await self.obtain(lambda: self._lock(path), _Lock.release)

    def _lock(self, path: str) -> _Lock:
        file = self.disk.create(path)
        if file in self.disk.locks:
            raise DirectoryInUse(f"{path!r} is locked by {self.disk.locks[file].name}")
        self.disk.locks[file] = self.process
        return _Lock(self, file, path)


class _Lock:
    """A lock on a file, held by a process."""

    def __init__(self, port: DiskPort, file: FileImage, path: str) -> None:
        self._port = port
        self._file = file
        port.process.open_files[self] = path

    def release(self) -> None:
        self._port.process.open_files.pop(self, None)
        if self._port.disk.locks.get(self._file) is self._port.process:
            del self._port.disk.locks[self._file]


class OpenFile:
    """A file that a process has open: `host.File`."""

    def __init__(self, port: DiskPort, file: FileImage, path: str, *, append: bool = False) -> None:
        self._port = port
        self._disk = port.disk
        self._file = file
        self._append = append
        self._path = path
        self._closed = False
        port.process.open_files[self] = path

    async def read(self, offset: int, length: int) -> bytes:
        self._check_open()
        data: bytes = await self._port.submit(lambda _: self._read(offset, length))
        return data

    def _read(self, offset: int, length: int) -> bytes:
        if self._disk.fails("read"):
            raise DiskFailed(f"read of {self._path!r} failed")
        data = bytes(self._file.cache[offset : offset + length])
        self._disk.trace.add(Event.READ, self._disk.subject, offset, data)
        return data

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        self._check_open()
        data = b"".join(buffers)
        await self._port.submit(
            lambda future: self._write(offset, data, future if sync else None),
            lambda: self._disk.write_part(self._file, self._place(offset), data),
        )

    def _place(self, offset: int) -> int:
        """Return where a write with this offset goes, if it acts now."""
        return len(self._file.cache) if self._append else offset

    def _write(self, offset: int, data: bytes, synced: Future | None) -> object:
        offset = self._place(offset)
        fresh = bool(data) and not self._file.cache[offset : offset + len(data)].strip(b"\0")
        if data:
            self._disk.write(self._file, offset, data)
        return None if synced is None else self._sync(synced, fresh=fresh)

    async def sync(self) -> None:
        self._check_open()
        await self._port.submit(self._sync)

    def _sync(self, future: Future, *, fresh: bool = False) -> object:
        file, last = self._file, self._file.last
        return self._port.sync(future, lambda done: file.end_sync(last, self._disk.random, done=done), fresh=fresh)

    async def truncate(self, length: int) -> None:
        self._check_open()
        await self._port.submit(lambda _: self._truncate(length))

    def _truncate(self, length: int) -> None:
        if self._disk.fails("write"):
            raise DiskFailed(f"truncate of {self._path!r} failed")
        self._file.truncate(length)

    async def size(self) -> int:
        self._check_open()
        return int(await self._port.submit(lambda _: len(self._file.cache)))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.let_go()  # at once: the caller may be cancelled while it waits, and the file is closed all the same
            await self._port.submit(lambda _: None)

    def let_go(self) -> None:
        """Take the file off the list of those that the process has open."""
        self._port.process.open_files.pop(self, None)

    def _check_open(self) -> None:
        self._port.process.check_alive()
        if self._closed:
            raise Closed(f"{self._path!r} was closed")
