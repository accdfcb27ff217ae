"""Unix sockets by their bare names in one directory, however long or deep its path.

A socket's address holds about a hundred bytes of path (`sockaddr_un`). Where the system shows a process its own
descriptors as files, the path leads through the directory's descriptor, and is always short. And the directory may be
moved, or have another path in another process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from polonaise.errors import BadOption, ConnectionLost, TooManyOpenFiles
from polonaise.host import Identity, Listener, Network, ProtocolFactory, unreachable
from polonaise.host.address import UnixPath, parse_address
from polonaise.host.filelimits import too_many_open
from polonaise.host.files import identity

_DESCRIPTORS: Final = "/proc/self/fd"
_PATH_BYTES_MAX: Final = 103
"""The longest path that every system takes; Linux takes four bytes more."""


class SocketDirectory:
    """The network within one directory: addresses are `unix:NAME`."""

    def __init__(self, directory: str, network: Network) -> None:
        self._directory = directory
        self._network = network
        self._listening_in: Identity | None = None

    @property
    def unreachable(self) -> str:
        """Why nobody can connect to one of the listeners here."""
        if self._listening_in is not None and identity(self._directory) != self._listening_in:
            return f"nobody can connect to the sockets in {self._directory}: it was removed, moved or replaced"
        return unreachable(self._network)

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections at a name (`Network.listen`). Raises `ConnectionLost` if the directory can't be opened."""
        name = _name(address)
        with ExitStack() as path_in_use:
            directory = path_in_use.enter_context(_short_path(self._directory))
            listener = await self._network.listen(_address_in(directory, name), factory)
            self._listening_in = identity(directory)
            # From here on the listener keeps the path open.
            return _NamedListener(listener, address, path_in_use.pop_all())

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        name = _name(address)
        try:
            with _short_path(self._directory) as directory:
                return await self._network.connect(_address_in(directory, name), factory)
        except TooManyOpenFiles as error:
            raise ConnectionLost(error.text) from error


def _name(address: str) -> str:
    parsed = parse_address(address)
    if not isinstance(parsed, UnixPath) or "/" in parsed.path:
        raise BadOption(f"{address!r} is not the name of a socket in a directory: write unix:NAME")
    return parsed.path


@contextmanager
def _short_path(directory: str) -> Iterator[str]:
    """Yield a short path to the directory, valid during the block; its own path where the system has none."""
    if not os.path.isdir(_DESCRIPTORS):
        yield directory
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        what = f"no sockets in {directory!r}, which can't be opened"
        raise too_many_open(error, what) or ConnectionLost(f"{what}: {error.strerror}") from error
    try:
        yield f"{_DESCRIPTORS}/{descriptor}"
    finally:
        os.close(descriptor)


def _address_in(directory: str, name: str) -> str:
    path = f"{directory}/{name}"
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise BadOption(f"{path!r} is too long for a socket on this system: choose a directory with a shorter path")
    return str(UnixPath(path))


class _NamedListener:
    """A listener at a name. Keeps the short path open, by which the name is removed in the end."""

    def __init__(self, listener: Listener, address: str, path_in_use: ExitStack) -> None:
        self._listener = listener
        self._address = address
        self._path_in_use = path_in_use

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        try:
            await self._listener.close()
        finally:
            self._path_in_use.close()
