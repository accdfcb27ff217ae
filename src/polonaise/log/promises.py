"""What one replica has promised, as the control file keeps it: values and their bytes, no I/O.

Each partition has three sectors of 512 bytes: two *copies* of its promises, and an *evidence slot*. At best a disk
writes a sector whole or not at all; whatever else happens to one shows by the CRC over the whole sector.
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
    """A position up to which the log was synced: all ids up to `last`.

    In files: all before the segment whose first id is `segment_first`, and the first `offset` bytes of that one.
    """

    segment_first: TransactionId
    offset: int
    last: TransactionId


NO_EVIDENCE: Final = SyncEvidence(0, 0, NO_TRANSACTION)
"""The evidence of a log of which nothing was synced yet."""


class TrimMark(NamedTuple):
    """Where the log begins after a trim: every id below `first` was dropped on request."""

    first: TransactionId
    previous_crc: int
    """The CRC of the batch before `first`. A segment that begins at `first` and names another CRC is of another log."""


NOTHING_TRIMMED: Final = TrimMark(0, 0)
"""The mark of a log that begins at 0: never trimmed, or begun anew since."""


@dataclass(frozen=True, slots=True)
class Promises:
    """A replica's durable word on one partition. `docs/replication.md` says who raises what, and why.

    When the copy is emptied, all but `fence` and `untrusted_above` go back to their defaults.
    """

    fence: SessionId = NO_SESSION
    """The largest session that the replica was told of: messages of a smaller one are refused."""
    joined: SessionId = NO_SESSION
    """The last session that the replica was made clean for, or a later one that reset the log's head and cut it."""
    prepared: TransactionId = NO_TRANSACTION
    """The last id that the copy held when it joined a session last; a cut for a reset of the head lowers it."""
    confirmed: TransactionId = NO_TRANSACTION
    """Up to this id, but for what may be lost, the copy is certainly the log. Falls only when the head is reset or the
    copy emptied. A batch ends there; or, where a server of an earlier version trimmed, it goes on, and is committed as
    a whole."""
    lost_above: TransactionId = UNRESOLVED
    """The id above which acknowledged ids may have been lost; UNRESOLVED when none were. Moved up as ids are confirmed
    again, and cleared only by joining a session or by emptying the copy."""
    untrusted_above: TransactionId = UNRESOLVED
    """The id above which the files may hold bytes that must not be believed; UNRESOLVED when all are believed. Up to
    this id everything is synced. Cleared by a cut there or below. By itself no loss: what was not synced was not
    acknowledged."""

    @property
    def may_have_lost(self) -> bool:
        """Whether acknowledged ids may be gone from this copy."""
        return self.lost_above != UNRESOLVED

    @property
    def untrusted(self) -> bool:
        """Whether bytes above `untrusted_above` have to be cut before anything is appended."""
        return self.untrusted_above != UNRESOLVED

    def lost(self, last: TransactionId) -> Promises:
        """Return these promises with the note that acknowledged ids above `last` may be lost: their bytes are bad."""
        # The lower one: a second loss does not make the first one good.
        lost_before = self.lost_above if self.may_have_lost else last
        return replace(self.distrusted(last), lost_above=min(lost_before, last))

    def distrusted(self, last: TransactionId) -> Promises:
        """Return these promises with the note that bytes above `last` must not be believed; that is no loss."""
        untrusted_before = self.untrusted_above if self.untrusted else last
        return replace(self, untrusted_above=min(untrusted_before, last))


class PromiseSector(NamedTuple):
    """One of the two copies of a partition's promises. Of two valid copies, the one with the larger sequence counts."""

    partition: PartitionId
    sequence: int
    cuts: int
    """The number of cuts of the log so far: evidence noted under another number speaks of bytes that are gone."""
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
        """Return the copy in `sector`; None unless the sector is a valid copy of this partition's promises."""
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
    """The evidence slot, rewritten soon after a sync of the log or a change of promises, and never synced by itself.

    Losing it, or finding an old one, makes the node know less and never something false. `cuts` binds it to the log
    since its last cut; `sequence` is that of the newest `PromiseSector` that was durable when it was written.
    """

    partition: PartitionId
    sequence: int
    cuts: int
    evidence: SyncEvidence

    def encode(self) -> bytes:
        return _sealed(_SLOT.pack(_SLOT_MAGIC, 0, self.partition, 0, self.sequence, self.cuts, *self.evidence))

    @classmethod
    def decode(cls, sector: bytes, partition: PartitionId) -> Slot | None:
        """Return the evidence in `sector`; None unless the sector is a valid evidence slot of this partition."""
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
