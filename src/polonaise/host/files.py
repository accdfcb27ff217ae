"""POSIX files: a node's behind a few threads, so that its loop waits for no disk except as `SyncsInLoop` allows; tools'
block.

Every append makes the trip to a thread: a job goes through one queue, and its outcome comes back with one call into the
loop. An executor's futures, their locks and their chaining to the loop's cost several times as much. The loop of a
storage node, which does little else than sync for others, may wait for a short sync itself, because the trip would take
longer; while it waits, it hears nobody.

`OSError` is translated here. A call whose caller was cancelled still runs to its end; a file is closed only after the
last such call, so that nothing reaches another file under a descriptor used anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import queue
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from polonaise.errors import (
    AccessDenied,
    Closed,
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    NotADirectory,
    NotFound,
    PolonaiseError,
    TooManyOpenFiles,
)
from polonaise.host import Buffer, DirectoryLock, DiskSpace, File, Identity


def too_many_open(error: OSError, what: str) -> TooManyOpenFiles | None:
    """Return the fault if the system has no descriptor left for `what`; None for any other error."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return TooManyOpenFiles(
            f"{what}: this process has {limit} files and sockets open, as many as it may: raise its limit of open "
            "files (ulimit -n, LimitNOFILE of systemd)"
        )
    if error.errno == errno.ENFILE:
        return TooManyOpenFiles(f"{what}: this machine has as many files open as it may: raise fs.file-max")
    return None


def check_room(count: int, what: str) -> None:
    """Raise `TooManyOpenFiles` unless the system gives this process `count` files or sockets more."""
    descriptors: list[int] = []
    try:
        for _ in range(count):
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        exhausted = too_many_open(error, what)
        if exhausted is None:
            raise
        raise exhausted from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


SMALL_BYTES: Final = 16 * 1024
"""The largest write for which the loop waits: a larger one takes longer than the trip to a thread."""
ALONE_S: Final = 0.1
"""So long a file must have been the only one synced: threads sync several at the same time."""
APART_S: Final = 0.0001
"""The least time between two syncs in the loop, for the others' turn."""
SLOW_S: Final = 0.05
"""A sync that takes longer is slow: the loop must not wait for such a disk."""
REST_RATIO: Final = 50.0
"""A slow sync sends all to threads for this many times its duration: a disk that hangs holds the loop up once."""


class SyncsInLoop:
    """Lets the loop wait for a small sync of the only busy file, unless one in the loop was slow not long ago."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._file: object = None
        self._not_before_s = 0.0
        self._began_s = 0.0

    def allows(self, file: object, buffers: Sequence[Buffer]) -> bool:
        """Whether the loop may write and sync these buffers now; if it does, call `waited` afterwards. Call this before
        every write with a sync: the calls tell which files are busy."""
        now_s = self._began_s = self._now_s()
        if file is not self._file:
            self._file = file
            self._not_before_s = max(self._not_before_s, now_s + ALONE_S)
        return now_s >= self._not_before_s and sum(map(len, buffers)) <= SMALL_BYTES

    def waited(self) -> None:
        now_s = self._now_s()
        took_s = now_s - self._began_s
        self._not_before_s = now_s + (REST_RATIO * took_s if took_s > SLOW_S else APART_S)


T = TypeVar("T")

_log = logging.getLogger(__name__)

CLOSE_S_MAX: Final = 10.0
"""How long `DiskThreads.close` waits for the threads to end."""

_Outcome: TypeAlias = tuple[Any, BaseException | None]


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    call: Callable[[], Any]


class _Offer(Generic[T]):
    """What one thread opens and another takes; if the offer is withdrawn instead, `give_back` closes it."""

    def __init__(self, call: Callable[[], T], give_back: Callable[[T], None]) -> None:
        self._call = call
        self._give_back = give_back
        self._guard = threading.Lock()
        self._made: list[T] = []
        self._withdrawn = False

    def make(self) -> None:
        made = self._call()
        with self._guard:
            self._made.append(made)
        # After it was noted: whichever of `make` and `withdraw` comes second finds it, and gives it back.
        if self._withdrawn:
            self._return()

    def take(self) -> T:
        with self._guard:
            return self._made.pop()

    def withdraw(self) -> None:
        self._withdrawn = True
        self._return()

    def _return(self) -> None:
        with self._guard:
            made, self._made = self._made, []
        for each in made:
            self._give_back(each)


class DiskThreads:
    """Threads that run blocking calls, whose outcomes are awaited. Up to `count_max` at a time, begun in order. A call
    is carried out to its end, also when nobody waits for it. Only `close` may drop calls that have not begun; their
    outcomes never come."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._threads: list[threading.Thread] = []
        # By the name in its module: gevent may have put another one there.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._begun_s: dict[asyncio.Future[Any], float] = {}
        """When each call that has not returned was given, by the future of its outcome, in that order."""
        self._closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in a thread, and return the future of its outcome, which may be cancelled; the call may not.
        Raises `Closed` after `close`."""
        if self._closed:
            raise Closed("this machine's disk was closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._begun_s[done] = time.monotonic()
        if len(self._begun_s) > len(self._threads) < self._count_max:
            thread = threading.Thread(target=_work, args=(self._jobs, self._settle), name="disk", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(_Job(loop, done, call))
        return done

    async def obtain(self, call: Callable[[], T], give_back: Callable[[T], None]) -> T:
        """Return the outcome of a `call` that opens something; if cancelled, `give_back` closes it."""
        offer = _Offer(call, give_back)
        try:
            await self.run(offer.make)
            return offer.take()
        except BaseException:
            offer.withdraw()
            raise

    @property
    def idle(self) -> bool:
        """Whether no call is under way, and one could be made."""
        return not self._begun_s and not self._closed

    @property
    def under_way_s(self) -> float:
        for begun_s in self._begun_s.values():
            return time.monotonic() - begun_s
        return 0.0

    def close(self, *, drop: bool = False, within_s: float = CLOSE_S_MAX) -> bool:
        """End the threads after all calls that `run` was given; with `drop`, after those that have begun. Waits
        `within_s` seconds at most. Returns False when a disk holds some threads up for longer; these are left
        behind."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while drop:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        until_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self._threads:
            _log.error("%d calls to a disk have not returned for %g s; left behind", len(self._threads), within_s)
        return not self._threads

    def _settle(self, done: asyncio.Future[Any], outcome: _Outcome) -> None:
        del self._begun_s[done]
        if done.done():
            return
        result, error = outcome
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _work(jobs: queue.SimpleQueue[_Job | None], settle: Callable[[asyncio.Future[Any], _Outcome], None]) -> None:
    while (job := jobs.get()) is not None:
        outcome = _outcome(job.call)
        # Not `contextlib.suppress`, which takes longer: the loop is awake by then, and waits for this thread to let go
        # of the interpreter.
        try:
            job.loop.call_soon_threadsafe(settle, job.done, outcome)
        except RuntimeError:
            pass  # the loop was closed: nobody waits for the outcome
        # Or the last job's buffers would stay in memory until the next one comes.
        del job, outcome


def _outcome(call: Callable[[], Any]) -> _Outcome:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is awaited
        return None, error


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
    """An advisory lock on a file; the kernel frees it when the process dies. A forked child shares the open file, and
    would keep it locked after its parent's death. So a child closes the locks that it inherits as it begins; and no
    thread forks while another opens or closes a lock."""

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
