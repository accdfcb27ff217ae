"""The port to object stores: immutable objects under names, put once. Directories, S3, GCS, Azure and memory."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
import obstore
from obstore import exceptions
from obstore.store import LocalStore, from_url

from polonaise.errors import (
    AccessDenied,
    BadOption,
    DiskFull,
    NotADirectory,
    NotFound,
    PolonaiseError,
    StoreUnavailable,
)
from polonaise.fragments.ranges import Range, RangeFile
from polonaise.host.files import make_directories, sync_path, with_own_errors
from polonaise.redaction import has_unescaped_password, redacted, redacted_address, redacted_line

T = TypeVar("T")

_LIST_CHUNK: Final = 1_000
_CHUNK_BYTES: Final = 1024 * 1024
"""How many bytes of a file are compared at a time."""
_DENIED: Final = ("ermission denied", "403 Forbidden", "401 Unauthorized")
"""Parts of error texts that mean a refusal; the P of the first one may be upper or lower case."""
_FOREIGN: Final = (exceptions.BaseError, OSError, ValueError, TypeError, ArithmeticError, LookupError, RuntimeError)
"""What obstore and the system raise; `PolonaiseError` is none of these."""
_FULL: Final = "No space left on device"
_CALLS_MAX: Final = 16
"""How many awaited calls to one store are under way at a time; further ones wait."""
INIT: Final = "polonaise archive init LOG STORE"
"""The command by which an operator declares a store to be new."""
_USAGE: Final = "write a directory's path, or a URL: file:///path, s3://bucket/prefix, gs://…, az://… or memory:///"


class Listed(NamedTuple):
    """One object, as a listing describes it."""

    path: str
    bytes: int


class ReadableStore(Protocol):
    """An object store for readers. Every call may raise `StoreUnavailable` or `AccessDenied`."""

    async def get(self, path: str) -> bytes:
        """Return the whole object. Raises `NotFound`."""

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset`, or as many as it has there. Raises `NotFound`."""

    async def list(self, prefix: str = "") -> builtins.list[Listed]:
        """Return the objects below a prefix, which ends with a slash unless it is empty, sorted by name. May raise
        `NotFound` if the store itself, such as its bucket, does not exist."""


class MendableStore(ReadableStore, Protocol):
    """An object store for readers that also repair damaged objects."""

    async def replace(self, path: str, data: bytes) -> None:
        """Store an object, durably, in place of the one of this name: readers see either. Raises `DiskFull`."""


class ObjectStore(MendableStore, Protocol):
    """An object store for writers."""

    @property
    def empty_is_new(self) -> bool:
        """Whether an empty store is certainly one in which nothing was ever put. False for a directory that existed
        before: the file system that belongs there may not be mounted."""

    def unmake(self) -> None:
        """Remove the store again, if this process has made it and it is empty."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Store an object, durably, and return True; False, with nothing changed, if one of this name exists. May raise
        `DiskFull`, and `NotFound` if the store itself does not exist."""

    async def make_durable(self, path: str) -> None:
        """Make an existing object survive a loss of power, whichever process put it. May raise `NotFound`."""

    async def holds(self, path: str, data: bytes) -> bool:
        """Tell whether an object is exactly `data`, read back for that, a little at a time. Raises `NotFound`."""

    async def delete(self, path: str) -> None:
        """Remove an object. Does nothing if it does not exist."""


@contextmanager
def unmade_on_failure(store: ObjectStore) -> Iterator[None]:
    """If the block fails, remove an empty store that this process made: unmarked, it would be refused next time."""
    try:
        yield
    except BaseException:
        store.unmake()
        raise


class ObstoreStore:
    """An object store of the kinds that `obstore` knows. Made by `open_store`. Makes the library's blocking calls, in
    threads of this class: a thread of the library that completes a coroutine while the interpreter exits aborts the
    process."""

    def __init__(self, store: Any, url: str, directory: Path | None = None, *, made: bool = False) -> None:
        """Private. `directory` is a local store's place, else None; `made` says that it did not exist before."""
        self._store = store
        self._url = url
        self._directory = directory
        self._made = made
        self._threads = ThreadPoolExecutor(_CALLS_MAX, "object store")

    def __str__(self) -> str:
        return redacted_address(self._url)

    @property
    def empty_is_new(self) -> bool:
        return self._directory is None or self._made

    def unmake(self) -> None:
        if self._directory is not None and self._made:
            with suppress(OSError):
                self._directory.rmdir()

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        def put() -> bool:
            try:
                obstore.put(self._store, path, data, mode="create")
                made = True
            except exceptions.AlreadyExistsError:
                made = False
            if self._directory is not None:
                # An existing object as well: the process that put it may have died before it synced it.
                _make_durable(self._directory, path)
            return made

        return await self._asked_store(path, put)

    async def replace(self, path: str, data: bytes) -> None:
        def put() -> None:
            obstore.put(self._store, path, data, mode="overwrite")
            if self._directory is not None:
                _make_durable(self._directory, path)

        await self._asked_store(path, put)

    async def make_durable(self, path: str) -> None:
        if self._directory is not None:
            directory = self._directory
            await self._asked(path, lambda: _make_durable(directory, path))

    async def get(self, path: str) -> bytes:
        return await self._asked(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        def get() -> bytes:
            if not length:
                return b""  # the library takes no such range
            try:
                return bytes(obstore.get_range(self._store, path, start=offset, end=offset + length))
            except exceptions.GenericError:
                # A range behind the object's end has another text in each kind of store: its size tells.
                if obstore.head(self._store, path)["size"] > offset:
                    raise
                return b""

        return await self._asked(path, get)

    async def holds(self, path: str, data: bytes) -> bool:
        def compare() -> bool:
            offset = 0
            for chunk in self._chunks(path):
                expected = np.frombuffer(data, np.uint8)[offset : offset + len(chunk)]
                if not np.array_equal(np.frombuffer(chunk, np.uint8), expected):
                    return False
                offset += len(chunk)
            return offset == len(data)

        return await self._asked(path, compare)

    def _chunks(self, path: str) -> Iterator[Any]:
        """Yield the object's bytes, in pieces that are valid until the next one."""
        if self._directory is None:
            yield from obstore.get(self._store, path)
            return
        piece = bytearray(_CHUNK_BYTES)
        with (self._directory / path).open("rb", buffering=0) as file:
            while length := file.readinto(piece):
                yield memoryview(piece)[:length]

    async def list(self, prefix: str = "") -> builtins.list[Listed]:
        def listed() -> builtins.list[Listed]:
            chunks = obstore.list(self._store, prefix=prefix or None, chunk_size=_LIST_CHUNK)
            return sorted(Listed(meta["path"], meta["size"]) for chunk in chunks for meta in chunk)

        return await self._asked_store(prefix, listed)

    def check_there(self) -> None:
        """Raise `NotFound` for a directory that does not exist."""
        if self._directory is not None and not self._directory.is_dir():
            raise self._absent()

    def _absent(self) -> NotFound:
        return NotFound(f"{self} does not exist: make the bucket or directory, or correct the address")

    async def delete(self, path: str) -> None:
        with suppress(NotFound):
            await self._asked(path, lambda: obstore.delete(self._store, path))

    def source(self, path: str, size: int) -> str | RangeFile:
        """Return an object of this size (bytes) for `columns_in`: a local path, or a `RangeFile`, to be closed."""
        if self._directory is not None:
            return str(self._directory / path)
        return RangeFile(partial(self._get_ranges, path), size, f"{path!r} in {self}")

    def _get_ranges(self, path: str, ranges: Sequence[Range]) -> builtins.list[bytes]:
        starts, ends = [each.start for each in ranges], [each.stop for each in ranges]
        return self._call(
            path, lambda: [bytes(part) for part in obstore.get_ranges(self._store, path, starts=starts, ends=ends)]
        )

    async def _asked(self, path: str, call: Callable[[], T]) -> T:
        """Make a blocking call about the object at `path` in a thread. Raises as `_call` does."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, path, call)

    async def _asked_store(self, path: str, call: Callable[[], T]) -> T:
        """Make a blocking call for which no object has to exist, so that `NotFound` can only mean the store itself."""
        try:
            return await self._asked(path, call)
        except NotFound as error:
            raise self._absent() from error

    def _call(self, path: str, call: Callable[[], T]) -> T:
        """Make a blocking call about the object at `path`; translate the errors of obstore and the system to faults."""
        try:
            return call()
        except _FOREIGN as error:
            fault = self._translated(path, error)
            # obstore's errors have whole addresses: a cause with a secret in it is left out. The raise stands outside
            # of this block, or the error would be kept as its context.
            cause = error if redacted(error) == str(error) else None
        raise fault from cause

    def _translated(self, path: str, error: Exception) -> PolonaiseError:
        reason = redacted_line(error)
        # obstore has no kind of error for a refused listing: only the server's answer in its text tells.
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError) or "404 Not Found" in reason:
            return NotFound(f"no object {path!r} in {self}")
        denied = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError
        if isinstance(error, denied) or any(each in reason for each in _DENIED):
            refused = f"access to {path!r}" if path else "to list its objects"
            return AccessDenied(f"{self} refuses {refused}: {reason}: let this user read there, and write if need be")
        if _FULL in reason:
            return DiskFull(f"{self} is full: free space there, and try again ({path!r} was not written)")
        return StoreUnavailable(f"{self}, {path!r}: {reason}")


class LateStore:
    """A store for servers, which never make its directory: while that is missing, calls raise `StoreUnavailable`."""

    def __init__(self, url: str) -> None:
        """Use the store at this URL, which may be missing for now. Raises `BadOption` for a URL that names no store."""
        self._url = url
        self._store: ObstoreStore | None = None
        self._looking: asyncio.Future[ObstoreStore] | None = None
        with suppress(NotFound):
            self._store = open_store(url, make=False)

    def __str__(self) -> str:
        return redacted_address(self._url)

    async def _opened(self) -> ObstoreStore:
        """Return the store, found in a thread, one for all that wait: a network directory may not answer."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._look)
        return await asyncio.shield(self._looking)

    def _look(self) -> ObstoreStore:
        try:
            if self._store is None:
                self._store = open_store(self._url, make=False)
            self._store.check_there()
        except NotFound as error:
            raise StoreUnavailable(
                f"no directory {self}: mount what belongs there, or correct the address; if it is new, declare it "
                f"once: {INIT}"
            ) from error
        return self._store

    async def get(self, path: str) -> bytes:
        return await (await self._opened()).get(path)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await (await self._opened()).get_range(path, offset, length)

    async def list(self, prefix: str = "") -> builtins.list[Listed]:
        return await (await self._opened()).list(prefix)

    async def replace(self, path: str, data: bytes) -> None:
        await (await self._opened()).replace(path, data)


def open_store(url: str, *, make: bool = True, parents: bool = True) -> ObstoreStore:
    """Return the store at this URL or path. A missing directory is made, unless `make` is False. Those above it are
    made, too, unless `parents` is False: then a missing one is refused as `NotFound`. Raises `BadOption` for an address
    that names no store, `NotFound` for a missing directory that is not to be made, and for one that can't be made
    `AccessDenied`, `DiskFull` or `DiskFailed`. A bucket is not looked for before it is used."""
    shown = redacted_address(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # its text has the user and the password
        parts = None
    if parts is None or ("://" in url and has_unescaped_password(url)):
        raise BadOption(
            f"{shown!r} is not the address of an object store: in a password, @ is written %40, / is written %2F and "
            f"so on, and so is an @ behind the host: {_USAGE}"
        )
    if not url or "\0" in url:
        raise BadOption(f"{shown!r} is not the address of an object store: {_USAGE}")
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:
        if parts.netloc not in ("", "localhost"):
            raise BadOption(f"{shown!r} names a directory of another machine: {_USAGE}")
        directory = Path(unquote(parts.path) if parts.scheme == "file" else url).absolute()
        made = not with_own_errors(str(directory), directory.exists)
        if made and not make:
            raise NotFound(f"no directory {directory}: mount what belongs there, or correct the address of the store")
        if made and not parents and not with_own_errors(str(directory), directory.parent.exists):
            raise NotFound(
                f"no directory {directory.parent}, in which {directory.name} would be made: mount what belongs there, "
                "make it, or correct the address of the store"
            )
        try:
            with_own_errors(str(directory), lambda: make_directories(str(directory)))
        except NotADirectory as error:
            raise BadOption(f"{directory} is no directory: {_USAGE}") from error
        return ObstoreStore(LocalStore(prefix=directory), str(directory), directory, made=made)
    try:
        return ObstoreStore(from_url(url), url)
    except (exceptions.BaseError, OSError, ValueError) as error:
        reason = redacted_line(error)
    # Raised here, without its cause, which shows the whole address.
    raise BadOption(f"{shown!r} can't be opened: {reason}: {_USAGE}")


def _make_durable(directory: Path, path: str) -> None:
    """Sync an object of a directory, and all names on the way to it: the library leaves that to the kernel."""
    file = directory / path
    for name in (file, *file.parents):
        above = name != directory and directory.is_relative_to(name)
        try:
            sync_path(name)
        except PermissionError:
            if not above:
                raise
            continue  # whoever made a directory there had rights that this process does not have
        if (above or name == directory) and name.is_mount():
            return  # a mount point was there before what was made in it
