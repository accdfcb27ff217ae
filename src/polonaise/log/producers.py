"""Idempotent producers: what a partition remembers of one, as the value of a register.

A producer is an application's named writer that numbers its appends 0, 1, 2, … The register `producer/<name>` has its
epoch, its last number, and the ids and digests of its last few appends, changed in one step with each append. So a
repetition is answered with the id of the first time, and another append under a used number is recognized as one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from polonaise.errors import ProtocolError
from polonaise.log.registers import PRODUCERS

KEY_PREFIX: Final = PRODUCERS
"""The prefix of the keys under which producers' registers are kept."""
OPEN: Final = -1
"""The sequence of the request that opens a producer under a new epoch."""
IDS_KEPT: Final = 16
"""How many of a producer's last ids are kept, and so how many appends it may have in flight."""

NOT_KEPT: Final = 0

_REQUEST: Final = struct.Struct("<qq")
_HEAD: Final = struct.Struct("<qqI")
_APPENDED: Final = struct.Struct("<iI")


def pack_request(epoch: int, sequence: int) -> bytes:
    """Return the value of a PRODUCE change: the producer's epoch, and the append's number or `OPEN`."""
    return _REQUEST.pack(epoch, sequence)


def parse_request(value: bytes) -> tuple[int, int]:
    """Return (epoch, sequence) of a PRODUCE change's value. Raises `ProtocolError` for a value of another length."""
    if len(value) != _REQUEST.size:
        raise ProtocolError(f"a producer's request has {len(value)} bytes instead of {_REQUEST.size}")
    epoch, sequence = _REQUEST.unpack(value)
    return epoch, sequence


def digest_of(appended: Iterable[tuple[int, bytes | memoryview]]) -> int:
    """Return a 64-bit digest of an append or a group: of the header and body of each of its transactions, in order."""
    digest = blake2b(digest_size=8)
    for header, body in appended:
        digest.update(_APPENDED.pack(header, len(body)))
        digest.update(body)
    return int.from_bytes(digest.digest(), "little") or 1


def opens(value: bytes) -> bool:
    """Tell whether a PRODUCE change with this value opens its producer. Raises `ProtocolError`."""
    return parse_request(value)[1] == OPEN


class Produced(NamedTuple):
    """The value of a producer's register; by default, that of a producer that was never opened."""

    epoch: int = 0
    last_sequence: int = -1
    """The number of the producer's last append; -1 for none."""
    ids: tuple[int, ...] = ()
    """The ids that the last few numbers got, oldest first; the last id is that of `last_sequence`."""
    digests: tuple[int, ...] = ()
    """For each of `ids`, the digest (`digest_of`) of what was appended under its number; `NOT_KEPT` if unknown."""

    def opened(self, epoch: int) -> Produced:
        """Return the value with this epoch, after the producer was opened. Its numbering goes on where it was."""
        return self._replace(epoch=epoch)

    def produced(self, transaction: int, digest: int = NOT_KEPT) -> Produced:
        """Return the value after the producer's next number got this id, for an append with this digest."""
        ids, digests = (*self.ids, transaction)[-IDS_KEPT:], (*self.digests, digest)[-IDS_KEPT:]
        return Produced(self.epoch, self.last_sequence + 1, ids, digests)

    def id_of(self, sequence: int) -> int | None:
        """Return the id that this number got; None if it is not among the last ones."""
        position = len(self.ids) - 1 - (self.last_sequence - sequence)
        return self.ids[position] if 0 <= position < len(self.ids) else None

    def is_same(self, sequence: int, digest: int) -> bool:
        """Tell whether an append with this digest may be the one numbered `sequence`, whose id is kept."""
        digest_kept = self.digests[len(self.ids) - 1 - (self.last_sequence - sequence)]
        return digest_kept in (digest, NOT_KEPT)

    def pack(self) -> bytes:
        count = len(self.ids)
        head = _HEAD.pack(self.epoch, self.last_sequence, count)
        return head + struct.pack(f"<{count}q{count}Q", *self.ids, *self.digests)

    @classmethod
    def parse(cls, value: bytes) -> Produced:
        """Return the value in a register's bytes, with or without digests. Raises `ProtocolError` for other bytes."""
        if len(value) < _HEAD.size:
            raise ProtocolError(f"the register of a producer has {len(value)} bytes, less than its first fields take")
        epoch, last_sequence, count = _HEAD.unpack_from(value)
        tail_bytes = len(value) - _HEAD.size
        if count > IDS_KEPT or tail_bytes not in (8 * count, 16 * count):
            raise ProtocolError(
                f"the register of a producer claims {count} ids in {tail_bytes} bytes; an id takes 8, or 16 with its "
                f"digest, and {IDS_KEPT} are kept at most"
            )
        ids = struct.unpack_from(f"<{count}q", value, _HEAD.size)
        if tail_bytes == 8 * count:
            return cls(epoch, last_sequence, ids, (NOT_KEPT,) * count)
        return cls(epoch, last_sequence, ids, struct.unpack_from(f"<{count}Q", value, _HEAD.size + 8 * count))
