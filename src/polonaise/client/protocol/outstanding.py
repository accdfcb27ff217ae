"""The fate of every append of one client to one partition.

What settles an append, as Waltz internals have it ("Detection of Failed Append Requests"):

* its own request id in the feed: it is committed, and every older one that was not seen is not, and never will be;
* a refusal that names it;
* a flush or a mount that was answered after it was sent: whatever is still pending then has failed.

A fate is told once and never changes. A feed that contradicts one means that a promise of the log was broken, and is
said loudly (`ConsistencyLost`).
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

from polonaise.errors import ConsistencyLost, invariant
from polonaise.terms import FailureReason, TransactionId


class Unordered(enum.Enum):
    """Why an append that no server refused by name is over."""

    PASSED_OVER = "passed over"
    """A mount was answered, or fed a younger append from before it: whatever an older mount was told is lost."""
    UNTOLD = "not told of"
    """A younger append committed on the mount on which this one was sent, and the owner never said why it did not."""
    WITHDRAWN = "withdrawn"
    """Never sent: whoever asked for it gave up first."""
    STOPPED = "stopped"
    """Never sent: the client was closed, or the partition stopped."""
    UNKNOWN = "unknown"
    """Sent, and this client will not learn any more what became of it."""


class AppendFailure(NamedTuple):
    """Why an append failed, and the number that belongs to the reason (see `FailureReason`)."""

    reason: FailureReason | Unordered
    value: int = -1
    cause: str = ""
    """What kept the partition from committing then, as far as the client knew; empty when it knew of nothing."""


PASSED_OVER: Final = AppendFailure(Unordered.PASSED_OVER)
UNTOLD: Final = AppendFailure(Unordered.UNTOLD)
WITHDRAWN: Final = AppendFailure(Unordered.WITHDRAWN)
STOPPED: Final = AppendFailure(Unordered.STOPPED)
UNKNOWN: Final = AppendFailure(Unordered.UNKNOWN)


class Pending:
    """One append, or a group of `count` that commits as one; settled once `id` or `failure` is set."""

    __slots__ = ("count", "failure", "id", "sequence", "size", "watchers")

    def __init__(self, count: int = 1, size: int = 0) -> None:
        self.count = count
        self.size = size
        """Bytes of its bodies, its locks, and the keys and values that it expects and changes."""
        self.sequence = 0
        """Its (first) number, given when it is added; from 1."""
        self.id: TransactionId = -1
        """Its (first) transaction id once committed."""
        self.failure: AppendFailure | None = None
        self.watchers: Any = None
        """The one who waits for the fate, or a list of those who do; the shell's."""

    @property
    def settled(self) -> bool:
        """Whether the fate is known, either way."""
        return self.id >= 0 or self.failure is not None


class Outstanding:
    """The appends of one partition whose fate is not known yet, by sequence.

    Sequences rise by one, are never reused, and are sent in their order. Every method that settles returns those of
    the settled that somebody watches.
    """

    __slots__ = ("_base", "_entries", "_head", "bytes", "count", "mounted_after", "sent")

    def __init__(self) -> None:
        self._entries: list[Pending | None] = []
        """From sequence `_base` on; a group stands at each of its places, a settled append leaves None."""
        self._base = 1
        self._head = 0
        """Everything before this place is settled."""
        self.count = 0
        """Transactions pending."""
        self.bytes = 0
        """Their sizes together."""
        self.sent = 0
        """The highest sequence that was sent."""
        self.mounted_after = 0
        """What was sent before the present mount ends here: of it, nobody may have told what was told."""

    @property
    def next_sequence(self) -> int:
        return self._base + len(self._entries)

    @property
    def first_pending(self) -> int:
        """The lowest sequence that may be pending: everything before it is settled."""
        self._skip_settled()
        return self._base + self._head

    @property
    def awaited(self) -> bool:
        """Whether something that was sent is still pending."""
        self._skip_settled()
        return self._base + self._head <= self.sent

    def add(self, entry: Pending) -> None:
        """Register an append under the next sequence, before it is sent."""
        entries = self._entries
        count = entry.count
        entry.sequence = self._base + len(entries)
        entries.append(entry)
        if count > 1:
            entries.extend([entry] * (count - 1))
        self.count += count
        self.bytes += entry.size

    # ------------------------------------------------------------------ what settles

    def committed(self, sequences: list[int], ids: list[TransactionId] | range) -> list[Pending]:
        """Own sequences found in the feed, in feed order, with the ids they got.

        Raises `ConsistencyLost` for one that was never sent, or whose fate was told as failed or as another id.
        """
        first, last = sequences[0], sequences[-1]
        start, stop = first - self._base, last - self._base + 1
        if start < self._head or last > self.sent:
            raise self._contradiction(sequences, ids)
        watched: list[Pending] = []
        self._fail(self._head, start, PASSED_OVER, watched)
        if sequences == list(range(first, last + 1)):
            self._commit(start, stop, sequences, ids, watched)
        else:
            self._commit_scattered(sequences, ids, watched)
        self._entries[self._head : stop] = [None] * (stop - self._head)
        self._head = stop
        self._compact()
        return watched

    def _commit(
        self, start: int, stop: int, sequences: list[int], ids: list[TransactionId] | range, watched: list[Pending]
    ) -> None:
        """A run of sequences without gaps: the hot path."""
        size = count = left = 0
        opening = self._entries[start]
        if opening is None or opening.sequence != self._base + start:
            raise self._contradiction(sequences, ids)
        for entry, transaction in zip(self._entries[start:stop], ids, strict=True):
            if entry is None:
                raise self._contradiction(sequences, ids)
            count += 1
            if left:
                left -= 1
                continue
            left = entry.count - 1
            entry.id = transaction
            size += entry.size
            if entry.watchers:
                watched.append(entry)
        if left:
            raise ConsistencyLost(f"only a part of a group is in the log, up to id {ids[-1]}")
        self.count -= count
        self.bytes -= size

    def _commit_scattered(self, sequences: list[int], ids: list[TransactionId] | range, watched: list[Pending]) -> None:
        """Own sequences with gaps between: what lies in the gaps was passed over."""
        if sequences != sorted(set(sequences)):
            raise self._contradiction(sequences, ids)
        position = sequences[0] - self._base
        run = 0
        for index in range(1, len(sequences) + 1):
            if index < len(sequences) and sequences[index] == sequences[index - 1] + 1:
                continue
            start, stop = sequences[run] - self._base, sequences[index - 1] - self._base + 1
            self._fail(position, start, PASSED_OVER, watched)
            self._commit(start, stop, sequences, ids[run:index], watched)
            position, run = stop, index

    def _contradiction(self, sequences: list[int], ids: list[TransactionId] | range) -> ConsistencyLost:
        return ConsistencyLost(
            f"the feed holds sequences {sequences[0]} to {sequences[-1]} of this client as ids {ids[0]} to {ids[-1]}, "
            "but the fate of at least one of them was told otherwise: stop writing and compare the log"
        )

    def refused(self, sequence: int, failure: AppendFailure) -> list[Pending]:
        """A server's refusal of this sequence. One that is settled already, or was never sent, is left as it is."""
        position = sequence - self._base
        if position < self._head or sequence > self.sent:
            return []
        entry = self._entries[position]
        if entry is None:
            return []
        if failure.reason is FailureReason.DUPLICATE:
            entry.id = failure.value
        else:
            entry.failure = failure
        self._remove(entry)
        return [entry] if entry.watchers else []

    def passed(self, through: int, cause: str = "") -> list[Pending]:
        """A flush or mount was answered that came after these sequences: whatever of them is pending has failed."""
        invariant(through <= self.sent, "only what was sent can be passed over")
        watched: list[Pending] = []
        stop = through - self._base + 1
        if stop > self._head:
            self._fail(self._head, stop, PASSED_OVER, watched, cause)
            self._entries[self._head : stop] = [None] * (stop - self._head)
            self._head = stop
            self._compact()
        return watched

    def withdraw(self, entry: Pending) -> bool:
        """Take back what was not sent yet. False when it was sent or settled: then its fate is not ours to choose."""
        if entry.settled or entry.sequence <= self.sent:
            return False
        entry.failure = WITHDRAWN
        self._remove(entry)
        return True

    def stop(self) -> list[Pending]:
        """Settle everything: nothing more will be sent or heard."""
        watched: list[Pending] = []
        sent = max(self._head, self.sent - self._base + 1)
        self._fail(self._head, sent, UNKNOWN, watched)
        self._fail(sent, len(self._entries), STOPPED, watched)
        self._base += len(self._entries)
        self._entries.clear()
        self._head = 0
        return watched

    # ------------------------------------------------------------------ places

    def _fail(self, start: int, stop: int, failure: AppendFailure, watched: list[Pending], cause: str = "") -> None:
        for position in range(start, stop):
            entry = self._entries[position]
            if entry is None or entry.settled:
                continue
            untold = failure is PASSED_OVER and entry.sequence > self.mounted_after
            chosen = UNTOLD if untold else failure
            entry.failure = chosen._replace(cause=cause) if cause else chosen
            self.count -= entry.count
            self.bytes -= entry.size
            if entry.watchers:
                watched.append(entry)

    def _remove(self, entry: Pending) -> None:
        position = entry.sequence - self._base
        self._entries[position : position + entry.count] = [None] * entry.count
        self.count -= entry.count
        self.bytes -= entry.size

    def _skip_settled(self) -> None:
        entries, head = self._entries, self._head
        while head < len(entries) and entries[head] is None:
            head += 1
        self._head = head
        self._compact()

    def _compact(self) -> None:
        head = self._head
        if head > 1024 and head * 2 > len(self._entries):
            del self._entries[:head]
            self._base += head
            self._head = 0
