"""The port to object stores: immutable objects under names, put once. Directories, S3, GCS, Azure and memory."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
import obstore
from obstore import exceptions
from obstore.store import LocalStore, from_url

from polonaise.errors import AccessDenied, BadOption, DiskFull, NotFound, PolonaiseError, StoreUnavailable
from polonaise.fragments.ranges import Range, RangeFile
from polonaise.redaction import redacted

T = TypeVar("T")

_LIST_CHUNK: Final = 1_000
_CHUNK_BYTES: Final = 1024 * 1024
"""Of a file, compared at a time."""
_DENIED: Final = ("ermission denied", "403 Forbidden", "401 Unauthorized")
_FULL: Final = "No space left on device"
_CALLS_MAX: Final = 16
"""Under way at a time; others wait."""
_USAGE: Final = "write a directory's path, or a URL: file:///path, s3://bucket/prefix, gs://…, az://… or memory:///"


class Listed(NamedTuple):
    """One object, as a listing tells."""

    path: str
    bytes: int


class ReadableStore(Protocol):
    """What readers ask of an object store. Every call raises `StoreUnavailable` or `AccessDenied`."""

    async def get(self, path: str) -> bytes:
        """The whole object. Raises `NotFound`."""

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        """A part of an object that lies within it. Raises `NotFound`."""

    async def list(self, prefix: str = "") -> builtins.list[Listed]:
        """The objects below a prefix, which ends with a slash unless it is empty, sorted by name."""


class MendableStore(ReadableStore, Protocol):
    """What is asked of an object store by those who read, and put right what has rotted."""

    async def replace(self, path: str, data: bytes) -> None:
        """Store an object, durably, in place of the one of this name: readers see the one or the other, whole."""


class ObjectStore(MendableStore, Protocol):
    """What is asked of an object store, by those who write too."""

    @property
    def empty_is_new(self) -> bool:
        """Whether nothing was ever put here if nothing is found: who asks has made it, or it can't be away unnoticed.

        Not so for a directory that was there before: what belongs there may not be mounted.
        """

    def unmake(self) -> None:
        """Remove the store again, if whoever asks has made it and it is empty."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Store an object, durably; False, with nothing changed, if there is one of this name."""

    async def make_durable(self, path: str) -> None:
        """See to it that an object which is there survives a loss of power, whoever put it. Raises `NotFound`."""

    async def holds(self, path: str, data: bytes) -> bool:
        """Whether an object is exactly this, read back for that, a little at a time. Raises `NotFound`."""

    async def delete(self, path: str) -> None:
        """Remove an object; nothing happens if there is none."""


class ObstoreStore:
    """An object store of those that `obstore` knows. Made by `open_store`.

    The library's blocking calls in threads of ours, and not its coroutines: these end in threads of the library, and
    one that still has something to tell when the interpreter exits aborts the process.
    """

    def __init__(self, store: Any, url: str, directory: Path | None = None, *, made: bool = False) -> None:
        """`made`: the directory was not there before."""
        self._store = store
        self._url = url
        self._directory = directory
        self._made = made
        self._threads = ThreadPoolExecutor(_CALLS_MAX, "object store")

    def __str__(self) -> str:
        return redacted(self._url)

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
                # Also of one that is there already: whoever put it may have died before it got as far as this.
                _make_durable(self._directory, path)
            return made

        try:
            return await self._asked(path, put)
        except NotFound as error:
            raise self._absent() from error

    async def replace(self, path: str, data: bytes) -> None:
        def put() -> None:
            obstore.put(self._store, path, data, mode="overwrite")
            if self._directory is not None:
                _make_durable(self._directory, path)

        try:
            await self._asked(path, put)
        except NotFound as error:
            raise self._absent() from error

    async def make_durable(self, path: str) -> None:
        if self._directory is not None:
            directory = self._directory
            await self._asked(path, lambda: _make_durable(directory, path))

    async def get(self, path: str) -> bytes:
        return await self._asked(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        def get() -> bytes:
            return bytes(obstore.get_range(self._store, path, start=offset, end=offset + length))

        return await self._asked(path, get)

    async def holds(self, path: str, data: bytes) -> bool:
        def compare() -> bool:
            place = 0
            for chunk in self._chunks(path):
                expected = np.frombuffer(data, np.uint8)[place : place + len(chunk)]
                if not np.array_equal(np.frombuffer(chunk, np.uint8), expected):
                    return False
                place += len(chunk)
            return place == len(data)

        return await self._asked(path, compare)

    def _chunks(self, path: str) -> Iterator[Any]:
        """The object's bytes, in pieces that are gone with the next one."""
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

        try:
            return await self._asked(prefix, listed)
        except NotFound as error:
            raise self._absent() from error

    def check_there(self) -> None:
        """Raises `NotFound` for a directory that is not there."""
        if self._directory is not None and not self._directory.is_dir():
            raise self._absent()

    def _absent(self) -> NotFound:
        return NotFound(f"{self} is not there: make the bucket or directory, or correct the address")

    async def delete(self, path: str) -> None:
        try:
            await self._asked(path, lambda: obstore.delete(self._store, path))
        except NotFound:
            return

    def source(self, path: str, size: int) -> str | RangeFile:
        """An object of this size, for `columns_in` and other readers that block, in threads or without an event loop.

        A file's path where there is a file; else a `RangeFile`, which is closed by whoever asked for it.
        """
        if self._directory is not None:
            return str(self._directory / path)
        return RangeFile(partial(self._get_ranges, path), size)

    def _get_ranges(self, path: str, ranges: Sequence[Range]) -> builtins.list[bytes]:
        starts, ends = [each.start for each in ranges], [each.stop for each in ranges]
        return self._call(
            path, lambda: [bytes(part) for part in obstore.get_ranges(self._store, path, starts=starts, ends=ends)]
        )

    async def _asked(self, path: str, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, path, call)

    def _call(self, path: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (exceptions.BaseError, OSError) as error:
            told = self._translated(path, error)
            # obstore tells whole addresses: a cause that has a secret in it is left out, as a context too.
            cause = error if redacted(error) == str(error) else None
        raise told from cause

    def _translated(self, path: str, error: Exception) -> PolonaiseError:
        said = redacted(str(error).strip().partition("\n")[0])
        # A listing that is refused is no error of its own kind: only the server's answer tells.
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError) or "404 Not Found" in said:
            return NotFound(f"no object {path!r} in {self}")
        denied = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError
        if isinstance(error, denied) or any(each in said for each in _DENIED):
            what = repr(path) if path else "to list what is there"
            return AccessDenied(f"{self} refuses {what}: {said}: let this user read there, and write if need be")
        if _FULL in said:
            return DiskFull(f"{self} is full: free space there, and do it again ({path!r} is not there)")
        return StoreUnavailable(f"{self}, {path!r}: {said}")


class LateStore:
    """A store whose directory need not be there yet, or not any more: every call raises `StoreUnavailable` until it is.

    For servers, which never make it.
    """

    def __init__(self, url: str) -> None:
        """Raises `BadOption` for what names no store."""
        self._url = url
        self._store: ObstoreStore | None = None
        with suppress(NotFound):
            self._store = open_store(url, make=False)

    def __str__(self) -> str:
        return redacted(self._url)

    async def _opened(self) -> ObstoreStore:
        # In a thread: a directory of a network that does not answer holds up whoever looks for it.
        return await asyncio.to_thread(self._look)

    def _look(self) -> ObstoreStore:
        try:
            if self._store is None:
                self._store = open_store(self._url, make=False)
            self._store.check_there()
        except NotFound as error:
            raise StoreUnavailable(f"no directory {self}: mount what belongs there, or correct the address") from error
        return self._store

    async def get(self, path: str) -> bytes:
        return await (await self._opened()).get(path)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await (await self._opened()).get_range(path, offset, length)

    async def list(self, prefix: str = "") -> builtins.list[Listed]:
        return await (await self._opened()).list(prefix)

    async def replace(self, path: str, data: bytes) -> None:
        await (await self._opened()).replace(path, data)


def open_store(url: str, *, make: bool = True) -> ObstoreStore:
    """The store at this URL; a directory is made if it is not there, unless it is only to be read.

    Raises `BadOption`, `AccessDenied`, and `NotFound` for a directory that is not there and not to be made.
    """
    parts, shown = urlsplit(url), redacted(url)
    if not url or "\0" in url:
        raise BadOption(f"{shown!r} names no object store: {_USAGE}")
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:
        if parts.netloc not in ("", "localhost"):
            raise BadOption(f"{shown!r} names a directory of another machine: {_USAGE}")
        directory = Path(unquote(parts.path) if parts.scheme == "file" else url).absolute()
        if not make and not directory.exists():
            raise NotFound(f"no directory {directory}: correct the address of the store")
        made = not directory.exists()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadOption(f"{directory} is no directory: {_USAGE}") from error
        except OSError as error:
            raise AccessDenied(f"{directory} can't be made: {error.strerror or error}") from error
        return ObstoreStore(LocalStore(prefix=directory), str(directory), directory, made=made)
    try:
        return ObstoreStore(from_url(url), url)
    except (exceptions.BaseError, OSError, ValueError) as error:
        said = redacted(str(error).partition("\n")[0])
    raise BadOption(f"{shown!r} can't be opened: {said}: {_USAGE}")  # without its cause, which shows all of the address


def _make_durable(directory: Path, path: str) -> None:
    """Sync an object of a directory, and the names on the way to it: the library leaves that to the kernel."""
    place = directory / path
    for each in (place, *place.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == directory:
            return
