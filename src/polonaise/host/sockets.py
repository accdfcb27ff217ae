"""TCP and Unix sockets through the running event loop, with `OSError` and `ValueError` translated here.

TCP_NODELAY is set on every TCP connection: a message is sent when it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Any

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, PolonaiseError
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.acceptor import BACKLOG, Acceptor, bind_port
from polonaise.host.address import HostPort, UnixPath, parse_address
from polonaise.host.filelimits import too_many_open
from polonaise.host.receiving import Receiver, received_by, receiver


class RealNetwork:
    """The network of this machine."""

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections; see `Network.listen`."""
        parsed = parse_address(address)
        try:
            if isinstance(parsed, UnixPath):
                return _RealListener([_bind_unix(parsed.path)], parsed, factory)
            sockets = await bind_port(parsed)
            return self._listener(sockets, HostPort(parsed.host, sockets[0].getsockname()[1]), factory)
        except OSError as error:
            raise _not_listening(address, error) from error
        except ValueError as error:
            raise BadOption(f"cannot listen on {address!r}: {error}") from error

    def _listener(self, sockets: list[socket.socket], address: HostPort, factory: ProtocolFactory) -> Listener:
        """Return the listener of these listening sockets at one TCP address."""
        return _RealListener(sockets, address, factory)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; see `Network.connect`."""
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()

        def made() -> asyncio.Protocol | Receiver:
            return receiver(factory(), loop)

        try:
            if isinstance(parsed, UnixPath):
                transport, given = await loop.create_unix_connection(made, parsed.path)
            else:
                transport, given = await loop.create_connection(made, parsed.host, parsed.port)
            return transport, received_by(given)
        except OSError as error:
            raise not_connected(address, error)  # noqa: B904 - it has a cause
        except ValueError as error:  # such as a name that can't be encoded
            raise BadOption(f"cannot connect to {address!r}: {error}") from error


def _not_listening(address: str, error: OSError) -> PolonaiseError:
    """Return the fault for what kept this process from listening at the address."""
    exhausted = too_many_open(error, f"cannot listen on {address!r}")
    if exhausted is not None:
        return exhausted
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"{address!r} is in use: stop the process that listens there or choose another port")
    return BadOption(
        f"cannot listen on {address!r}: {error.strerror or error}: name an address of this machine that this "
        "process may take"
    )


def not_connected(address: str, error: OSError) -> ConnectionLost:
    """Return the fault for what kept this process from connecting to the address."""
    exhausted = too_many_open(error, f"cannot connect to {address!r}")
    fault = ConnectionLost(f"cannot connect to {address!r}: {error}" if exhausted is None else exhausted.text)
    fault.__cause__ = exhausted or error
    return fault


class _RealListener:
    """The listening sockets of one address, and the connections that the event loop is about to take over."""

    def __init__(self, sockets: list[socket.socket], address: HostPort | UnixPath, factory: ProtocolFactory) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._inode = os.stat(address.path).st_ino if isinstance(address, UnixPath) else None
        self._factory = factory
        self._arriving: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(sockets, str(address), self._accept)

    @property
    def address(self) -> str:
        return str(self._address)

    async def close(self) -> None:
        self._acceptor.close()
        if isinstance(self._address, UnixPath):
            with contextlib.suppress(FileNotFoundError):
                # Another process may have taken the path over: its socket stays.
                if os.stat(self._address.path).st_ino == self._inode:
                    os.unlink(self._address.path)

    def _accept(self, connected: socket.socket, peer: Any) -> None:
        """Give a connection a protocol of its own."""
        task = self._loop.create_task(self._begin(connected), name=f"connection at {self._address}")
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _begin(self, connected: socket.socket) -> None:
        """Hand a connection to the event loop."""
        protocol: asyncio.Protocol | None = None

        def made() -> asyncio.Protocol | Receiver:
            nonlocal protocol
            protocol = self._factory()
            return receiver(protocol, self._loop)

        try:
            await self._loop.connect_accepted_socket(made, connected)
        except BaseException as error:
            connected.close()
            # What a protocol does wrong from here on, the loop tells itself. And uvloop raises a RuntimeError if the
            # protocol has ended its connection at once.
            if protocol is None or not isinstance(error, OSError | RuntimeError):
                raise


def _bind_unix(path: str) -> socket.socket:
    """Return a listening socket at the path, taken over from a dead process, never from a living one."""
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except BlockingIOError:
                pass  # the backlog is full: a living process listens
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(path)
        bound.listen(BACKLOG)
    except (OSError, ValueError):
        bound.close()
        raise
    return bound
