"""Unix sockets by their bare names in one directory, however long or deep its path.

A socket's address holds about a hundred bytes of path (`sockaddr_un`). Where the system shows a process its own
descriptors as files, the directory is opened and the socket named through its descriptor, which is always short. And
because a socket goes by its bare name, the directory may be moved, or have another path in another process.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from typing import Final

from polonaise.errors import BadOption, ConnectionLost
from polonaise.host import Listener, Network, ProtocolFactory
from polonaise.host.address import UnixPath, parse_address

_DESCRIPTORS: Final = "/proc/self/fd"
_PATH_BYTES_MAX: Final = 103
"""The longest path that every system takes; Linux takes four bytes more."""


class SocketDirectory:
    """The network within one directory: addresses are `unix:NAME`."""

    def __init__(self, directory: str, network: Network) -> None:
        self._directory = directory
        self._network = network

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections at a name in the directory; see `Network.listen`."""
        way = _Way(self._directory)
        try:
            listener = await self._network.listen(way.to(_name(address)), factory)
        except BaseException:
            way.close()
            raise
        return _NamedListener(listener, address, way)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection to a name in the directory; see `Network.connect`."""
        name = _name(address)
        with closing(_Way(self._directory)) as way:
            return await self._network.connect(way.to(name), factory)


def _name(address: str) -> str:
    """Return the bare name in the address. Raises `BadOption` for any other address."""
    parsed = parse_address(address)
    if not isinstance(parsed, UnixPath) or "/" in parsed.path:
        raise BadOption(f"{address!r} is no name of a socket in a directory: write unix:NAME")
    return parsed.path


class _Way:
    """A short path to the directory, valid until closed."""

    def __init__(self, directory: str) -> None:
        self._descriptor = -1
        self._path = directory
        if os.path.isdir(_DESCRIPTORS):
            try:
                self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                raise ConnectionLost(f"no sockets in {directory!r}: {error.strerror}") from error
            self._path = f"{_DESCRIPTORS}/{self._descriptor}"

    def to(self, name: str) -> str:
        """Return the address of the socket of this name. Raises `BadOption` where no short path to it exists."""
        path = f"{self._path}/{name}"
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise BadOption(f"{path!r} is too long for a socket on this system: choose a directory with a shorter path")
        return str(UnixPath(path))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _NamedListener:
    """A listener at a name. Keeps the short path open, through which the name is removed in the end."""

    def __init__(self, listener: Listener, address: str, way: _Way) -> None:
        self._listener = listener
        self._address = address
        self._way = way

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        try:
            await self._listener.close()
        finally:
            self._way.close()
