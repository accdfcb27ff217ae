"""The network of a process that has a TLS identity: TLS on every TCP connection. Unix sockets stay plain.

Each connection begins with the TLS files as they are at that time. The first bytes of each that is accepted are looked
at, so that a peer without TLS can be told the reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any, Final, Protocol, runtime_checkable

from polonaise.errors import BadOption, PolonaiseError, TlsRequired
from polonaise.host import Listener, Network, ProtocolFactory
from polonaise.host.acceptor import Acceptor
from polonaise.host.address import HostPort, parse_address
from polonaise.host.sockets import RealNetwork, dial, not_connected
from polonaise.host.tls import TlsIdentity, failures
from polonaise.host.tlsfaults import OPTIONS, handshake_fault, refusal_in, why_untrusted
from polonaise.host.tlsflow import TlsFlow

_log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""So long an accepted peer has to begin its handshake, and then again to finish it."""
_DIALLED_S: Final = 60.0
"""So long the handshake with a dialled peer may take; callers have deadlines besides."""
UNPROVED_MAX: Final = 1024
"""The most handshakes under way at a listener, of up to 300 KiB each; others wait in the system's backlog."""
_WARNING_S: Final = 1.0
"""The least time between two warnings of refused peers: anybody may connect, as often as they like."""
_HANDSHAKE: Final = 0x16


@runtime_checkable
class BarringProtocol(Protocol):
    """A protocol object that can refuse its peer and tell it why."""

    def bar(self, error: PolonaiseError) -> None:
        """Refuse the peer with this error once it has said hello. To be called before the connection is made."""


class TlsNetwork(RealNetwork):
    def __init__(self, identity: TlsIdentity) -> None:
        super().__init__()
        self._identity = identity

    @property
    def trouble(self) -> str:
        """What is wrong with the TLS files or soon will be (`network_trouble`)."""
        return self._identity.warning()

    @property
    def expires_s(self) -> float:
        """When the certificate in use expires, in seconds since 1970 (`certificate_expires_s`)."""
        self._identity.accepting()  # reads files that have changed
        return self._identity.own.expires_s

    @property
    def plain(self) -> Network:
        """The same network without TLS (`plain_network`)."""
        return RealNetwork()

    def _listener(self, sockets: list[socket.socket], address: HostPort, factory: ProtocolFactory) -> Listener:
        return _TlsListener(self._identity, sockets, str(address), factory)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection. The peer sees this side's certificate later, and may refuse it then."""
        parsed = parse_address(address)
        if not isinstance(parsed, HostPort):
            return await super().connect(address, factory)
        told: list[ssl.SSLError] = []
        token = failures.set(told)
        try:
            _, flow = await asyncio.get_running_loop().create_connection(
                lambda: TlsFlow(factory),
                sock=await dial(parsed),
                ssl=self._identity.dialling(),
                server_hostname=parsed.host,
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


class _TlsListener:
    def __init__(
        self, identity: TlsIdentity, sockets: list[socket.socket], address: str, factory: ProtocolFactory
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._identity = identity
        self._address = address
        self._factory = factory
        self._arriving: dict[asyncio.Task[None], bool] = {}
        """The tasks that accept connections, each with whether the node's protocol has its connection."""
        self._unproved = 0
        self._refusals = _Refusals(self._address)
        self._acceptor = Acceptor(sockets, self._address, self._accept)

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        self._acceptor.close()
        arriving = [task for task, arrived in self._arriving.items() if not arrived]
        for task in arriving:
            task.cancel()
        await asyncio.gather(*arriving, return_exceptions=True)

    def _accept(self, connected: socket.socket, peer: Any) -> None:
        task = self._loop.create_task(self._begin(connected, peer), name=f"TLS handshake at {self._address}")
        self._arriving[task] = False
        task.add_done_callback(self._done)
        self._unproved += 1
        if self._unproved == UNPROVED_MAX:
            self._acceptor.hold()

    def _arrived(self, task: asyncio.Task[None]) -> None:
        """Note that the node's protocol has this connection, which may outlive the listener."""
        if not self._arriving[task]:
            self._arriving[task] = True
            self._prove()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not self._arriving.pop(task):
            self._prove()

    def _prove(self) -> None:
        if self._unproved == UNPROVED_MAX:
            self._acceptor.go_on()
        self._unproved -= 1

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
    """Return the peer's first byte, leaving it unread; 0 for a hello without TLS, None if it leaves silently.

    Raises `OSError`: a `TimeoutError` after `HANDSHAKE_S`.
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
        return f"no handshake in time ({HANDSHAKE_S:g} s to begin it, and {HANDSHAKE_S:g} s to finish it)"
    # Both look the same from here: a loop ends a handshake that it refuses without a word of why.
    return (
        "it left during the handshake: it gave up waiting or was ended, or it does not trust this node's certificate, "
        "and then its own log says why"
    )


class _Refusing(asyncio.Protocol):
    """Closes its connection at once: the node's own protocol can't tell the peer why."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Refusals:
    """Logs refused peers, at most one in `_WARNING_S` seconds, and counts the others."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._told_s = float("-inf")
        self._untold = 0

    def tell(self, peer: str, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s < _WARNING_S:
            self._untold += 1
            return
        more = f" ({self._untold} more were refused before)" if self._untold else ""
        self._told_s, self._untold = now_s, 0
        _log.warning("%s refused a connection of %s: %s%s", self._address, peer, why, more)
