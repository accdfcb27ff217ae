"""What one append needs beside its commit: copies, and zones that these are in, and the messages that prove them."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from polonaise.errors import ProtocolError
from polonaise.wire.codec import I64, U8, Message, message

COPIES_VERSION: Final = 3
"""The first version of the protocol in which servers know what one append needs."""
NEEDED_MAX: Final = 255
"""The most copies or zones that an append can need, as they are sent in a byte each."""
_NEEDS: Final = struct.Struct("<BB")


def needed_text(copies: int, zones: int) -> str:
    """Return so many copies in so many zones as a text."""
    parts = [f"{copies} {'copy' if copies == 1 else 'copies'}"] if copies else ["copies"] if zones else []
    if zones:
        parts.append(f"in {zones} {'zone' if zones == 1 else 'zones'}")
    return " ".join(parts)


class Needs(NamedTuple):
    """What one append needs before it counts as a success, beside its commit."""

    copies: int
    """The least number of engaged replicas that must have synced the append."""
    zones: int
    """The least number of zones in which engaged replicas must have synced the append."""

    def encode(self) -> bytes:
        """Return the value of an expectation of `ExpectationKind.COPIES`."""
        return _NEEDS.pack(*self)

    def __str__(self) -> str:
        return needed_text(self.copies, self.zones)


def parse_needs(value: bytes) -> Needs:
    """Return what an expectation of `ExpectationKind.COPIES` holds; raises `ProtocolError`."""
    if len(value) != _NEEDS.size:
        raise ProtocolError(f"an append needs copies and zones in {_NEEDS.size} bytes, not in {len(value)}")
    return Needs(*_NEEDS.unpack(value))


@message(43)
class ProveCopies(Message):
    """Asks for an answer when so many engaged replicas, in so many zones, have synced a committed transaction."""

    id: I64
    copies: U8
    zones: U8


@message(44)
class CopiesProved(Message):
    """The answer to `ProveCopies`: so many engaged replicas, in so many zones, have synced the transaction."""

    id: I64
    """The last id of which that is proved: the one that was asked for, or a later one."""
