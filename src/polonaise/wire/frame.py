"""The frame: the envelope of every message, with a length, a type, a request number, a partition and a checksum.

Layout, 24 bytes, little-endian::

     0 length u32, of the whole frame     4 message type u16 · flags u16 (0)     8 request number u32
    12 partition i32, -1 for none        16 length of the head u32              20 crc32 u32

The CRC is of the 20 bytes before it, followed by the head.

The *head* holds a message's fields and is covered by the frame's CRC; what the *payload* after it holds, such as
batches and bodies, has checksums of its own and is not summed twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import FrameDamaged, FrameTooLarge, ProtocolError

HEADER: Final = struct.Struct("<IHHIiII")
_SUMMED: Final = struct.Struct("<IHHIiI")
HEADER_BYTES: Final = HEADER.size
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest that is accepted after the hello, unless settings give another bound."""
HELLO_BYTES_MAX: Final = 4096
"""The largest that is accepted before the hello."""
NO_PARTITION: Final = -1
"""In a frame that is about no partition."""

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """A frame that has arrived whole, its checksum verified."""

    type: int
    """The number of the message type."""
    request: int
    """The request number; 0 for none."""
    partition: int
    """The partition that the message is about; NO_PARTITION for none."""
    head: memoryview
    payload: memoryview
    """With checksums of its own."""


def encode(
    message_type: int, request: int, partition: int, head: bytes, payload: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Return the buffers of a frame; payload buffers are passed on without a copy."""
    length = HEADER_BYTES + len(head) + sum(map(len, payload))
    summed = _SUMMED.pack(length, message_type, 0, request, partition, len(head))
    crc = crc32(head, crc32(summed))
    return [summed + crc.to_bytes(4, "little") + head, *payload]


class Frames:
    """Cuts a stream of bytes into frames.

    It keeps only bytes that belong to no frame returned so far, and waits for none longer than `bytes_max`. Frames that
    arrive whole, with nothing kept before them, are not copied.
    """

    __slots__ = ("_kept", "_needed", "bytes_max")

    def __init__(self, bytes_max: int = HELLO_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._kept = bytearray()
        self._needed = HEADER_BYTES

    @property
    def kept_bytes(self) -> int:
        return len(self._kept)

    def feed(self, chunk: bytes | bytearray) -> list[Frame]:
        """Return the frames that this chunk completes. Raises `ProtocolError`; the stream is useless after that.

        A frame above the limit behind others is left for the next call: the limit may rise with those others (after a
        hello). So call again with `b""` until nothing is returned.
        """
        if self._kept:
            self._kept += chunk
            if len(self._kept) < self._needed:
                return []
            chunk, self._kept = self._kept, bytearray()
        frames: list[Frame] = []
        view = memoryview(chunk)
        offset, end = 0, len(chunk)
        while end - offset >= HEADER_BYTES:
            header = HEADER.unpack_from(chunk, offset)
            length = header[0]
            if length > self.bytes_max:
                if frames:
                    break
                raise FrameTooLarge(
                    f"a frame of {length} bytes; this side takes {self.bytes_max} at most from this peer"
                )
            if length < HEADER_BYTES:
                raise FrameDamaged(f"a frame of {length} bytes is shorter than its header")
            if end - offset < length:
                self._keep(chunk, offset, length)
                return frames
            frames.append(_open(view[offset : offset + length], header))
            offset += length
        if offset < end:
            self._keep(chunk, offset, HEADER_BYTES)
        return frames

    def _keep(self, chunk: bytes | bytearray, offset: int, needed: int) -> None:
        self._kept += memoryview(chunk)[offset:]
        self._needed = needed


def _open(view: memoryview, header: tuple[int, ...]) -> Frame:
    """Verify a whole frame, the checksum first: a flag set on the way is damage, and no unknown version."""
    _, message_type, flags, request, partition, head_bytes, crc = header
    end = HEADER_BYTES + head_bytes
    if end > len(view):
        raise FrameDamaged(f"a frame of {len(view)} bytes is too short for its header and a head of {head_bytes} bytes")
    head = view[HEADER_BYTES:end]
    if crc32(head, crc32(view[:20])) != crc:
        raise FrameDamaged("the checksum of a frame does not fit")
    if flags:
        raise ProtocolError(f"unknown frame flags {flags:#x}")
    return Frame(message_type, request, partition, head, view[end:])
