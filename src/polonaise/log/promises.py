"""What one replica has promised, as it is kept in the control file: values and their bytes, no I/O.

Each partition has three sectors of 512 bytes: two *copies* of its promises, and an *evidence slot*. A disk writes a
sector whole or not at all at best; whatever else it does to one, the CRC over the whole sector tells.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED, PartitionId, SessionId, TransactionId

SECTOR_BYTES: Final = 512

_COPY: Final = struct.Struct("<4sIIIQQqqqqqqqqqqI")
_COPY_MAGIC: Final = b"PLNC"
_SLOT: Final = struct.Struct("<4sIIIQQqqq")
_SLOT_MAGIC: Final = b"PLNE"


class SyncEvidence(NamedTuple):
    """A place up to which the log was synced: file `segment_first`, its first `offset` bytes, ids up to `last`."""

    segment_first: TransactionId
    offset: int
    last: TransactionId


NO_EVIDENCE: Final = SyncEvidence(0, 0, NO_TRANSACTION)


class TrimMark(NamedTuple):
    """What was dropped from the beginning of the log on request: every id below `first`."""

    first: TransactionId
    previous_crc: int
    """CRC of the batch before `first`. The segment that begins what is left says the same, or it is another one."""


NOTHING_TRIMMED: Final = TrimMark(0, 0)


@dataclass(frozen=True, slots=True)
class Promises:
    """A replica's durable word on one partition. `docs/replication.md` says who raises what, and why."""

    fence: SessionId = NO_SESSION
    joined: SessionId = NO_SESSION
    prepared: TransactionId = NO_TRANSACTION
    confirmed: TransactionId = NO_TRANSACTION
    lost_above: TransactionId = UNRESOLVED
    """It may have lost ids above this one that it had acknowledged; UNRESOLVED when it has not.

    Cleared by joining a session only.
    """
    untrusted_above: TransactionId = UNRESOLVED
    """The files may hold bytes above this id that nobody may believe; UNRESOLVED when all are believed.

    Up to it everything is synced. Cleared by cutting there. By itself it says nothing of a loss: bytes whose sync
    failed were never acknowledged.
    """

    @property
    def may_have_lost(self) -> bool:
        return self.lost_above != UNRESOLVED

    @property
    def untrusted(self) -> bool:
        """Something has to be cut before anything is appended."""
        return self.untrusted_above != UNRESOLVED

    def lost(self, last: TransactionId) -> Promises:
        """The promises of a copy that finds acknowledged bytes above `last` to be bad."""
        known = self.lost_above if self.may_have_lost else last
        return replace(self.distrusted(last), lost_above=min(known, last))

    def distrusted(self, last: TransactionId) -> Promises:
        """The promises of a copy that does not know what its files hold above `last`, and acknowledged none of it."""
        known = self.untrusted_above if self.untrusted else last
        return replace(self, untrusted_above=min(known, last))


class PromiseSector(NamedTuple):
    """One of the two alternating sectors. The valid one with the larger sequence holds."""

    partition: PartitionId
    sequence: int
    cuts: int
    """Counts the cuts of the log: evidence noted under another count speaks of bytes that are gone."""
    promises: Promises
    evidence: SyncEvidence
    trimmed: TrimMark = NOTHING_TRIMMED

    def encode(self) -> bytes:
        p = self.promises
        return _sealed(
            _COPY.pack(
                _COPY_MAGIC, 0, self.partition, 0, self.sequence, self.cuts,
                p.fence, p.joined, p.prepared, p.confirmed, p.lost_above, p.untrusted_above,
                *self.evidence, *self.trimmed,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, sector: bytes, partition: PartitionId) -> PromiseSector | None:
        """The copy in a sector of this partition; None for anything else."""
        if not _intact(sector, _COPY_MAGIC):
            return None
        _, _, owner, _, sequence, cuts, fence, joined, prepared, confirmed, lost, untrusted, *rest = _COPY.unpack_from(
            sector
        )
        if owner != partition:
            return None
        promises = Promises(fence, joined, prepared, confirmed, lost, untrusted)
        return cls(owner, sequence, cuts, promises, SyncEvidence(*rest[:3]), TrimMark(*rest[3:]))


class Slot(NamedTuple):
    """The evidence slot: rewritten after every sync of the log, never synced itself.

    Losing it, or finding an old one, makes the node know less and never something false: `cuts` binds it to the
    log since its last cut, and `sequence` names the newest copy that was durable when it was written.
    """

    partition: PartitionId
    sequence: int
    cuts: int
    evidence: SyncEvidence

    def encode(self) -> bytes:
        return _sealed(_SLOT.pack(_SLOT_MAGIC, 0, self.partition, 0, self.sequence, self.cuts, *self.evidence))

    @classmethod
    def decode(cls, sector: bytes, partition: PartitionId) -> Slot | None:
        """The evidence in a sector of this partition; None for anything else."""
        if not _intact(sector, _SLOT_MAGIC):
            return None
        _, _, owner, _, sequence, cuts, *evidence = _SLOT.unpack_from(sector)
        if owner != partition:
            return None
        return cls(owner, sequence, cuts, SyncEvidence(*evidence))


def _sealed(packed: bytes) -> bytes:
    sector = bytearray(packed.ljust(SECTOR_BYTES, b"\0"))
    struct.pack_into("<I", sector, 4, crc32(memoryview(sector)[8:]))
    return bytes(sector)


def _intact(sector: bytes, magic: bytes) -> bool:
    if len(sector) != SECTOR_BYTES or sector[:4] != magic:
        return False
    return int.from_bytes(sector[4:8], "little") == crc32(memoryview(sector)[8:])
