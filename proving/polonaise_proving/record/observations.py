"""The history of a schedule: notes all that its clients asked for, were told, and saw.

Each try of an append carries its number in its body, so that a transaction found anywhere names the try it came from.
Nothing is judged here: `judges.clients` compares each note with those before it, `judges.checkers` the whole history
with the log at the end.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from polonaise.client.protocol.outstanding import Unordered
from polonaise.errors import ClientAhead, PolonaiseError, ProducerSequence
from polonaise.terms import LockMode, PartitionId, Transaction, TransactionId
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.partitionrecord import Fate

_AHEAD: Final = frozenset((ClientAhead.code, ProducerSequence.code))
"""What a client is told of a log whose head was reset, if it knows of more, or has numbered more appends."""
UNTOLD: Final = f"({Unordered.UNTOLD.name.lower()})"
"""Stands in the text of an error for which the owner gave no reason."""
_BODY: Final = struct.Struct("<IHBB")
"""The beginning of a body: the number of the try, the transaction's place in the try, its `Kind`, and 0."""
MOVE: Final = struct.Struct("<HHiii")
"""A transfer: the account from, the account to, the amount, and the two balances as its context saw them."""
ACCOUNT_START: Final = 100
"""What every account holds before the first transfer."""
COUNT: Final = struct.Struct("<HI")
"""A step of a counter: the counter, and its value after the step."""
PRODUCED: Final = struct.Struct("<Hq")
"""A producer's append: the producer, and the append's number."""
NOBODY_HAS: Final = 99
"""More copies than any simulated cluster has storage nodes: an append that needs them is never written."""


class Kind(enum.IntEnum):
    """The purpose of an append; says what follows in its body and which checkers look at it."""

    PLAIN = 0
    MOVE = 1
    LOCKED = 2
    GROUP = 3
    COUNT = 4
    POSITION = 5
    PRODUCED = 6


_FIELDS: Final = {Kind.MOVE: MOVE, Kind.COUNT: COUNT, Kind.PRODUCED: PRODUCED}


@dataclass(slots=True)
class Try:
    """One try of an append or a group. A context that is run again makes a new try."""

    number: int
    client: str
    partition: PartitionId
    kind: Kind
    count: int
    floor: TransactionId
    """The highest id of this partition that was known to be committed when the try was made, and was not given up."""
    mark: TransactionId | None = None
    """The client high-water mark by which the try was to be judged; None if the client library chose it."""
    marks: list[TransactionId] = field(default_factory=list)
    """The client high-water mark of each transaction, by its place in the try (0 for the first), if the marks differ:
    then `mark` is the lowest of them. Empty if all have `mark`."""
    locks: list[list[tuple[int, int]]] = field(default_factory=list)
    """The locks of each transaction, by its place in the try, as a batch's evidence has them: pairs of hash and mode.
    Empty if no transaction has locks."""
    position: TransactionId | None = None
    """The id that the append demanded; None if it demanded none."""
    copies: int = 0
    """The copies that the append needed; 0 if it needed no more than any commit."""
    fate: Fate = Fate.PENDING
    id: TransactionId = -1
    """The first id that the application was told; -1 if it was told none."""
    why: str = ""
    """Why the append failed, or why its fate is unknown."""
    rests_on: TransactionId | None = None
    """The id that a lock conflict named; None if there was no conflict, or a reset of the head has given the id up."""
    bodies: list[bytes] = field(default_factory=list)
    asked_us: int = 0
    """When the append was asked for, by the true time (`History.true_us`)."""

    def judged_by(self, place: int) -> tuple[TransactionId | None, list[tuple[int, int]]]:
        """Return the mark and the locks that the application gave to the transaction at this place in the try."""
        mark = self.marks[place] if self.marks else self.mark
        return mark, self.locks[place] if self.locks else []

    @property
    def demands(self) -> bool:
        """Whether it could be refused for a lock or its position, on a cluster where all is well."""
        locks = [mode for transaction in self.locks for _, mode in transaction]
        return self.position is not None or any(mode != LockMode.APPEND for mode in locks)

    def __str__(self) -> str:
        told = f"committed as {self.id}" if self.fate is Fate.COMMITTED else f"{self.fate.value} {self.why}".strip()
        return f"try {self.number} ({self.kind.name} of {self.client}, partition {self.partition}): told {told}"


class Body(NamedTuple):
    """A body, taken apart: the number of the try that it came from, and its place in that try."""

    number: int
    place: int
    kind: Kind
    rest: bytes

    def fields(self, kind: Kind) -> tuple[Any, ...] | None:
        """Return what an append of this kind says behind the beginning; None if this is of another kind, or is damaged.

        `judges.checkers.written` tells of the damage: whoever only wants to know what was appended passes over it.
        """
        form = _FIELDS[kind]
        return form.unpack_from(self.rest) if self.kind is kind and len(self.rest) >= form.size else None


def parse_body(data: bytes) -> Body | None:
    """Take a body apart. Returns None for one that is too short or of no `Kind`, which no application wrote."""
    if len(data) < _BODY.size:
        return None
    number, place, kind, _ = _BODY.unpack_from(data)
    if kind > max(Kind):
        return None
    return Body(number, place, Kind(kind), data[_BODY.size :])


class KnownBefore(NamedTuple):
    """What was known to be committed in a partition at one moment; `History.still_known` says what is left of it."""

    partition: PartitionId
    id: TransactionId
    resets: int
    """The resets of the head until then."""


class ProvedAnswer(NamedTuple):
    """A proved answer about the log, which must not be older than what was known before its request."""

    client: str
    partition: PartitionId
    floor: TransactionId
    """The highest id that was known to be committed before the request, and was not given up since."""
    mark: TransactionId | None
    """The mark in the answer; None for a register, whose value may be that of any mark from `floor` on."""
    key: bytes = b""
    value: bytes | None = None
    """The register's value; None if it is not set. Without a meaning in an answer with a `mark`."""
    undecided: Sequence[object] = ()
    """The receipts of earlier appends whose fates were not known when a flush was answered."""


class Listing(NamedTuple):
    """A listing of registers that a client was given: keys and values, in the order in which they came."""

    client: str
    partition: PartitionId
    floor: TransactionId
    prefix: bytes
    registers: list[tuple[bytes, bytes]]


class ToldOfPartition(Protocol):
    """What a client was told of one partition: a tuple of its own class for each kind."""

    @property
    def partition(self) -> PartitionId: ...


Told = TypeVar("Told", bound=ToldOfPartition)


class LeaseTaken(NamedTuple):
    """A moment at which a client began to count itself the holder of a lease."""

    holder: str
    lease: str
    others: Sequence[str]
    """Who else counted itself the holder just then."""


class ProducerTold(NamedTuple):
    """What one opening of a producer was told, with which others may compete."""

    name: str
    epoch: int
    newest: int
    """The epoch of the latest opening."""
    fenced: bool
    what: str
    """What was taken of it or, if it was `fenced`, why not."""


class History:
    """Everything that happened in a schedule, as its applications know it."""

    def __init__(self, partitions: int) -> None:
        self.tries: list[Try] = []
        self.seen: list[dict[TransactionId, Transaction]] = [{} for _ in range(partitions)]
        """By partition and id: the transaction as a client first saw it, unless a reset of the head has given it up."""
        self._told: dict[type, list[Any]] = {}
        """By class: what clients were told of a partition as it was then; see `note`."""
        self.listing_count_max = 1
        """The most registers that a server puts into one page of a listing."""
        self.leases_taken: list[LeaseTaken] = []
        self.violations: list[Violation] = []
        self.tell: Callable[[str], None] | None = None
        """Takes a line about each step and try, and what was told of them; None unless somebody reads it."""
        self.true_us: Callable[[], int] = lambda: 0
        """Returns the true time, in microseconds UTC; 0 where nobody asks for it."""
        self.left_out: list[dict[TransactionId, str]] = [{} for _ in range(partitions)]
        """By partition: each id that a reader was not given, with that reader. Only own transactions may be missing."""
        self.told: list[TransactionId] = [-1] * partitions
        """By partition: the highest id known to be committed, because a client was told so or saw the transaction."""
        self.told_checks: list[Callable[[PartitionId], None]] = []
        """Called with a partition at each moment when its `told` rises."""
        self.copies_checks: list[Callable[[PartitionId, TransactionId, int], None]] = []
        """Called when an application is told that an append has the copies that it needs: partition, last id, copies.
        """
        self.client_ids: dict[int, str] = {}
        """By client id: the client that was given it."""
        self.given_up: list[dict[TransactionId, list[Transaction]]] = [{} for _ in range(partitions)]
        """By partition and id: the transactions that resets of the head have given up there."""
        self.kept_by_resets: list[list[TransactionId]] = [[] for _ in range(partitions)]
        """By partition and reset of the head, in their order: the id up to which everything has stayed."""
        self.lingering: set[PartitionId] = set()
        """The partitions of which clients may still have messages that were sent before the last reset of the head."""
        self.ahead_told = 0
        """How often a client was told that it is ahead of a log whose head was reset."""
        self.reset_may_wait = False
        """Whether a reset of the head may wait until fragments are moved, which clients are told as well."""
        self.refusal_is_right = False
        """Whether more was lost than can be made up for: then clients are rightly told of contradictions."""
        self.window_is_kept = False
        """Whether owners have room for all appends that clients may send: then none may be refused for want of room."""

    def violated(self, promise: str, expected: str, seen: str) -> None:
        self.violations.append(Violation(promise, expected, seen))

    # ------------------------------------------------------------------ connecting

    def connected(self, client: str, client_id: int) -> None:
        """Note that a client was given its id."""
        self.client_ids[client_id] = client

    # ------------------------------------------------------------------ appends

    def invoke(self, client: str, partition: PartitionId, kind: Kind, rests: Sequence[bytes], filler: int) -> Try:
        """Note that a client is about to make a try, and make its bodies: one for each of `rests`.

        `filler` is the number of bytes that are added to each body.
        """
        number = len(self.tries)
        attempt = Try(number, client, partition, kind, len(rests), self.told[partition])
        attempt.bodies = [
            _BODY.pack(number, place, kind, 0) + rest + bytes([number & 255]) * filler
            for place, rest in enumerate(rests)
        ]
        attempt.asked_us = self.true_us()
        self.tries.append(attempt)
        if self.tell is not None:
            self.tell(f"try {number} ({kind.name} of {client}, partition {partition}): asked{_asks(kind, rests)}")
        return attempt

    def _tell_fate(self, attempt: Try) -> None:
        if self.tell is not None:
            self.tell(f"{attempt}; mark {attempt.mark}, position {attempt.position}, locks {attempt.locks}")

    def committed(self, attempt: Try, transaction: TransactionId) -> None:
        """Note that an application was told that its append is committed, with this first id."""
        if attempt.partition in self.lingering and self._was_given_up(attempt, transaction):
            attempt.fate, attempt.why = Fate.UNKNOWN, "told late of what a reset has given up"
            self._tell_fate(attempt)
            return
        attempt.fate, attempt.id = Fate.COMMITTED, transaction
        self._tell_fate(attempt)
        self._is_committed(attempt.partition, transaction + attempt.count - 1)

    def _was_given_up(self, attempt: Try, transaction: TransactionId) -> bool:
        given_up = self.given_up[attempt.partition].get(transaction, ())
        return any(each.data == attempt.bodies[0] for each in given_up)

    def proved(self, attempt: Try, transaction: TransactionId, copies: int) -> None:
        """Note that an application was told that its append, with this first id, is on as many copies as it needs."""
        for check in self.copies_checks:
            check(attempt.partition, transaction + attempt.count - 1, copies)

    def _is_committed(self, partition: PartitionId, last: TransactionId) -> None:
        if last > self.told[partition]:
            self.told[partition] = last
            for check in self.told_checks:
                check(partition)

    def failed(self, attempt: Try, why: str, value: TransactionId | None = None) -> None:
        """Note that an application was told that its append failed; `value` is the id that a lock conflict named."""
        attempt.rests_on = value
        attempt.fate, attempt.why = Fate.FAILED, why
        self._tell_fate(attempt)

    def refused(self, error: PolonaiseError, where: str) -> None:
        """Note an error that a client was told, and what it was about to do."""
        self.ahead_told += self.tells_of_reset(error)

    def tells_of_reset(self, error: PolonaiseError) -> bool:
        """Whether a client may be told by this error that a reset of the head has given up what it knows."""
        return error.code in _AHEAD and any(self.given_up[partition] for partition in self.lingering)

    def producer_told(self, told: ProducerTold) -> None:
        """Hear what an opening of a producer was told. It is judged at once, and not noted."""

    def unknown(self, attempt: Try, why: str) -> None:
        if attempt.fate is Fate.PENDING:
            attempt.fate, attempt.why = Fate.UNKNOWN, why
            self._tell_fate(attempt)

    def died(self, client: str, kept: Sequence[Try]) -> None:
        """Note that a client's process died: the fates of its pending appends stay unknown, except those in `kept`."""
        for attempt in self.tries:
            if attempt.client == client and attempt.fate is Fate.PENDING and attempt not in kept:
                self.unknown(attempt, "its application died")

    # ------------------------------------------------------------------ reads

    def saw(self, who: str, transaction: Transaction) -> None:
        """Note that a client was given a transaction; nobody else, if a reset of the head has given that up."""
        partition = transaction.partition
        if transaction not in self.given_up[partition].get(transaction.id, ()):
            self.seen[partition].setdefault(transaction.id, transaction)
            self._is_committed(partition, transaction.id)

    def given(self, reading: ReaderRecord, transaction: Transaction) -> None:
        """Note that a reader is given this transaction next."""
        reading.ended(transaction.id - 1)
        reading.last = transaction.id
        reading.count += 1

    def read_all(self, reading: ReaderRecord, last: TransactionId) -> None:
        """Note that a reader was given all there is up to `last`, which was known to be committed before it began."""
        # After a reset of the head `last` may be a transaction of the log's own, which no reader gets.
        reading.ended(last)

    def not_applied(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        """Hear that a view failed at a transaction, and not on purpose. It is judged at once, and not noted."""

    def known(self, partition: PartitionId) -> KnownBefore:
        """Return what is known to be committed at this moment."""
        return KnownBefore(partition, self.told[partition], len(self.kept_by_resets[partition]))

    def still_known(self, known: KnownBefore) -> TransactionId:
        """Return the highest id that was known at a moment, as far as no reset of the head has given it up since.

        Not what is known now, if that is lower: the log that goes on after a reset may have reached the same ids again.
        """
        return min([known.id, *self.kept_by_resets[known.partition][known.resets :]])

    def note(self, told: ToldOfPartition) -> None:
        """Note what a client was told of a partition, other than the fate of an append, for judges of the log's end.

        It is noted here alone, so that a reset of the head forgets it: it was true of the log that was there before.
        And it is not noted at all while messages of that log may be on their way still.
        """
        if self.tell is not None:
            self.tell(str(told))
        if told.partition not in self.lingering:
            self._told.setdefault(type(told), []).append(told)

    def noted(self, kind: type[Told]) -> list[Told]:
        """Return all that was noted of this class and not forgotten, in order. Tests may change it."""
        return self._told.setdefault(kind, [])

    def answered(self, answer: ProvedAnswer) -> None:
        self.note(answer)

    # ------------------------------------------------------------------ resets of the head

    def head_reset(
        self,
        partition: PartitionId,
        to: TransactionId,
        kept: TransactionId,
        given_up: Sequence[Transaction],
        revived: Collection[int],
    ) -> None:
        """Note that an operator's reset of the head to `to` was carried out.

        Up to `kept` everything stays as clients know it; `given_up` is what was in the log above that and is not any
        more. Above `kept` and up to `to` nobody knows: an operator has taken the copy of a replica in doubt, which may
        hold tries that had failed (`revived`, their numbers).
        """
        for transaction in given_up:
            self.given_up[partition].setdefault(transaction.id, []).append(transaction)
        seen, left_out = self.seen[partition], self.left_out[partition]
        self.seen[partition] = {id: transaction for id, transaction in seen.items() if id <= kept}
        self.left_out[partition] = {id: who for id, who in left_out.items() if id <= kept}
        for attempt in self.tries:
            if attempt.partition == partition:
                self._reset_try(attempt, to, kept, attempt.number in revived)
        self.told[partition] = min(self.told[partition], kept)
        self.kept_by_resets[partition].append(kept)
        # It was true of the log that was there before, and says nothing about the one that goes on.
        for kind, told in self._told.items():
            self._told[kind] = [each for each in told if each.partition != partition]

    @staticmethod
    def _reset_try(attempt: Try, to: TransactionId, kept: TransactionId, revived: bool) -> None:
        attempt.floor = min(attempt.floor, kept)
        if attempt.rests_on is not None and attempt.rests_on > kept:
            attempt.rests_on = None
        if attempt.fate is Fate.COMMITTED and attempt.id + attempt.count - 1 > kept:
            # A copy in doubt may hold it under another id.
            attempt.fate = Fate.GIVEN_UP if attempt.id > to == kept else Fate.UNKNOWN
        elif attempt.fate is Fate.FAILED and revived:
            attempt.fate = Fate.UNKNOWN


class ReaderRecord:
    """One reading: what is given to it, from a mark on, and which ids are left out."""

    def __init__(
        self, history: History, who: str, partition: PartitionId, after: TransactionId, since: int | None = None
    ) -> None:
        self._history = history
        self.who = who
        self.partition = partition
        self.last = after
        self.since = since
        """The commit time from which on it reads; None if it begins with an id."""
        self.count = 0
        """How many transactions it was given."""

    def take(self, transaction: Transaction) -> None:
        self.skip(transaction)
        self._history.saw(self.who, transaction)

    def skip(self, transaction: Transaction) -> None:
        """Note the id of a transaction, and nothing else: its body may not have come."""
        self._history.given(self, transaction)

    def ended(self, last: TransactionId) -> None:
        """Note that the reader is given nothing more up to the id `last`."""
        # A reader that goes on from before a reset of the head was given others, or none, under the ids above it.
        if self.partition not in self._history.lingering:
            left_out = self._history.left_out[self.partition]
            for transaction in range(self.last + 1, last + 1):
                left_out.setdefault(transaction, self.who)
        self.last = max(self.last, last)


_ASKS: Final = {
    Kind.MOVE: (MOVE, " to move from account {} to {} the amount {}, as they hold {} and {}"),
    Kind.COUNT: (COUNT, " to step counter {} to {}"),
    Kind.PRODUCED: (PRODUCED, " by producer {} with number {}"),
}


def _asks(kind: Kind, rests: Sequence[bytes]) -> str:
    """Return what a try asks for, if its first body says more than its kind."""
    if kind not in _ASKS:
        return ""
    fields, words = _ASKS[kind]
    return words.format(*fields.unpack_from(rests[0]))


def describe(transaction: Transaction) -> str:
    body = parse_body(transaction.data)
    what = f"try {body.number} place {body.place}" if body else f"{len(transaction.data)} foreign bytes"
    return (
        f"{what} (client {transaction.client_id} generation {transaction.generation} sequence {transaction.sequence} "
        f"header {transaction.header} time {transaction.commit_time_us})"
    )
