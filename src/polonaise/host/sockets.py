"""TCP (with TCP_NODELAY) and Unix sockets through the running event loop, with `OSError` and `ValueError` translated
here.

Connections are accepted here, too: the event loops' own servers would spin in a process without descriptors left.
uvloop's may lose its spare descriptor to another thread for ever, and asyncio's sets a new timer for each failed try.

What is read goes into one buffer per thread, from which what has arrived is copied. asyncio's own loop, and with TLS
uvloop, too, asks for 256 KiB of memory for each read, and gives back all but what has arrived, in pieces too small for
a further read: the heap of a client that uses 5 MB grew to 16 MB. It costs half as much time again for each small
message, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, PolonaiseError, TooManyOpenFiles
from polonaise.host import Identity, Listener, Network, ProtocolFactory, unreachable
from polonaise.host.address import HostPort, UnixPath, parse_address
from polonaise.host.files import identity, too_many_open
from polonaise.host.names import names

_log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""The most connections that wait in the system, at one socket."""
_TOGETHER_MAX: Final = 64
_PAUSE_S: Final = 0.1
"""Nothing is accepted for so long after a failure: the socket stays readable, so that the loop would spin."""
_WARNING_S: Final = 10.0

Accepted: TypeAlias = Callable[[socket.socket, Any], None]
"""Takes over a connected socket, with the peer's address."""


async def bind_port(address: HostPort) -> list[socket.socket]:
    """Return listening sockets at every IP address of the host's name, on one port. Raises `OSError`, `ValueError`.

    Addresses that this machine lacks are left out as long as one remains: `localhost` stands for ::1 even without IPv6.
    """
    resolved = await names.addresses(address, socket.AI_PASSIVE)
    port = address.port
    missing: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, kind, protocol, _, where in dict.fromkeys(resolved):
            try:
                each = _bound_to(family, kind, protocol, (where[0], port, *where[2:]))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = missing or error
                continue
            sockets.append(opened.enter_context(each))
            port = each.getsockname()[1]  # for port 0, the system chose one, which the other sockets take, too
            each.listen(BACKLOG)
        if missing is not None and not sockets:
            raise missing
        opened.pop_all()
        return sockets


def _bound_to(family: int, kind: int, protocol: int, where: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


class Acceptor:
    """Hands each connection that arrives at some listening sockets to a function, until it is closed. While there is no
    descriptor left, it accepts and closes new connections, so that a peer tries again or goes elsewhere instead of
    waiting. It gives up a spare descriptor for that; if another thread takes it, they wait in the system."""

    def __init__(self, sockets: list[socket.socket], address: str, accepted: Accepted) -> None:
        """The sockets listen and don't block; `address` is for the log."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._address = address
        self._accepted = accepted
        self._spare: int | None = None
        self._refill()
        self._resume: asyncio.TimerHandle | None = None
        self._held = False
        self._warned_s = float("-inf")
        self._listen()

    def hold(self) -> None:
        """Accept nothing until `go_on`."""
        self._held = True
        self._ignore()

    def go_on(self) -> None:
        self._held = False
        if self._resume is None:
            self._listen()

    def close(self) -> None:
        """Stop accepting, and close the sockets. Connections that were handed over stay."""
        self._ignore()
        if self._resume is not None:
            self._resume.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = []
        self._give_up_spare()

    def _listen(self) -> None:
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _ignore(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections that wait at a socket; what is left comes in the loop's next turn."""
        for _ in range(_TOGETHER_MAX):
            if self._held or not self._sockets:  # by the function that took over the connection before
                return
            try:
                connected, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn(error)
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(listening)
                self._pause()
                return
            connected.setblocking(False)
            if connected.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):  # the peer may have left
                    # Not every loop does this for a socket that it did not accept itself.
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted(connected, peer)

    def _turn_away(self, listening: socket.socket) -> None:
        """Close the connections that wait at a socket, with the spare descriptor for each in turn."""
        if self._spare is None:
            return
        self._give_up_spare()
        with contextlib.suppress(OSError):  # there are no more of them, or another thread has taken the descriptor
            for _ in range(BACKLOG):
                listening.accept()[0].close()
        self._refill()

    def _refill(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _give_up_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _pause(self) -> None:
        self._ignore()
        if self._resume is None:
            self._resume = self._loop.call_later(_PAUSE_S, self._end_pause)

    def _end_pause(self) -> None:
        self._resume = None
        self._refill()
        if not self._held:
            self._listen()

    def _warn(self, error: OSError) -> None:
        if self._loop.time() >= self._warned_s + _WARNING_S:
            self._warned_s = self._loop.time()
            what = f"{self._address} can accept no connection, which is tried again"
            _log.warning("%s", too_many_open(error, what) or f"{what}: {error}")


_READ_BYTES: Final = 256 * 1024


class _Buffers(threading.local):
    """One for each thread: a read lets other threads go on, which may read for loops of their own."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


buffers: Final = _Buffers()
"""Copy what is read into its `view` before anything else happens in the thread."""


class Receiver(asyncio.BufferedProtocol):
    __slots__ = ("protocol",)

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffers.view

    def buffer_updated(self, nbytes: int) -> None:
        # A copy, made before anything else happens: the next read of this thread, on any connection, writes over it.
        self.protocol.data_received(bytes(buffers.view[:nbytes]))


def receiver(protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop) -> asyncio.Protocol | Receiver:
    """Return what this loop is to be given so that the protocol receives: uvloop reads into a buffer of its own."""
    return Receiver(protocol) if isinstance(loop, BaseSelectorEventLoop) else protocol


def received_by(given: asyncio.Protocol | Receiver) -> asyncio.Protocol:
    """Return the protocol for which `receiver` returned this."""
    return given.protocol if isinstance(given, Receiver) else given


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
    """Return a socket that is connected to the address, and does not block. Raises `OSError`, also for a connection
    that has met itself, see `refuse_itself`: that has to be known before the first byte is sent, and asyncio's own way
    shows the socket only after the handshake of TLS."""
    errors: list[OSError] = []
    for family, kind, number, _, place in await names.addresses(address):
        try:
            return refuse_itself(await _connected(socket.socket(family, kind, number), place))
        except OSError as error:  # also if this machine has no such family: a name may have addresses of both
            errors.append(error)
    texts = list(dict.fromkeys(map(str, errors)))
    raise errors[0] if len(texts) == 1 else OSError("; ".join(texts))


async def _connected(dialling: socket.socket, place: Any) -> socket.socket:
    try:
        dialling.setblocking(False)
        await asyncio.get_running_loop().sock_connect(dialling, place)
    except BaseException:  # also when cancelled: only this call can close it
        dialling.close()
        raise
    return dialling


def refuse_itself(connected: socket.socket) -> socket.socket:
    """Return the socket of a TCP connection; close it, and raise `ConnectionRefusedError`, if it is both ends of it.
    Where nobody listens at a port of those that the system gives to connecting sockets, the socket that connects may be
    given that very port. Then it is connected to itself, and reads what it writes."""
    try:
        is_itself = connected.getsockname() == connected.getpeername()
    except OSError:
        return connected  # the peer has ended it already, which whoever reads will see
    if is_itself:
        connected.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there: the connection has met itself")
    return connected


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
    """The listening sockets of one address, and the connections that the event loop is about to take over. A Unix
    socket that a cleaner of old files removes is made again."""

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
            self._shown = os.path.realpath(address.path)  # which may lead through a descriptor, see `SocketDirectory`
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
        its whole directory may be being removed."""
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


_DESCRIPTORS: Final = "/proc/self/fd"
_PATH_BYTES_MAX: Final = 103
"""The longest path that every system takes; Linux takes four bytes more."""


class SocketDirectory:
    """The network within one directory, however long or deep its path: addresses are `unix:NAME`. A socket's address
    holds about a hundred bytes of path (`sockaddr_un`). Where the system shows a process its own descriptors as files,
    the path leads through the directory's descriptor, and is always short. And the directory may be moved, or have
    another path in another process."""

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
