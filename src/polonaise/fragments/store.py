"""The port to object stores: immutable objects under names, put once. Directories, S3, GCS, Azure and memory."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import LocalStore, from_url

from polonaise.errors import AccessDenied, BadOption, NotFound, PolonaiseError, StoreUnavailable
from polonaise.fragments.ranges import Range, RangeFile

T = TypeVar("T")

_LIST_CHUNK: Final = 1_000
_USAGE: Final = "write a directory's path, or a URL: file:///path, s3://bucket/prefix, gs://…, az://… or memory:///"


class Listed(NamedTuple):
    """One object, as a listing tells."""

    path: str
    bytes: int


class ObjectStore(Protocol):
    """What is asked of an object store. Every call raises `StoreUnavailable` or `AccessDenied`."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Store an object, durably; False, with nothing changed, if there is one of this name."""

    async def get(self, path: str) -> bytes:
        """The whole object. Raises `NotFound`."""

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        """A part of an object that lies within it. Raises `NotFound`."""

    async def list(self, prefix: str = "") -> list[Listed]:
        """The objects below a prefix, which ends with a slash unless it is empty, sorted by name."""

    async def delete(self, path: str) -> None:
        """Remove an object; nothing happens if there is none."""


class ObstoreStore:
    """An object store of those that `obstore` knows. Made by `open_store`."""

    def __init__(self, store: Any, url: str, directory: Path | None = None) -> None:
        self._store = store
        self._url = url
        self._directory = directory

    def __str__(self) -> str:
        return self._url

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        try:
            await self._asked(path, obstore.put_async(self._store, path, data, mode="create"))
        except _AlreadyThere:
            return False
        if self._directory is not None:
            await asyncio.to_thread(_make_durable, self._directory, path)
        return True

    async def get(self, path: str) -> bytes:
        found = await self._asked(path, obstore.get_async(self._store, path))
        return bytes(await self._asked(path, found.bytes_async()))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        part = obstore.get_range_async(self._store, path, start=offset, end=offset + length)
        return bytes(await self._asked(path, part))

    async def list(self, prefix: str = "") -> list[Listed]:
        found: list[Listed] = []
        try:
            async for chunk in obstore.list(self._store, prefix=prefix or None, chunk_size=_LIST_CHUNK):
                found += [Listed(meta["path"], meta["size"]) for meta in chunk]
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(prefix, error) from error
        return sorted(found)

    async def delete(self, path: str) -> None:
        try:
            await self._asked(path, obstore.delete_async(self._store, path))
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
        try:
            return [bytes(part) for part in obstore.get_ranges(self._store, path, starts=starts, ends=ends)]
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(path, error) from error

    async def _asked(self, path: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except exceptions.AlreadyExistsError as error:
            raise _AlreadyThere(path) from error
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(path, error) from error

    def _translated(self, path: str, error: Exception) -> PolonaiseError:
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
            return NotFound(f"no object {path!r} in {self._url}")
        denied = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError
        if isinstance(error, denied) or "ermission denied" in said:
            return AccessDenied(f"{self._url} refuses {path!r}: {said}: let this user read and write there")
        return StoreUnavailable(f"{self._url}, {path!r}: {said}")


class _AlreadyThere(Exception):
    """An object of this name is in the store."""


def open_store(url: str) -> ObstoreStore:
    """The store at this URL; a directory is made if it is not there. Raises `BadOption`, `AccessDenied`."""
    parts = urlsplit(url)
    if not url or "\0" in url:
        raise BadOption(f"{url!r} names no object store: {_USAGE}")
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:
        if parts.netloc not in ("", "localhost"):
            raise BadOption(f"{url!r} names a directory of another machine, {parts.netloc}: {_USAGE}")
        directory = Path(unquote(parts.path) if parts.scheme == "file" else url).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadOption(f"{directory} is no directory: {_USAGE}") from error
        except OSError as error:
            raise AccessDenied(f"{directory} can't be made: {error.strerror or error}") from error
        return ObstoreStore(LocalStore(prefix=directory), str(directory), directory)
    try:
        return ObstoreStore(from_url(url), url)
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise BadOption(f"{url!r} can't be opened: {str(error).partition(chr(10))[0]}: {_USAGE}") from error


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
