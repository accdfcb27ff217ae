"""Idempotent producers: what a partition remembers of one, as the value of a register.

A producer is an application's named writer that numbers its appends 0, 1, 2, … The owner keeps its epoch (how often it
was opened), its last number and the ids of its last few appends in the register `producer/<name>`, changed in one step
with each append; so a repetition after any crash is recognized and answered with the id of the first time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from polonaise.errors import ProtocolError

KEY_PREFIX: Final = b"producer/"
OPEN: Final = -1
"""The sequence of the request that opens a producer under a new epoch."""
IDS_KEPT: Final = 16
"""How many of its last ids a producer can be told again, and so how many appends it may have in flight."""

_REQUEST: Final = struct.Struct("<qq")
_HEAD: Final = struct.Struct("<qqI")


def pack_request(epoch: int, sequence: int) -> bytes:
    """The value of a PRODUCE operation."""
    return _REQUEST.pack(epoch, sequence)


def parse_request(value: bytes) -> tuple[int, int]:
    """(epoch, sequence). Raises `ProtocolError`."""
    if len(value) != _REQUEST.size:
        raise ProtocolError("a producer's request does not parse")
    epoch, sequence = _REQUEST.unpack(value)
    return epoch, sequence


class Produced(NamedTuple):
    """What the register of a producer says."""

    epoch: int
    last_sequence: int
    """The last number appended; -1 for none."""
    ids: tuple[int, ...]
    """Ids of the last numbers, oldest first; the last one is that of `last_sequence`."""

    @classmethod
    def none(cls) -> Produced:
        """A producer that nobody has opened yet."""
        return cls(0, -1, ())

    def opened(self, epoch: int) -> Produced:
        return Produced(epoch, self.last_sequence, self.ids)

    def produced(self, transaction: int) -> Produced:
        """After its next number was given this id."""
        return Produced(self.epoch, self.last_sequence + 1, (*self.ids, transaction)[-IDS_KEPT:])

    def id_of(self, sequence: int) -> int | None:
        """The id that this number got; None if it is not among the last ones."""
        place = len(self.ids) - 1 - (self.last_sequence - sequence)
        return self.ids[place] if 0 <= place < len(self.ids) else None

    def pack(self) -> bytes:
        count = len(self.ids)
        return _HEAD.pack(self.epoch, self.last_sequence, count) + struct.pack(f"<{count}q", *self.ids)

    @classmethod
    def parse(cls, value: bytes) -> Produced:
        """Raises `ProtocolError` for a register that is not a producer's."""
        if len(value) < _HEAD.size:
            raise ProtocolError("the register of a producer does not parse")
        epoch, last_sequence, count = _HEAD.unpack_from(value)
        if count > IDS_KEPT or len(value) != _HEAD.size + 8 * count:
            raise ProtocolError("the register of a producer does not parse")
        return cls(epoch, last_sequence, struct.unpack_from(f"<{count}q", value, _HEAD.size))
