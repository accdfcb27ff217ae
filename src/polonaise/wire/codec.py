"""The codec of messages: declared as dataclasses, they are turned into frames, as bytes, and back.

A message lists its fields with their wire types: those of fixed size first, then the variable ones, then the payload::

    @message(16)
    class Credit(Message):
        bytes: I64

Decoding checks every length against what has arrived, and that nothing is left over.

A frame is the envelope of every message: 24 bytes, little-endian, before its head and its payload::

     0 length u32, of the whole frame     4 message type u16 · flags u16 (0)     8 request number u32
    12 partition i32, -1 for none        16 length of the head u32              20 crc32 u32

The CRC is of the 20 bytes before it, followed by the head. The *head* holds a message's fields and is covered by the
frame's CRC; what the *payload* after it holds, such as batches and bodies, has checksums of its own and is not summed
twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, cast, dataclass_transform, get_origin

from polonaise.checksum import crc32
from polonaise.errors import FrameDamaged, FrameTooLarge, ProtocolError
from polonaise.redaction import redacted

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


def encode_frame(
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


U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
I32 = Annotated[int, "i"]
I64 = Annotated[int, "q"]
Key = Annotated[bytes, "16s"]
Text = Annotated[str, "text"]
"""UTF-8, at most 65,535 bytes. Longer text is cut; characters without UTF-8 (stray bytes) become `?`."""
Blob = Annotated[bytes, "blob"]
"""Bytes of any length that the frame holds."""
_WIRE: Final = {name: kind.__metadata__[0] for name, kind in globals().items() if get_origin(kind) is Annotated}
"""How each type of a field travels: in a letter of `struct`, or as one of variable length."""
_TEXT_BYTES_MAX = 65_535


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """The base of all messages. After its fields a message may have a `payload`, such as batches or bodies."""

    TYPE: ClassVar[int] = 0
    _FIXED: ClassVar[struct.Struct] = struct.Struct("<")
    _FIXED_NAMES: ClassVar[tuple[str, ...]] = ()
    _VARIABLE: ClassVar[tuple[tuple[str, str], ...]] = ()
    _HAS_PAYLOAD: ClassVar[bool] = False

    # Here, and not made for each of the classes: of what a node's process takes to start, that would be a good part.
    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))

    def __repr__(self) -> str:
        told = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"{type(self).__qualname__}({told})"

    def frame(self, *, request: int = 0, partition: int = NO_PARTITION) -> list[Buffer]:
        """Return the buffers of a frame that carries this message."""
        head = self._FIXED.pack(*[getattr(self, name) for name in self._FIXED_NAMES])
        for name, kind in self._VARIABLE:
            head += _pack_variable(kind, getattr(self, name))
        return encode_frame(self.TYPE, request, partition, head, getattr(self, "payload", ()))


_KINDS: dict[int, type[Message]] = {}
_M = TypeVar("_M", bound=Message)


@dataclass_transform()
def message(number: int) -> Callable[[type[_M]], type[_M]]:
    """Declare a message type under its number on the wire."""

    def declare(cls: type[_M]) -> type[_M]:
        made = dataclass(slots=True, eq=False, repr=False)(cls)
        # By name: `get_type_hints` would compile each of them.
        wire = {f.name: _WIRE[str(f.type)] for f in fields(made) if f.name != "payload"}
        fixed = [name for name, kind in wire.items() if kind not in ("text", "blob")]
        made.TYPE = number
        made._FIXED = struct.Struct("<" + "".join(wire[name] for name in fixed))
        made._FIXED_NAMES = tuple(fixed)
        made._VARIABLE = tuple((name, kind) for name, kind in wire.items() if kind in ("text", "blob"))
        made._HAS_PAYLOAD = "payload" in made.__dataclass_fields__
        in_order = [*fixed, *(name for name, _ in made._VARIABLE), *(["payload"] if made._HAS_PAYLOAD else [])]
        assert [f.name for f in fields(made)] == in_order, f"{cls.__name__}: fixed, then variable, then the payload"
        assert number not in _KINDS, f"two messages numbered {number}"
        _KINDS[number] = made
        return made

    return declare


def payload() -> Any:
    """Declare a payload: buffers in a list. A received one is a list of one view, or empty."""
    return field(default_factory=list)


Payload = Sequence[Buffer]


def decode(received: Frame) -> Message:
    """Decode the message in a frame.

    Raises `ProtocolError` for an unknown message type, and for fields, text or payload that do not fit it.
    """
    kind = _KINDS.get(received.type)
    if kind is None:
        raise ProtocolError(f"unknown message type {received.type}")
    head = received.head
    fixed = kind._FIXED
    if len(head) < fixed.size:
        raise ProtocolError(f"{kind.__name__} is cut short")
    values: list[Any] = [*fixed.unpack_from(head)]
    offset = fixed.size
    for _, form in kind._VARIABLE:
        value, offset = _unpack_variable(form, head, offset, kind.__name__)
        values.append(value)
    if offset != len(head):
        raise ProtocolError(f"{len(head) - offset} bytes left over in {kind.__name__}")
    if kind._HAS_PAYLOAD:
        values.append([received.payload] if len(received.payload) else [])
    elif len(received.payload):
        raise ProtocolError(f"{kind.__name__} takes no payload")
    return kind(*values)


def kinds() -> dict[int, type[Message]]:
    return dict(_KINDS)


def _pack_variable(kind: str, value: str | bytes) -> bytes:
    if kind == "text":
        raw = cast(str, value).encode(errors="replace")
        if len(raw) > _TEXT_BYTES_MAX:
            raw = redacted(value).encode(errors="replace")  # cut before, half a password would remain
            raw = raw[:_TEXT_BYTES_MAX].decode(errors="ignore").encode()  # never within a character
        return len(raw).to_bytes(2, "little") + raw
    raw = cast(bytes, value)
    return len(raw).to_bytes(4, "little") + raw


def _unpack_variable(kind: str, head: memoryview, offset: int, name: str) -> tuple[str | bytes, int]:
    width = 2 if kind == "text" else 4
    start = offset + width
    length = int.from_bytes(head[offset:start], "little")
    end = start + length
    if start > len(head) or end > len(head):
        raise ProtocolError(f"{name} is cut short")
    raw = bytes(head[start:end])
    if kind == "blob":
        return raw, end
    try:
        return raw.decode(), end
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{name} holds text that is not UTF-8") from error
