"""The codec of messages: declared as dataclasses, they are turned into bytes and back.

A message lists its fields with their wire types: those of fixed size first, then the variable ones, then the payload::

    @message(16)
    class Credit(Message):
        bytes: I64

Decoding checks every length against what has arrived, and that nothing is left over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform, get_type_hints

from polonaise.errors import ProtocolError
from polonaise.redaction import redacted
from polonaise.wire import frame
from polonaise.wire.frame import NO_PARTITION, Buffer, Frame

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
_TEXT_BYTES_MAX = 65_535


@dataclass(slots=True)
class Message:
    """The base of all messages. After its fields a message may have a `payload`, such as batches or bodies."""

    TYPE: ClassVar[int] = 0
    _FIXED: ClassVar[struct.Struct] = struct.Struct("<")
    _FIXED_NAMES: ClassVar[tuple[str, ...]] = ()
    _VARIABLE: ClassVar[tuple[tuple[str, str], ...]] = ()
    _HAS_PAYLOAD: ClassVar[bool] = False

    def frame(self, *, request: int = 0, partition: int = NO_PARTITION) -> list[Buffer]:
        """Return the buffers of a frame that carries this message."""
        head = self._FIXED.pack(*[getattr(self, name) for name in self._FIXED_NAMES])
        for name, kind in self._VARIABLE:
            head += _pack_variable(kind, getattr(self, name))
        return frame.encode(self.TYPE, request, partition, head, getattr(self, "payload", ()))


_KINDS: dict[int, type[Message]] = {}
_M = TypeVar("_M", bound=Message)


@dataclass_transform()
def message(number: int) -> Callable[[type[_M]], type[_M]]:
    """Declare a message type under its number on the wire."""

    def declare(cls: type[_M]) -> type[_M]:
        made = dataclass(slots=True)(cls)
        hints = get_type_hints(made, include_extras=True)
        wire = {f.name: hints[f.name].__metadata__[0] for f in fields(made) if f.name != "payload"}
        fixed = [name for name, kind in wire.items() if kind not in ("text", "blob")]
        made.TYPE = number
        made._FIXED = struct.Struct("<" + "".join(wire[name] for name in fixed))
        made._FIXED_NAMES = tuple(fixed)
        made._VARIABLE = tuple((name, kind) for name, kind in wire.items() if kind in ("text", "blob"))
        made._HAS_PAYLOAD = "payload" in hints
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
