"""Idempotent producers: what a partition remembers of one, as the value of a register.

A producer is an application's named writer that numbers its appends 0, 1, 2, … The owner keeps its epoch (how often it
was opened), its last number, and the ids and digests of its last few appends in the register `producer/<name>`, changed
in one step with each append; so a repetition after any crash is recognized and answered with the id of the first time,
and a number under which something else is sent is told from one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from polonaise.errors import ProtocolError
from polonaise.log.registers import PRODUCERS

KEY_PREFIX: Final = PRODUCERS
OPEN: Final = -1
"""The sequence of the request that opens a producer under a new epoch."""
IDS_KEPT: Final = 16
"""How many of its last ids a producer can be told again, and so how many appends it may have in flight."""

NOT_KEPT: Final = 0
"""The digest of an append of which none is kept: one from before there were digests."""

_REQUEST: Final = struct.Struct("<qq")
_HEAD: Final = struct.Struct("<qqI")
_APPENDED: Final = struct.Struct("<iI")


def pack_request(epoch: int, sequence: int) -> bytes:
    """The value of a PRODUCE operation."""
    return _REQUEST.pack(epoch, sequence)


def parse_request(value: bytes) -> tuple[int, int]:
    """(epoch, sequence). Raises `ProtocolError`."""
    if len(value) != _REQUEST.size:
        raise ProtocolError("a producer's request does not parse")
    epoch, sequence = _REQUEST.unpack(value)
    return epoch, sequence


def digest_of(appended: Iterable[tuple[int, bytes | memoryview]]) -> int:
    """A digest of an append or a group, 64 bits: of the header and body of each of its transactions, in order."""
    digest = blake2b(digest_size=8)
    for header, body in appended:
        digest.update(_APPENDED.pack(header, len(body)))
        digest.update(body)
    return int.from_bytes(digest.digest(), "little") or 1


def opens(value: bytes) -> bool:
    """Whether a PRODUCE operation with this value opens its producer. Raises `ProtocolError`."""
    return parse_request(value)[1] == OPEN


class Produced(NamedTuple):
    """What the register of a producer says."""

    epoch: int
    last_sequence: int
    """The last number appended; -1 for none."""
    ids: tuple[int, ...]
    """Ids of the last numbers, oldest first; the last one is that of `last_sequence`."""
    digests: tuple[int, ...]
    """What was appended under each of these, as `digest_of`; `NOT_KEPT` where nobody knows."""

    @classmethod
    def none(cls) -> Produced:
        """A producer that nobody has opened yet."""
        return cls(0, -1, (), ())

    def opened(self, epoch: int) -> Produced:
        return self._replace(epoch=epoch)

    def produced(self, transaction: int, digest: int = NOT_KEPT) -> Produced:
        """After its next number was given this id, with what has this digest."""
        ids, digests = (*self.ids, transaction)[-IDS_KEPT:], (*self.digests, digest)[-IDS_KEPT:]
        return Produced(self.epoch, self.last_sequence + 1, ids, digests)

    def id_of(self, sequence: int) -> int | None:
        """The id that this number got; None if it is not among the last ones."""
        position = len(self.ids) - 1 - (self.last_sequence - sequence)
        return self.ids[position] if 0 <= position < len(self.ids) else None

    def is_same(self, sequence: int, digest: int) -> bool:
        """Whether what has this digest may be what was appended under one of the last numbers."""
        kept = self.digests[len(self.ids) - 1 - (self.last_sequence - sequence)]
        return kept in (digest, NOT_KEPT)

    def pack(self) -> bytes:
        count = len(self.ids)
        head = _HEAD.pack(self.epoch, self.last_sequence, count)
        return head + struct.pack(f"<{count}q{count}Q", *self.ids, *self.digests)

    @classmethod
    def parse(cls, value: bytes) -> Produced:
        """Raises `ProtocolError` for a register that is not a producer's. One from before digests has none."""
        if len(value) < _HEAD.size:
            raise ProtocolError("the register of a producer does not parse")
        epoch, last_sequence, count = _HEAD.unpack_from(value)
        rest = len(value) - _HEAD.size
        if count > IDS_KEPT or rest not in (8 * count, 16 * count):
            raise ProtocolError("the register of a producer does not parse")
        ids = struct.unpack_from(f"<{count}q", value, _HEAD.size)
        with_digests = rest == 16 * count
        digests = (
            struct.unpack_from(f"<{count}Q", value, _HEAD.size + 8 * count) if with_digests else (NOT_KEPT,) * count
        )
        return cls(epoch, last_sequence, ids, digests)
