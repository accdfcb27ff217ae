"""Leases: names that one holder at a time has for a while, and the messages by which clients hold and release them.

A lease is granted by the owner of a partition, in memory. The rows are in `docs/formats.md`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from polonaise.errors import ProtocolError
from polonaise.wire.codec import I64, U8, U32, Blob, Message, Text, message

LEASES_VERSION: Final = 4
"""The first version of the protocol with leases."""
DURATION_MS_MIN: Final = 1_000
DURATION_MS_MAX: Final = 60_000
"""The bounds of a lease's time."""
NAME_BYTES_MAX: Final = 255
NOTE_BYTES_MAX: Final = 1_024
ASKED_MAX: Final = 1_024
"""The most names in one request."""


class LeaseAnswer(enum.IntEnum):
    """The owner's answer for one name of a `HoldLeases`."""

    HELD = 0
    """The holder has it for the duration that it asked for, from the moment at which it sent the request."""
    TAKEN = 1
    TOO_EARLY = 2
    """This owner is new, and does not know yet whether another holder has it."""
    LOST = 3
    """The holder asked to go on with one that has run out, or was released."""
    FULL = 4
    OTHER_DURATION = 5
    """It is held for another duration than the one asked for."""


@message(45)
class HoldLeases(Message):
    """Asks for leases, or to go on with those that the holder has, and for a list of leases."""

    holder: I64
    """A number that no other holder has."""
    duration_ms: U32
    lists: U8
    """1 to have the leases listed whose names begin with `prefix`; else 0."""
    asked: Blob
    """The leases that are asked for, as `encode_asked` has them."""
    prefix: Text


@message(46)
class LeasesAre(Message):
    """The answer to `HoldLeases`, by an owner that was the partition's when the request arrived."""

    answered: Blob
    """The answer for each name that was asked for, in that order, as `encode_answered` has them."""
    listed: Blob
    """The leases that are held, by any holder, if they were to be listed, as `encode_listed` has them."""


@message(47)
class ReleaseLeases(Message):
    """Gives leases up, so that others may have them at once. Names that the holder does not have are ignored."""

    holder: I64
    names: Blob
    """The names, as `encode_names` has them."""


@message(48)
class LeasesReleased(Message):
    """The answer to `ReleaseLeases`."""

    count: U32
    """How many of the leases the holder had."""


class AskedLease(NamedTuple):
    name: str
    note: bytes = b""
    """For whoever lists the lease."""
    renews: bool = False
    """Whether the holder has the lease by its own clock, and asks to go on with it."""


class AnsweredLease(NamedTuple):
    """The answer for one lease."""

    answer: LeaseAnswer
    remaining_ms: int
    """When HELD, the duration. When TAKEN, TOO_EARLY or OTHER_DURATION, after how long it is worth asking again, unless
    the lease is released before."""
    holder: int
    """The present holder; 0 if there is none."""


class ListedLease(NamedTuple):
    """One lease that is held."""

    name: str
    holder: int
    remaining_ms: int
    """Unless the holder goes on with it."""
    note: bytes


T = TypeVar("T")

_ASKED: Final = struct.Struct("<BHH")
_ANSWERED: Final = struct.Struct("<BIq")
_LISTED: Final = struct.Struct("<qIHH")
_NAME: Final = struct.Struct("<H")


def encode_asked(asked: Iterable[AskedLease]) -> bytes:
    """Return rows of renews u8, bytes of the name u16, bytes of the note u16, name, note."""
    rows = bytearray()
    for each in asked:
        name = each.name.encode()
        rows += _ASKED.pack(each.renews, len(name), len(each.note)) + name + each.note
    return bytes(rows)


def parse_asked(raw: bytes) -> list[AskedLease]:
    """Return the leases that are asked for; raises `ProtocolError`."""

    def row(at: int) -> tuple[AskedLease, int]:
        renews, name_bytes, note_bytes = _ASKED.unpack_from(raw, at)
        at += _ASKED.size
        name = _name(raw, at, name_bytes)
        if renews > 1 or note_bytes > NOTE_BYTES_MAX:
            raise ProtocolError(
                f"lease {name!r} with a note of {note_bytes} bytes, and {renews} for whether it is renewed; the limits "
                f"are {NOTE_BYTES_MAX} bytes and 1"
            )
        at += name_bytes
        return AskedLease(name, raw[at : at + note_bytes], bool(renews)), at + note_bytes

    asked = _rows(raw, row)
    if len({each.name for each in asked}) < len(asked):
        raise ProtocolError("a request asks twice for the same lease")
    return asked


def encode_answered(answered: Iterable[AnsweredLease]) -> bytes:
    """Return rows of answer u8 (a `LeaseAnswer`), remaining_ms u32, holder i64."""
    return b"".join(_ANSWERED.pack(*each) for each in answered)


def parse_answered(raw: bytes) -> list[AnsweredLease]:
    try:
        return [AnsweredLease(LeaseAnswer(answer), *rest) for answer, *rest in _ANSWERED.iter_unpack(raw)]
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"answers about leases that are none: {error}") from None


def encode_listed(listed: Iterable[ListedLease]) -> bytes:
    """Return rows of holder i64, remaining_ms u32, bytes of the name u16, bytes of the note u16, name, note."""
    rows = bytearray()
    for each in listed:
        name = each.name.encode()
        rows += _LISTED.pack(each.holder, each.remaining_ms, len(name), len(each.note)) + name + each.note
    return bytes(rows)


def parse_listed(raw: bytes) -> list[ListedLease]:

    def row(at: int) -> tuple[ListedLease, int]:
        holder, remaining_ms, name_bytes, note_bytes = _LISTED.unpack_from(raw, at)
        at += _LISTED.size
        name = _name(raw, at, name_bytes)
        at += name_bytes
        return ListedLease(name, holder, remaining_ms, raw[at : at + note_bytes]), at + note_bytes

    return _rows(raw, row, rows_max=None)


def encode_names(names: Iterable[str]) -> bytes:
    """Return rows of bytes of the name u16, name."""
    return b"".join(_NAME.pack(len(raw)) + raw for raw in (name.encode() for name in names))


def parse_names(raw: bytes) -> list[str]:
    """Return the names; raises `ProtocolError`."""

    def row(at: int) -> tuple[str, int]:
        (name_bytes,) = _NAME.unpack_from(raw, at)
        at += _NAME.size
        return _name(raw, at, name_bytes), at + name_bytes

    return _rows(raw, row)


def check_duration(duration_ms: int) -> None:
    """Raise `ProtocolError` unless leases may be held for so long."""
    if not DURATION_MS_MIN <= duration_ms <= DURATION_MS_MAX:
        raise ProtocolError(
            f"a lease of {duration_ms} ms; a lease lasts {DURATION_MS_MIN} ms at the least and {DURATION_MS_MAX} at "
            "the most"
        )


def _name(raw: bytes, at: int, name_bytes: int) -> str:
    if not 0 < name_bytes <= NAME_BYTES_MAX:
        raise ProtocolError(f"a lease's name of {name_bytes} bytes; it has 1 to {NAME_BYTES_MAX}")
    try:
        return raw[at : at + name_bytes].decode()
    except UnicodeDecodeError:
        raise ProtocolError("a lease's name that is not UTF-8") from None


def _rows(raw: bytes, row: Callable[[int], tuple[T, int]], rows_max: int | None = ASKED_MAX) -> list[T]:
    """Return rows that fill `raw`; `row` reads one at an offset, and returns where it ends. Raises `ProtocolError`."""
    rows: list[T] = []
    at = 0
    while at < len(raw):
        if len(rows) == rows_max:
            raise ProtocolError(f"a request about more than {rows_max} leases")
        try:
            read, at = row(at)
        except struct.error:
            raise ProtocolError("leases that are cut short") from None
        rows.append(read)
    if at != len(raw):
        raise ProtocolError("leases that are cut short")
    return rows
