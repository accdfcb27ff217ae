"""TCP (with TCP_NODELAY) and Unix sockets through the running event loop, with `OSError` and `ValueError` translated
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, PolonaiseError
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.acceptor import BACKLOG, Acceptor, bind_port
from polonaise.host.address import HostPort, UnixPath, parse_address
from polonaise.host.filelimits import too_many_open
from polonaise.host.files import identity
from polonaise.host.receiving import Receiver, received_by, receiver

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""Between two looks of a listener whether its Unix socket is in its place."""


class RealNetwork:
    def __init__(self) -> None:
        self._listeners: set[_RealListener] = set()

    @property
    def unreachable(self) -> str:
        return next((listener.trouble for listener in self._listeners if listener.trouble), "")

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        parsed = parse_address(address)
        try:
            if isinstance(parsed, UnixPath):
                return _RealListener([_bind_unix(parsed.path)], parsed, factory, self._listeners)
            sockets = await bind_port(parsed)
            return self._listener(sockets, HostPort(parsed.host, sockets[0].getsockname()[1]), factory)
        except OSError as error:
            raise _not_listening(address, error) from error
        except ValueError as error:
            raise BadOption(f"cannot listen on {address!r}: {error}") from error

    def _listener(self, sockets: list[socket.socket], address: HostPort, factory: ProtocolFactory) -> Listener:
        return _RealListener(sockets, address, factory, self._listeners)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        parsed = parse_address(address)
        loop = asyncio.get_running_loop()

        def made() -> asyncio.Protocol | Receiver:
            return receiver(factory(), loop)

        try:
            if isinstance(parsed, UnixPath):
                transport, given = await loop.create_unix_connection(made, parsed.path)
            else:
                transport, given = await loop.create_connection(made, sock=await dial(parsed))
            return transport, received_by(given)
        except OSError as error:
            raise not_connected(address, error)  # noqa: B904 - it has a cause
        except ValueError as error:  # such as a name that can't be encoded
            raise BadOption(f"cannot connect to {address!r}: {error}") from error


async def dial(address: HostPort) -> socket.socket:
    """Return a socket that is connected to the address, and does not block.

    Raises `OSError`, also for a connection that has met itself, see `refuse_itself`: that has to be known before the
    first byte is sent, and asyncio's own way shows the socket only after the handshake of TLS.
    """
    loop = asyncio.get_running_loop()
    try:  # what is no name is not looked up, which would take a thread
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    errors: list[OSError] = []
    for family, kind, number, _, place in found:
        dialled = socket.socket(family, kind, number)
        try:
            dialled.setblocking(False)
            await loop.sock_connect(dialled, place)
            refuse_itself(dialled)
        except OSError as error:
            dialled.close()
            errors.append(error)
        except BaseException:
            dialled.close()
            raise
        else:
            return dialled
    raise errors[0] if len(errors) == 1 else OSError("; ".join(dict.fromkeys(map(str, errors))))


def refuse_itself(connected: socket.socket) -> None:
    """Raise `ConnectionRefusedError` if both ends of a TCP connection are this one socket.

    Where nobody listens at a port of those that the system gives to connecting sockets, the socket that connects may be
    given that very port. Then it is connected to itself, and reads what it writes.
    """
    try:
        is_itself = connected.getsockname() == connected.getpeername()
    except OSError:
        return  # the peer has ended it already, which whoever reads will see
    if is_itself:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there: the connection has met itself")


def _not_listening(address: str, error: OSError) -> PolonaiseError:
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
    """The listening sockets of one address, and the connections that the event loop is about to take over.

    A Unix socket that a cleaner of old files removes is made again.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        address: HostPort | UnixPath,
        factory: ProtocolFactory,
        registry: set[_RealListener],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._factory = factory
        self._arriving: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(sockets, str(address), self._accept)
        self.trouble = ""
        self._registry = registry
        registry.add(self)
        self._missing = False
        self._next_look: asyncio.TimerHandle | None = None
        if isinstance(address, UnixPath):
            self._shown = os.path.realpath(address.path)  # which may lead through a descriptor, see `socketdirectory`
            self._identity = identity(address.path)
            self._mode = stat.S_IMODE(os.stat(address.path).st_mode)
            self._next_look = self._loop.call_later(_LOOK_S, self._look, address.path)

    @property
    def address(self) -> str:
        return str(self._address)

    async def close(self) -> None:
        self._registry.discard(self)
        self._acceptor.close()
        if self._next_look is not None:
            self._next_look.cancel()
        if isinstance(self._address, UnixPath):
            with contextlib.suppress(FileNotFoundError):
                # Another process may have taken the path over: its socket stays.
                if identity(self._address.path) == self._identity:
                    os.unlink(self._address.path)

    def _look(self, path: str) -> None:
        """Make the socket again if its name leads to it no more, as the second look in a row finds: at the first one
        its whole directory may be being removed.
        """
        self._next_look = self._loop.call_later(_LOOK_S, self._look, path)
        try:
            if identity(path) == self._identity:
                self._mode = stat.S_IMODE(os.stat(path).st_mode)
                self._missing, self.trouble = False, ""
                return
        except OSError:
            return  # not to be read at the moment: that does not mean it is gone
        if not self._missing:
            self._missing = True
            return
        try:
            made = _bind_unix(path)
        except OSError as error:
            before = self.trouble
            self.trouble = (
                f"nobody can connect to {self._shown}: this socket was removed or replaced while it was used, and "
                f"can't be made again ({error.strerror or error}): put its directory back, or end what listens there"
            )
            if not before:
                _log.error("%s", self.trouble)
            return
        self._acceptor.close()
        self._acceptor = Acceptor([made], self.address, self._accept)
        with contextlib.suppress(OSError):  # removed once more
            os.chmod(path, self._mode)
        self._identity = identity(path)
        self._missing, self.trouble = False, ""
        _log.warning(
            "the socket %s was removed while it was used, and was made again: keep cleaners of old files away from it",
            self._shown,
        )

    def _accept(self, connected: socket.socket, peer: Any) -> None:
        task = self._loop.create_task(self._begin(connected), name=f"connection at {self._address}")
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _begin(self, connected: socket.socket) -> None:
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
