"""Flow control of writes over TLS: data waits unencrypted, and is encrypted only as fast as the peer takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from polonaise.host import Buffer
from polonaise.host.receiving import buffers

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

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

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

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

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
