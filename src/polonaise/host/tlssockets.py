"""The network of a process that has a TLS identity: TLS on every TCP connection. Unix sockets stay plain.

Connections are accepted here and not by the event loop's server, for two reasons: each begins with the TLS files as
they are at that time; and the first bytes of each are looked at, so that a peer without TLS can be told the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from typing import Any, Final, Protocol, runtime_checkable

from polonaise.errors import BadOption, PolonaiseError, TlsRequired
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.address import HostPort, parse_address
from polonaise.host.sockets import RealNetwork, not_connected, not_listening
from polonaise.host.tls import TlsIdentity, failures
from polonaise.host.tlsfaults import OPTIONS, handshake_fault, refusal_in, why_untrusted
from polonaise.host.tlsflow import TlsFlow

_log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""Seconds that an accepted peer may take to begin its handshake, and then again to finish it."""
_DIALLED_S: Final = 60.0
"""Seconds that the handshake with a dialled peer may take. Callers have deadlines of their own besides."""
_BACKLOG: Final = 1024
_TOGETHER_MAX: Final = 64
"""The most connections that are accepted in one turn of the event loop."""
UNPROVED_MAX: Final = 1024
"""The most handshakes that are under way at a listener, each of which holds up to 300 KiB. Further connections wait in
the system's backlog."""
_PAUSE_S: Final = 1.0
"""Seconds for which nothing is accepted after the system ran out of descriptors or memory."""
_WARNING_S: Final = 1.0
"""The least time, in seconds, between two warnings of refused peers: anybody may connect, as often as they like."""
_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection: a record of type handshake."""


@runtime_checkable
class BarringProtocol(Protocol):
    """A protocol object that can refuse its peer and tell it why."""

    def bar(self, error: PolonaiseError) -> None:
        """Refuse the peer with this error once it has said hello. To be called before the connection is made."""


class TlsNetwork(RealNetwork):
    """The network of this machine, with TLS on every TCP connection."""

    def __init__(self, identity: TlsIdentity) -> None:
        self._identity = identity

    @property
    def trouble(self) -> str:
        """What is wrong with the TLS files, for health documents; empty if nothing is. See `network_trouble`."""
        return self._identity.warning()

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections; see `Network.listen`. A peer without TLS is refused by `BarringProtocol.bar`."""
        parsed = parse_address(address)
        if not isinstance(parsed, HostPort):
            return await super().listen(address, factory)
        try:
            sockets = await _bound(parsed)
        except OSError as error:
            raise not_listening(address, error) from error
        except ValueError as error:
            raise BadOption(f"cannot listen on {address!r}: {error}") from error
        return _TlsListener(self._identity, sockets, parsed.host, factory)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; see `Network.connect`.

        Also raises `CertificateRefused` and `TlsNotSpoken`. The peer sees this side's certificate later, and may still
        refuse it then.
        """
        parsed = parse_address(address)
        if not isinstance(parsed, HostPort):
            return await super().connect(address, factory)
        told: list[ssl.SSLError] = []
        token = failures.set(told)
        try:
            _, flow = await asyncio.get_running_loop().create_connection(
                lambda: TlsFlow(factory),
                parsed.host,
                parsed.port,
                ssl=self._identity.dialling(),
                ssl_handshake_timeout=_DIALLED_S,
            )
            return flow, flow.protocol
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise handshake_fault(address, told[0] if told else error) from error
        except OSError as error:
            raise not_connected(address, error)  # noqa: B904 - it has a cause
        except ValueError as error:  # such as a name that can't be encoded
            raise BadOption(f"cannot connect to {address!r}: {error}") from error
        finally:
            failures.reset(token)


async def _bound(address: HostPort) -> list[socket.socket]:
    """Return listening sockets at every IP address of the host's name, on one port. Raises `OSError`, `ValueError`.

    IP addresses that this machine lacks are left out as long as one remains: `localhost` stands for ::1 even on
    machines without IPv6.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    port = address.port
    missing: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, kind, protocol, _, where in dict.fromkeys(found):
            try:
                each = _bound_to(family, kind, protocol, (where[0], port, *where[2:]))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = missing or error
                continue
            sockets.append(opened.enter_context(each))
            port = each.getsockname()[1]  # for port 0, the system chose one, which the other sockets take, too
            each.listen(_BACKLOG)
        if missing is not None and not sockets:
            raise missing
        opened.pop_all()
        return sockets


def _bound_to(family: int, kind: int, protocol: int, where: tuple[Any, ...]) -> socket.socket:
    """Return a socket that is bound to one IP address and port. Raises `OSError`."""
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


class _TlsListener:
    """The listening sockets of one address, and the connections whose handshake is under way."""

    def __init__(
        self, identity: TlsIdentity, sockets: list[socket.socket], host: str, factory: ProtocolFactory
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._identity = identity
        self._sockets = sockets
        self._address = str(HostPort(host, sockets[0].getsockname()[1]))
        self._factory = factory
        self._arriving: dict[asyncio.Task[None], bool] = {}
        """The tasks that accept connections, each with whether the node's protocol has its connection already."""
        self._unproved = 0
        """The number of connections whose handshake is under way: the node's protocol does not have them yet."""
        self._full: set[socket.socket] = set()
        """The listening sockets that accept nothing until fewer handshakes are under way."""
        self._resume: dict[socket.socket, asyncio.TimerHandle] = {}
        """The listening sockets that accept nothing for `_PAUSE_S`, each with the timer that ends the pause."""
        self._refusals = _Refusals(self._address)
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        """Stop accepting, and end the connections whose handshake is under way."""
        for each in self._sockets:
            self._loop.remove_reader(each)
            if each in self._resume:
                self._resume.pop(each).cancel()
            each.close()
        self._sockets = []
        self._full.clear()
        arriving = [task for task, arrived in self._arriving.items() if not arrived]
        for task in arriving:
            task.cancel()
        await asyncio.gather(*arriving, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that wait at a socket, and begin their handshakes."""
        for _ in range(_TOGETHER_MAX):
            if self._unproved >= UNPROVED_MAX:
                self._loop.remove_reader(listening)
                self._full.add(listening)
                return
            try:
                connected, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            connected.setblocking(False)
            task = self._loop.create_task(self._begin(connected, peer), name=f"TLS handshake at {self._address}")
            self._arriving[task] = False
            self._unproved += 1
            task.add_done_callback(self._done)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        """Note that the node's protocol has this connection, which may outlive the listener from now on."""
        if not self._arriving[task]:
            self._arriving[task] = True
            self._prove()

    def _done(self, task: asyncio.Task[None]) -> None:
        """Forget the task of a connection that was handed to the node's protocol, or has failed."""
        if not self._arriving.pop(task):
            self._prove()

    def _prove(self) -> None:
        """Count one handshake less as under way, and accept connections again if there were too many."""
        self._unproved -= 1
        if self._unproved < UNPROVED_MAX:
            for listening in self._full:
                self._loop.add_reader(listening, self._accept, listening)
            self._full.clear()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept nothing for `_PAUSE_S` after an error, as asyncio does: the system may be out of descriptors."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            _log.warning("%s can't accept a connection: %s", self._address, error)
        else:
            self._loop.call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": error, "socket": listening}
            )
        self._loop.remove_reader(listening)
        self._resume[listening] = self._loop.call_later(_PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        """Accept connections again after a pause."""
        self._resume.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    async def _begin(self, connected: socket.socket, peer: Any) -> None:
        """Do the handshake of one accepted connection and hand it to the node's protocol, or refuse it."""
        told: list[ssl.SSLError] = []
        failures.set(told)
        task = asyncio.current_task()
        assert task is not None

        def arrived() -> asyncio.Protocol:
            self._arrived(task)
            return self._factory()

        name = str(HostPort(*peer[:2]))
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await _first_byte(self._loop, connected)
            if first is None:
                connected.close()
            elif first == _HANDSHAKE:
                await self._loop.connect_accepted_socket(
                    lambda: TlsFlow(arrived),
                    connected,
                    ssl=self._identity.accepting(),
                    ssl_handshake_timeout=HANDSHAKE_S,
                )
            else:
                self._refusals.tell(name, "it speaks no TLS")
                self._arrived(task)
                await self._loop.connect_accepted_socket(self._barred, connected)
        except OSError as error:  # the base class of TLS errors and time-outs, too
            connected.close()
            self._refusals.tell(name, _why(told[0] if told else error))
        except BaseException:
            connected.close()
            raise

    def _barred(self) -> asyncio.Protocol:
        """Return a protocol that refuses a peer without TLS, and tells it why if the node's protocol can."""
        protocol = self._factory()
        if isinstance(protocol, BarringProtocol):
            protocol.bar(
                TlsRequired(
                    f"{self._address} takes TLS only: give this side its certificate with {OPTIONS} "
                    "(tls=polonaise.TlsFiles(…) in Python)"
                )
            )
            return protocol
        return _Refusing()


async def _first_byte(loop: asyncio.AbstractEventLoop, connected: socket.socket) -> int | None:
    """Return the first byte that the peer sends, leaving it unread; None if the peer leaves without one, as probes do.

    Returns 0 if the bytes are a hello without TLS. Raises `OSError`: a `TimeoutError` after `HANDSHAKE_S`.
    """
    readable = asyncio.Event()
    loop.add_reader(connected, readable.set)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await readable.wait()
    finally:
        loop.remove_reader(connected)
    first = connected.recv(3, socket.MSG_PEEK)
    if not first:
        return None
    # A hello without TLS may begin with the same byte as TLS, as a part of its length. But then its third byte is 0,
    # which that of TLS, a part of the version, never is.
    return first[0] if len(first) < 3 or first[2] else 0


def _why(error: OSError) -> str:
    """Return why an accepted connection failed before the node's protocol had it, as a phrase."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate {why_untrusted(error)}"
    refusal = refusal_in(error)
    if refusal is not None:
        return refusal.text
    if isinstance(error, ssl.SSLError):
        return {
            "PEER_DID_NOT_RETURN_A_CERTIFICATE": f"it shows no certificate: give it one with {OPTIONS}",
            "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
        }.get(error.reason or "", f"TLS failed: {error.reason}")
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return f"no handshake within {HANDSHAKE_S:g} s"
    return "it left during the handshake, as peers do that don't trust this node's certificate: its own log says why"


class _Refusing(asyncio.Protocol):
    """A protocol that closes its connection at once: the node's own protocol can't tell the peer why."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Refusals:
    """Logs refused peers, at most one in `_WARNING_S` seconds, and counts the others."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._told_s = float("-inf")
        self._untold = 0

    def tell(self, peer: str, why: str) -> None:
        """Log that a peer was refused, or only count it if another was logged just now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s < _WARNING_S:
            self._untold += 1
            return
        more = f" ({self._untold} more were refused before)" if self._untold else ""
        self._told_s, self._untold = now_s, 0
        _log.warning("%s refused a connection of %s: %s%s", self._address, peer, why, more)
