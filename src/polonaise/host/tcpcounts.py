"""What the kernel counts of a TCP connection, on systems that tell it (Linux)."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, NamedTuple

_INFO_BYTES: Final = 256
_RESENT_AT: Final = 100
"""The offset of `tcpi_total_retrans` in the kernel's `struct tcp_info`, which only ever grows at its end."""
_SENT_AT: Final = 156
"""The offset of `tcpi_data_segs_out` there."""
_NUMBER: Final = struct.Struct("=I")


class SegmentCounts(NamedTuple):
    """How many pieces of data a side of a connection has sent."""

    sent: int
    """With those that were sent again."""
    resent: int
    """Sent again, because nothing said that they arrived."""


def segment_counts(transport: asyncio.Transport | None) -> SegmentCounts | None:
    """Return what was sent on a connection; None where that is not told, as of Unix sockets."""
    connected = None if transport is None else transport.get_extra_info("socket")
    if connected is None or not hasattr(socket, "TCP_INFO") or connected.family == socket.AF_UNIX:
        return None
    try:
        raw = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # it has just been closed
        return None
    if len(raw) < _SENT_AT + _NUMBER.size:
        return None
    return SegmentCounts(_NUMBER.unpack_from(raw, _SENT_AT)[0], _NUMBER.unpack_from(raw, _RESENT_AT)[0])
