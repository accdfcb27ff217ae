"""The network of a process that has a TLS identity: TLS on every TCP connection. Unix sockets stay plain.

Each connection begins with the TLS files as they are at that time. The first bytes of each that is accepted are looked
at, so that a peer without TLS can be told the reason. What is written waits unencrypted, and is encrypted only as fast
as the peer takes it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast, runtime_checkable

from polonaise.errors import BadOption, PolonaiseError, TlsRequired
from polonaise.host import Buffer, Listener, Network, ProtocolFactory
from polonaise.host.address import HostPort, parse_address
from polonaise.host.sockets import Acceptor, RealNetwork, buffers, dial, not_connected
from polonaise.host.tls import OPTIONS, TlsIdentity, failures, handshake_fault, refusal_in, why_untrusted

_PIECE_BYTES: Final = 65_536
"""The most bytes that are encrypted at once, and that the transport below may count as unsent before it asks for a
pause."""


class TlsFlow(asyncio.Transport, asyncio.BufferedProtocol):
    """A transport between a node's protocol (above) and the event loop's TLS transport (below), which bounds writes.

    A loop's TLS transport encrypts a whole write at once and hands it to the socket's transport, whose buffer it does
    not count: nobody is asked to wait, however much a peer leaves unread. Here a write waits in a queue, which is
    counted, and goes down in pieces while the transport below asks for no pause. Below may be about 250 KiB, encrypted,
    of which the socket's half is not counted.

    The protocol is made once the handshake is done, so no protocol is told of a handshake that fails.
    """

    def __init__(self, factory: Callable[[], asyncio.Protocol]) -> None:
        super().__init__()
        self._factory = factory
        self.protocol: asyncio.Protocol
        """Unset before the connection is made."""
        self._below: asyncio.Transport
        self._queue: deque[bytes | memoryview] = deque()
        self._queued_bytes = 0
        self._high = _PIECE_BYTES
        self._low = _PIECE_BYTES // 4
        self._must_wait = False
        """Whether the transport below has asked for a pause."""
        self._writers_wait = False
        """Whether the node's protocol was asked to pause writing."""
        self._closing = False
        self._ended = False
        """Whether the queue was dropped, or was sent to its end after `close`."""

    # ------------------------------------------------------------------ the transport, for the protocol above

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send data, or queue what has to wait, as a copy if its owner may change it."""
        if self._queue or self._must_wait or len(data) > _PIECE_BYTES:
            self.writelines((data,))
        elif not self._closing and not self._ended:
            self._below.write(data)
            self._tell_writers()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._closing or self._ended:
            return
        for data in list_of_data:
            kept = data if isinstance(data, bytes) or _is_constant(data) else bytes(data)
            if kept:
                self._queue.append(memoryview(kept) if len(kept) > _PIECE_BYTES else cast("bytes | memoryview", kept))
                self._queued_bytes += len(kept)
        self._send_on()

    def get_write_buffer_size(self) -> int:
        """Return how many written bytes were not yet given to the socket's transport."""
        return self._queued_bytes + self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ask the protocol to wait when more than `high` bytes are unsent, and to go on when no more than `low` are."""
        if high is None:
            high = _PIECE_BYTES if low is None else 4 * low
        low = high // 4 if low is None else low
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        # The transport below must pause no later than the protocol above: its resuming is what ends both pauses.
        self._below.set_write_buffer_limits(high=max(1, min(_PIECE_BYTES, high)))
        self._tell_writers()

    def close(self) -> None:
        """Close once all written data has gone out. Data that the peer still sends is dropped."""
        if not self._closing:
            self._closing = True
            if not self._queue:
                self._below.close()

    def abort(self) -> None:
        """Close at once, and drop data that has not gone out."""
        self._closing = True
        self._drop()
        self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    # ------------------------------------------------------------------ the protocol, for the transport below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._below.set_write_buffer_limits(high=_PIECE_BYTES)
        self.protocol = self._factory()
        self.protocol.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffers.view

    def buffer_updated(self, nbytes: int) -> None:
        if not self._closing:
            self.protocol.data_received(bytes(buffers.view[:nbytes]))

    def eof_received(self) -> None:
        """Drop the queue, and tell the protocol: TLS closes both directions at once, so nothing more can be sent."""
        self._drop()
        self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._must_wait = True

    def resume_writing(self) -> None:
        self._must_wait = False
        self._send_on()

    # ------------------------------------------------------------------ the queue

    def _send_on(self) -> None:
        """Give the queue to the transport below, piece by piece, until that asks for a pause."""
        while self._queue and not self._must_wait:
            pieces, room = [], _PIECE_BYTES
            while self._queue and room:
                piece = self._queue.popleft()
                if len(piece) > room:
                    self._queue.appendleft(piece[room:])
                    piece = piece[:room]
                pieces.append(piece)
                room -= len(piece)
            self._queued_bytes -= _PIECE_BYTES - room
            self._below.writelines(pieces)
        if self._closing and not self._ended:
            if not self._queue:
                self._ended = True
                self._below.close()
        else:
            self._tell_writers()

    def _tell_writers(self) -> None:
        unsent = self.get_write_buffer_size()
        if not self._writers_wait:
            if unsent > self._high:
                self._writers_wait = True
                self.protocol.pause_writing()
        # With an empty queue and no pause below, nothing would call this again when the transport below has sent more.
        elif unsent <= self._low or not (self._queue or self._must_wait):
            self._writers_wait = False
            self.protocol.resume_writing()

    def _drop(self) -> None:
        self._ended = True
        self._queue.clear()
        self._queued_bytes = 0


def _is_constant(data: Buffer) -> bool:
    """Whether nobody can change `data`, and its items are of one byte."""
    return isinstance(data, memoryview) and isinstance(data.obj, bytes) and data.itemsize == 1


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
    """Return the peer's first byte, leaving it unread; 0 for a hello without TLS, None if it leaves silently. Raises
    `OSError`: a `TimeoutError` after `HANDSHAKE_S`."""
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
