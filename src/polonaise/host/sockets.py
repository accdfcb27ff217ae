"""TCP and Unix sockets through the running event loop, with `OSError` and `ValueError` translated here.

asyncio and uvloop both set TCP_NODELAY: a message is sent when it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, PolonaiseError
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.address import HostPort, UnixPath, parse_address
from polonaise.host.filelimits import too_many_open

_BACKLOG = 1024


class RealNetwork:
    """The network of this machine."""

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections; see `Network.listen`."""
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            if isinstance(parsed, UnixPath):
                return await _kept(_listen_unix(loop, factory, parsed))
            return await _kept(_listen(loop, factory, parsed))
        except OSError as error:
            raise not_listening(address, error) from error
        except ValueError as error:
            raise BadOption(f"cannot listen on {address!r}: {error}") from error

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; see `Network.connect`."""
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            if isinstance(parsed, UnixPath):
                return await loop.create_unix_connection(factory, parsed.path)
            return await loop.create_connection(factory, parsed.host, parsed.port)
        except OSError as error:
            raise not_connected(address, error)  # noqa: B904 - it has a cause
        except ValueError as error:  # such as a name that can't be encoded
            raise BadOption(f"cannot connect to {address!r}: {error}") from error


def not_listening(address: str, error: OSError) -> PolonaiseError:
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


async def _listen(loop: asyncio.AbstractEventLoop, factory: ProtocolFactory, address: HostPort) -> _RealListener:
    """Listen on a TCP port."""
    server = await loop.create_server(factory, address.host, address.port, backlog=_BACKLOG)
    if not server.sockets:
        # The loop hides why it could not make a socket. Making one here raises the reason.
        server.close()
        socket.socket().close()
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return _RealListener(server, HostPort(address.host, server.sockets[0].getsockname()[1]))


async def _listen_unix(loop: asyncio.AbstractEventLoop, factory: ProtocolFactory, address: UnixPath) -> _RealListener:
    """Listen on a Unix socket."""
    bound = _bind_unix(address.path)
    try:
        return _RealListener(await loop.create_unix_server(factory, sock=bound, backlog=_BACKLOG), address)
    except BaseException:
        bound.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.path)
        raise


async def _kept(listening: Coroutine[Any, Any, _RealListener]) -> _RealListener:
    """Return the listener. If the caller is cancelled, close it, even if it begins to listen only afterwards."""
    task = asyncio.ensure_future(listening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_end_unheard)
        raise


def _end_unheard(task: asyncio.Task[_RealListener]) -> None:
    """Close a listener whose caller has gone away."""
    if not task.cancelled() and task.exception() is None:
        task.result().stop()


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
        self.stop()
        # uvloop lets go of the port in its next turn only.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Stop listening, from the loop's next turn on."""
        self._server.close()
        if isinstance(self._address, UnixPath):
            with contextlib.suppress(FileNotFoundError):
                # Another process may have taken the path over: its socket stays.
                if os.stat(self._address.path).st_ino == self._inode:
                    os.unlink(self._address.path)


def _bind_unix(path: str) -> socket.socket:
    """Bind a socket to the path, taken over from a dead process, never from a living one."""
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
        bound.bind(path)
    except (OSError, ValueError):
        bound.close()
        raise
    return bound
