"""What a run leaves on record of one partition, as judges read it, whichever stage the run was on."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.record.bank import Transfer


class Fate(enum.Enum):
    """What an application knows of the outcome of its append."""

    PENDING = "pending"
    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The application died, or was told that the append may still commit; or a reset of the head left it open."""
    GIVEN_UP = "given up"
    """It was committed, and an operator has given it up by a reset of the log's head: it is in the log no more."""


class AskedAppend(NamedTuple):
    """An append that a client asked for, and what it was told of it."""

    append: Hashable
    """What the append is known by: no other has it, in no run of its context and no life of its client."""
    fate: Fate
    id: TransactionId
    """The first id that the client was told; -1 if it was told none."""
    size: int
    """The number of its transactions."""
    said: str
    """All of that in words."""


class AppendPart(NamedTuple):
    """One transaction of an append."""

    append: Hashable
    """None for what can't be the body of one."""
    place: int
    """0 for the first transaction."""


class GivenTransaction(NamedTuple):
    """A transaction as somebody was given it."""

    who: str
    id: TransactionId
    contents: object


class BatchSeen(NamedTuple):
    """What one batch of the log says of itself."""

    first: TransactionId
    last: TransactionId
    commit_time_us: int
    session: int = 0
    generation: int = 0
    previous_crc: int = 0
    crc: int = 0


def seen_of(batch: Batch) -> BatchSeen:
    """Return what a batch says of itself."""
    return BatchSeen(
        batch.first,
        batch.last,
        batch.commit_time_us,
        batch.session,
        batch.generation,
        batch.previous_crc,
        batch.crc,
    )


class TransferMade(NamedTuple):
    """A transfer that is in the log."""

    id: TransactionId
    name: str
    transfer: Transfer


class PartitionRecord(Protocol):
    """The record of one partition. In the log are only transactions of applications, unless said otherwise."""

    @property
    def partition(self) -> PartitionId: ...

    @property
    def batches(self) -> Sequence[BatchSeen]:
        """All batches, in their order in the log."""
        ...

    @property
    def held(self) -> Mapping[TransactionId, object]:
        """What the log has under each id that consumers may be given, to be compared with what they were given."""
        ...

    @property
    def parts(self) -> Mapping[TransactionId, AppendPart]:
        """Which append each transaction in the log is of."""
        ...

    @property
    def asked(self) -> Sequence[AskedAppend]: ...

    @property
    def given(self) -> Iterable[GivenTransaction]: ...

    @property
    def transfers(self) -> Iterable[TransferMade]:
        """The transfers in the log, by rising ids."""
        ...

    @property
    def opening_balance(self) -> int:
        """What every account holds before its first transfer."""
        ...

    @property
    def stale(self) -> Sequence[str]:
        """What was built on stale state, by the log's own evidence (`record.serializability`), each in words."""
        ...

    @property
    def without_evidence(self) -> int:
        """How many transactions in the log have no evidence although servers were to keep it."""
        ...

    def described(self, contents: object) -> str:
        """Return in words what was held or given."""
        ...
