"""A directory of values that several processes read at any time and change one at a time.

`coordination.file` keeps its promises with the parts of this module: files that are replaced whole and say what they
are, locks that the kernel frees at a process's death, and changes that are not cut short by a cancelled caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from polonaise.checksum import crc32
from polonaise.coordination.backend import Entry, damaged, unsupported
from polonaise.coordination.values import DESCRIPTION
from polonaise.errors import (
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    NotFound,
    PolonaiseError,
    fresh,
)
from polonaise.host import DirectoryLock, Host, opened_file
from polonaise.host.unawaited import retrieve
from polonaise.log.openfiles import SharedSync

FORMAT: Final = 1
UNFINISHED: Final = ".new"
"""Ends the name of a value that is being written."""
INITIALIZING: Final = "initializing"
"""There while a cluster is made or deleted: values may lie there without a description then."""
CHANGE_LOCK: Final = "change.lock"
MEMBERS_LOCK: Final = "members.lock"

_MAGIC: Final = "polonaise-coordinator"
_TOGETHER_MAX: Final = 64
_PUTS_MAX: Final = 32
"""The most files that are written at once when a cluster or partitions are made."""
_PAUSE_MIN_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05
"""The first and the longest pause before a lock that another process holds is tried again, up to half longer or
shorter."""

T = TypeVar("T")
_Outcome: TypeAlias = tuple[Any, PolonaiseError | None]


def seal(name: str, cluster_key: bytes, version: int, payload: bytes) -> bytes:
    """Return the contents of a value's file: one line that says what it is, then `payload`."""
    front = f"{_MAGIC} {FORMAT} {cluster_key.hex()} {name} {version} {len(payload)} ".encode()
    return front + f"{crc32(payload, crc32(front)):08x}\n".encode() + payload


def unseal(name: str, raw: bytes, path: str) -> Entry:
    """Return the entry in a file that `seal` wrote under this name. Raises `CoordinatorDamaged` for anything else.
    Magic, format number and the CRC at the line's end stay where they are in every later format, so that a newer
    directory (`CoordinatorNewer`) and a damaged one are told apart."""
    head, newline, payload = raw.partition(b"\n")
    front, summed = head[:-8], head[-8:]
    if not newline or summed != f"{crc32(payload, crc32(front)):08x}".encode():
        raise damaged(path, f"its checksum does not fit ({len(raw)} bytes)")
    words = front.decode("ascii", "replace").split(" ")
    if words[0] != _MAGIC or len(words) < 2:
        raise damaged(path, "it is not a coordinator's file")
    if words[1] != str(FORMAT):
        raise unsupported(path, words[1], FORMAT)
    try:
        _, _, key, named, version, _, _ = words
        entry = Entry(bytes.fromhex(key), int(version), payload)
    except ValueError as error:
        raise damaged(path, f"its first line is invalid: {error}") from error
    # In one form only: a line that was read loosely would be written back changed.
    if seal(named, *entry) != raw:
        raise damaged(path, "its first line is not in the form in which it is written")
    if named != name:
        raise damaged(path, f"it holds the value {named!r} under the name of {name!r}")
    return entry


@contextlib.contextmanager
def translated_errors(what: str, *, changes: bool = True) -> Iterator[None]:
    """Translate errors of the disk: `NotFound` into `CoordinatorDamaged`, others into `CoordinatorUnavailable`. `what`
    was being done; with `changes`, the message warns that it may have been."""
    try:
        yield
    except (DiskFull, DiskFailed) as error:
        hint = ". The change may have been made: read again" if changes else ""
        raise CoordinatorUnavailable(f"{what}: {error.text}{hint}") from error
    except NotFound as error:
        raise CoordinatorDamaged(
            f"{what}: {error.text}. The coordinator's directory was removed or replaced while in use: stop the "
            "servers. If there is none now, restore it as it was last, or make its values again (polonaise cluster "
            "recover); then start the servers again"
        ) from error


@dataclass(slots=True, eq=False)
class _Request:
    """One caller's work to be done under a lock; `abandoned` when the caller was cancelled."""

    work: Callable[[], Coroutine[Any, Any, Any]]
    changes: str
    outcome: asyncio.Future[Any]
    abandoned: bool = False

    async def run(self) -> _Outcome:
        """Do the work, and return its outcome, for the caller to learn once the lock was given back."""
        try:
            return await self.work(), None
        except PolonaiseError as error:
            return None, error

    def resolve(self, outcome: _Outcome) -> None:
        result, error = outcome
        if self.outcome.done():
            return  # it was given up
        if error is None:
            self.outcome.set_result(result)
        else:
            self.outcome.set_exception(error)


class ValueDirectory:
    """The files and the locks of a coordinator's directory. Only work in `alone` may put or remove files."""

    def __init__(self, host: Host, path: str, lock_wait_s: float) -> None:
        self.host = host
        self.disk = host.disk
        self._path = posixpath.normpath(path)
        self._lock_wait_s = lock_wait_s
        self._swept = False
        self._requests: dict[str, deque[_Request]] = {CHANGE_LOCK: deque(), MEMBERS_LOCK: deque()}
        self._serving: set[str] = set()
        self.sync = SharedSync(lambda: self.disk.sync_directory(self._path))
        """When called, makes every name in the directory durable as it is at the call."""
        self._running: list[asyncio.Task[None]] = []
        self._abandoned: list[asyncio.Future[Any]] = []

    def __str__(self) -> str:
        return self._path

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def make(self) -> None:
        """Make the directory and those above it, durably: the process that made existing ones may have died before its
        sync."""
        await self.disk.make_directory(self._path)
        parent = posixpath.dirname(self._path)
        await self.disk.sync_directory(parent or ".")
        while parent not in ("", "/"):
            parent = posixpath.dirname(parent)
            # Without rights further up, this process did not make those directories, and need not sync them.
            with contextlib.suppress(DiskFailed):
                await self.disk.sync_directory(parent or ".")

    async def names(self) -> list[str]:
        try:
            return await self.disk.list(self._path)
        except NotFound:
            return []

    async def load(self, name: str) -> bytes | None:
        try:
            return await self.disk.load(self.path(name))
        except NotFound:
            return None

    async def put(self, name: str, contents: bytes) -> None:
        """Put a file in place, whole: durable after `sync`. Always through a new file: after a failed sync the kernel
        may take the old file's pages for written although they are not."""
        unfinished = self.path(name + UNFINISHED)
        if await self.disk.exists(unfinished):
            await self.disk.remove(unfinished)
        async with opened_file(self.disk, unfinished, create=True) as file:
            await file.write(0, [contents], sync=True)
        await self.disk.rename(unfinished, self.path(name))

    async def put_all(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Put files in place as `put` does, several at once; none is under way when this returns or raises."""
        left = iter(contents)
        while part := list(islice(left, _PUTS_MAX)):
            results = await asyncio.gather(*(self.put(*item) for item in part), return_exceptions=True)
            for error in results:
                if error is not None:
                    raise error

    async def alone(self, lock: str, work: Callable[[], Coroutine[Any, Any, T]], changes: str = "") -> T:
        """Do `work` while no other process does anything under this lock.

        Work that `changes` another value is done at the same time, and shares the syncs: thousands of values may have
        to be changed when a server begins. It runs in a task of its own, to its end even when the caller is cancelled:
        a thread may still be writing, and must not do so after another process has the lock.

        Raises what the work raises, faults of the disk, and `CoordinatorUnavailable` if another process holds the lock
        for too long.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(retrieve)  # the work goes on when its caller is cancelled, and may fail then
        request = _Request(work, changes, outcome)
        self._requests[lock].append(request)
        if lock not in self._serving:
            self._serving.add(lock)
            task = self.host.spawn(self._serve(lock), f"coordinator {lock}")
            self._running.append(task)
            task.add_done_callback(self._running.remove)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            request.abandoned = True
            if not outcome.done():
                self._abandoned.append(outcome)
                outcome.add_done_callback(self._abandoned.remove)
            raise

    async def _serve(self, lock: str) -> None:
        requests = self._requests[lock]
        together: list[_Request] = []
        try:
            while requests:
                try:
                    taken = await self._take(lock)
                except PolonaiseError as error:
                    for request in requests:
                        request.resolve((None, fresh(error)))
                    requests.clear()
                    continue
                together = self._next_together(requests)
                if taken is None:
                    continue
                outcomes = await self._outcomes(lock, together)
                # Resolved after the release: callers that go on at once must not find the lock still held.
                taken.release()
                for request, outcome in zip(together, outcomes, strict=True):
                    request.resolve(outcome)
        except asyncio.CancelledError:
            # By the application that this loop belongs to, and nobody else would tell them. The lock goes with the
            # host: a thread may still be writing.
            for request in (*together, *requests):
                request.resolve((None, CoordinatorUnavailable("the task that should have asked was cancelled")))
            requests.clear()
            raise
        finally:
            self._serving.discard(lock)

    async def _outcomes(self, lock: str, together: Sequence[_Request]) -> Sequence[_Outcome]:
        try:
            if lock == CHANGE_LOCK and not self._swept:
                await self._sweep()
        except PolonaiseError as error:
            return [(None, fresh(error)) for _ in together]
        if len(together) == 1:
            return [await together[0].run()]
        return await asyncio.gather(*(request.run() for request in together))

    def _next_together(self, requests: deque[_Request]) -> list[_Request]:
        """Take the oldest request, and those after it that change other values, without abandoned ones."""
        together: list[_Request] = []
        while requests and len(together) < _TOGETHER_MAX:
            request = requests[0]
            if request.abandoned:
                request.outcome.cancel()
            elif not together or (request.changes and all(request.changes != other.changes for other in together)):
                together.append(request)
            else:
                break
            requests.popleft()
            if not request.changes and together:
                break
        return together

    async def _take(self, lock: str) -> DirectoryLock | None:
        """Return the lock once it is free, or None when all callers have gone away meanwhile. Raises
        `CoordinatorUnavailable` when another process holds it for longer than `lock_wait_s`."""
        path = self.path(lock)
        clock = self.host.clock
        give_up_s = clock.monotonic_s() + self._lock_wait_s
        pause_s = _PAUSE_MIN_S
        requests = self._requests[lock]
        while not all(request.abandoned for request in requests):
            try:
                taken = await self.disk.lock(path)
            except DirectoryInUse as error:
                if clock.monotonic_s() >= give_up_s:
                    raise CoordinatorUnavailable(
                        f"another process has held {path} for {self._lock_wait_s:g} s, and nothing was changed: "
                        "look for a stopped process that has it open (`lsof`), and continue or end it"
                    ) from error
                await asyncio.sleep(pause_s * self.host.random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            if not all(request.abandoned for request in requests):
                return taken
            taken.release()
        return None

    async def _sweep(self) -> None:
        """Remove what crashed changes left, with the change lock held."""
        names = await self.names()
        for name in names:
            if name.endswith(UNFINISHED):
                await self.disk.remove(self.path(name))
        # Beside a description it was left by a crash. If it stayed, the loss of the description would look like a
        # cluster that was never made.
        if INITIALIZING in names and DESCRIPTION in names:
            await self.sync()  # the description first: it may not be durable yet
            await self.disk.remove(self.path(INITIALIZING))
        self._swept = True

    async def settle_abandoned(self) -> None:
        """Wait until the changes of cancelled callers are decided: a later read has to see them."""
        while self._abandoned:
            await asyncio.wait([self._abandoned[0]])

    async def settle(self) -> None:
        while self._running:
            await asyncio.wait([self._running[0]])
