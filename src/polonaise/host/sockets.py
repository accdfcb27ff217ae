"""TCP and Unix sockets through the running event loop, with errors translated at this door.

asyncio and uvloop both set TCP_NODELAY: a message is sent when it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat

from polonaise.errors import AddressInUse, BadOption, ConnectionLost
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.address import HostPort, UnixPath, parse_address

_BACKLOG = 1024


class RealNetwork:
    """The network of this machine."""

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            if isinstance(parsed, UnixPath):
                bound = _bind_unix(parsed.path)
                return _RealListener(await loop.create_unix_server(factory, sock=bound, backlog=_BACKLOG), parsed)
            server = await loop.create_server(factory, parsed.host, parsed.port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"{address!r} is in use: stop the process that listens there or choose another port"
                ) from error
            raise BadOption(
                f"cannot listen on {address!r}: {error.strerror or error}: name an address of this machine that this "
                "process may take"
            ) from error
        port = server.sockets[0].getsockname()[1]
        return _RealListener(server, HostPort(parsed.host, port))

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            if isinstance(parsed, UnixPath):
                return await loop.create_unix_connection(factory, parsed.path)
            return await loop.create_connection(factory, parsed.host, parsed.port)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address!r}: {error}") from error


class _RealListener:
    """A server socket."""

    def __init__(self, server: asyncio.AbstractServer, address: HostPort | UnixPath) -> None:
        self._server = server
        self._address = address
        self._inode = os.stat(address.path).st_ino if isinstance(address, UnixPath) else None

    @property
    def address(self) -> str:
        return str(self._address)

    async def close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # uvloop lets go of the port in its next turn
        await asyncio.sleep(0)
        if isinstance(self._address, UnixPath):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._address.path).st_ino == self._inode:
                    os.unlink(self._address.path)


def _bind_unix(path: str) -> socket.socket:
    """Take the path over from a dead process, never from a living one."""
    if _is_socket(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except BlockingIOError:
                pass  # its backlog is full: it lives
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    return bound


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
