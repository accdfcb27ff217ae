"""POSIX files: a node's behind a few threads, so that its loop waits for no disk except as `syncs` allows; tools'
block.

`OSError` is translated here. A call whose caller was cancelled still runs to its end; a file is closed only after the
last such call, so that nothing reaches another file under a descriptor used anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from polonaise.errors import (
    AccessDenied,
    Closed,
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    NotADirectory,
    NotFound,
    PolonaiseError,
)
from polonaise.host import Buffer, DirectoryLock, DiskSpace, File, Identity
from polonaise.host.filelimits import too_many_open
from polonaise.host.syncs import SyncsInLoop
from polonaise.host.threads import DiskThreads

T = TypeVar("T")

_BUFFERS_MAX: Final = os.sysconf("SC_IOV_MAX")
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_FILE_MODE: Final = 0o644

_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


def _translated(error: OSError, path: str) -> PolonaiseError:
    exhausted = too_many_open(error, repr(path))
    if exhausted is not None:
        return exhausted
    if error.errno in _NO_ROOM:
        return DiskFull(f"no space left for {path!r}: free some, then try again")
    # Like a full disk: nothing was written, and what was written before is kept.
    if error.errno == errno.EFBIG:
        return DiskFull(
            f"{path!r} can't grow so far: its file system, or the limit of this process (ulimit -f), takes no file of "
            "that length: raise the limit, or move the directory"
        )
    if error.errno == errno.ENOENT:
        return NotFound(f"no file or directory {path!r}")
    # EEXIST comes from making a directory where a file is.
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return NotADirectory(f"{path!r} is not a directory, or lies below a file: name another path")
    if error.errno in _NOT_ALLOWED:
        return AccessDenied(
            f"{path!r}: {error.strerror}: let the user of this process read and write there, or name another path"
        )
    return DiskFailed(f"{path!r}: {error.strerror or error}")


def with_own_errors(path: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except OSError as error:
        raise _translated(error, path) from error


class RealDisk:
    """The file system of this machine."""

    def __init__(self, threads: DiskThreads, in_loop: SyncsInLoop | None = None) -> None:
        """`in_loop` says which syncs the event loop may wait for; None for no sync."""
        self._threads = threads
        self._in_loop = in_loop
        self._locks: set[RealLock] = set()
        self._open: set[_RealFile] = set()

    @property
    def under_way_s(self) -> float:
        return self._threads.under_way_s

    async def _hop(self, path: str, call: Callable[[], T]) -> T:
        return await self._threads.run(lambda: with_own_errors(path, call))

    async def open(self, path: str, *, create: bool = False, append: bool = False) -> File:
        flags = os.O_RDWR | (os.O_CREAT if create else 0) | (os.O_APPEND if append else 0)
        return await self._threads.obtain(
            lambda: with_own_errors(path, lambda: _RealFile(self._threads, path, flags, self._open, self._in_loop)),
            _RealFile.abandon,
        )

    async def load(self, path: str) -> bytes:
        return await self._hop(path, lambda: Path(path).read_bytes())

    async def exists(self, path: str) -> bool:
        return await self._hop(path, lambda: os.path.exists(path))

    async def identity(self, path: str) -> Identity | None:
        return await self._hop(path, lambda: identity(path))

    async def identities(self, paths: Sequence[str]) -> list[Identity | None]:
        return await self._hop(", ".join(paths), lambda: [identity(path) for path in paths])

    async def space(self, path: str) -> DiskSpace:
        return await self._hop(path, lambda: _space(path))

    async def list(self, directory: str) -> list[str]:
        return await self._hop(directory, lambda: sorted(os.listdir(directory)))

    async def entries(self, directory: str) -> dict[str, int]:
        return await self._hop(directory, lambda: _entries(directory))

    async def make_directory(self, path: str) -> None:
        await self._hop(path, lambda: make_directories(path))

    async def rename(self, source: str, target: str) -> None:
        await self._hop(source, lambda: os.replace(source, target))

    async def remove(self, path: str) -> None:
        await self._hop(path, lambda: os.remove(path))

    async def sync_directory(self, path: str) -> None:
        await self._hop(path, lambda: sync_path(path, os.O_DIRECTORY))

    async def lock(self, path: str) -> DirectoryLock:
        return await self._threads.obtain(
            lambda: with_own_errors(path, lambda: RealLock(path, self._locks)), RealLock.release
        )

    def release(self) -> None:
        """Close every file and unlock every lock, as the end of a process does, once no call is under way or waits."""
        for file in list(self._open):
            file.abandon()
        for lock in list(self._locks):
            lock.release()


def _space(path: str) -> DiskSpace:
    status = os.statvfs(path)
    return DiskSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def _entries(directory: str) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


def names_in(directory: str) -> list[str]:
    """Return the names in a directory, sorted; raises faults of the disk."""
    return with_own_errors(directory, lambda: sorted(os.listdir(directory)))


def identity(path: str) -> Identity | None:
    """Return the identity of the file at this path, for `Disk.identity`."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def try_lock(path: str) -> RealLock:
    """Lock a file as `Disk.lock` does, without an event loop."""
    return with_own_errors(path, lambda: RealLock(path, set()))


def make_directories(path: str) -> None:
    """Make the directory and its parents. Raises `OSError`, and `DiskFailed` where none can be made."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileNotFoundError as error:  # /proc and its like: all parents are there, and nothing can be made in them
        raise DiskFailed(f"{path!r} can't be made: its file system takes no directories there") from error


def sync_path(path: str | Path, flags: int = 0) -> None:
    """Make a file, or the names in a directory, durable. Blocks, and raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RealLock:
    """An advisory lock on a file; the kernel frees it when the process dies.

    A forked child shares the open file, and would keep it locked after its parent's death. So a child closes the locks
    that it inherits as it begins; and no thread forks while another opens or closes a lock.
    """

    _held: ClassVar[set[RealLock]] = set()
    _fork_guard: ClassVar[threading.Lock] = threading.Lock()
    """Held while a lock is taken or released, and during a fork."""

    def __init__(self, path: str, registry: set[RealLock]) -> None:
        """Lock the file, made if missing. The lock is in `registry` while it is held."""
        self._registry = registry
        with self._fork_guard:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._descriptor)
                raise DirectoryInUse(
                    f"{path!r} is locked: a process has this directory open already; end that one first, or choose "
                    "another directory"
                ) from error
            except OSError:
                os.close(self._descriptor)
                raise
            self._held.add(self)
            registry.add(self)

    def fileno(self) -> int:
        """Return the descriptor, for a child process that is to hold the lock as well."""
        return self._descriptor

    def release(self) -> None:
        with self._fork_guard:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._held.discard(self)
        self._registry.discard(self)
        if descriptor >= 0:
            os.close(descriptor)

    @classmethod
    def close_inherited(cls) -> None:
        """Close the parent's locks in a child, which does not free them."""
        for lock in list(cls._held):
            lock._close()
        cls._fork_guard.release()


os.register_at_fork(
    before=RealLock._fork_guard.acquire,
    after_in_parent=RealLock._fork_guard.release,
    after_in_child=RealLock.close_inherited,
)


class _RealFile:
    """A descriptor with the count of its users, the last of whom closes it: twice would close another file's."""

    def __init__(
        self, threads: DiskThreads, path: str, flags: int, registry: set[_RealFile], in_loop: SyncsInLoop | None
    ) -> None:
        self._threads = threads
        self._in_loop = in_loop
        self._descriptor = os.open(path, flags, _FILE_MODE)
        self._appends = bool(flags & os.O_APPEND)
        self._path = path
        self._registry = registry
        registry.add(self)
        self._guard = threading.Lock()
        self._users = 1
        self._closing = False
        self._closed: Future[None] = Future()

    async def read(self, offset: int, length: int) -> bytes:
        return await self._hop(lambda descriptor: _read(descriptor, offset, length))

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write the buffers, in the loop itself where that is allowed and quicker."""

        def write(descriptor: int) -> None:
            _write(descriptor, None if self._appends else offset, buffers)
            if sync:
                _sync_data(descriptor)

        if sync and self._in_loop is not None and self._in_loop.allows(self, buffers) and self._threads.idle:
            self._enter()
            try:
                self._use(write)
            finally:
                self._in_loop.waited()
            return
        await self._hop(write)

    async def sync(self) -> None:
        await self._hop(_sync_data)

    async def truncate(self, length: int) -> None:
        await self._hop(lambda descriptor: os.ftruncate(descriptor, length))

    async def size(self) -> int:
        return await self._hop(lambda descriptor: os.fstat(descriptor).st_size)

    async def close(self) -> None:
        with self._guard:
            first, self._closing = not self._closing, True
        if first:
            await self._threads.run(self._leave)
        if not self._closed.done():  # calls are under way, and the last of them closes the descriptor
            await asyncio.shield(asyncio.wrap_future(self._closed))

    def abandon(self) -> None:
        with self._guard:
            self._closing, self._users = True, 0
        self._close()

    async def _hop(self, call: Callable[[int], T]) -> T:
        self._enter()
        return await self._threads.run(lambda: self._use(call))

    def _enter(self) -> None:
        """Count one more user. Raises `Closed` once the file is being closed."""
        with self._guard:
            if self._closing:
                raise Closed(f"{self._path!r} was closed")
            self._users += 1

    def _use(self, call: Callable[[int], T]) -> T:
        try:
            return call(self._descriptor)
        except OSError as error:
            raise _translated(error, self._path) from error
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            last = self._users == 0
        if last:
            self._close()

    def _close(self) -> None:
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
        self._registry.discard(self)
        if descriptor >= 0:
            # Even if this fails the descriptor is gone, and what had to be durable was synced before.
            with contextlib.suppress(OSError):
                os.close(descriptor)
            self._closed.set_result(None)


class ReadOnlyFile:
    """A file that a tool only reads, without a thread; another process may be writing it. A context manager."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = with_own_errors(path, lambda: os.open(path, os.O_RDONLY))

    def __enter__(self) -> ReadOnlyFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        return with_own_errors(self._path, lambda: os.fstat(self._descriptor).st_size)

    def read_now(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        return with_own_errors(self._path, lambda: _read(self._descriptor, offset, length))

    async def read(self, offset: int, length: int) -> bytes:
        """Read as `read_now`, for code that awaits the reads of any file."""
        return self.read_now(offset, length)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    # A damaged length must not make the system allocate memory for bytes that the file does not have.
    length = min(length, os.fstat(descriptor).st_size - offset)
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(descriptor: int, offset: int | None, buffers: Sequence[Buffer]) -> None:
    """Write all of the buffers, however little the system takes at a time; without an offset, where O_APPEND says."""
    views = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    first = 0
    while first < len(views):
        some = views[first : first + _BUFFERS_MAX]
        if offset is None:
            written = os.writev(descriptor, some)  # not `pwritev`, which heeds O_APPEND on Linux alone
        else:
            written = os.pwritev(descriptor, some, offset)
            offset += written
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]
