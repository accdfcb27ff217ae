"""The queue of one target for one partition: what waits to be sent to it, and what it still has to be caught up with.

The states are those of the LogPlayer paper (`docs/references.md`); how a target joins the main stream again is our own.
In the paper, a target that comes back gets the entries of the main stream from that moment on, and must keep them all
while older entries are read for it: a target that lacks much would need a queue as long as its lack. Here it joins the
main stream only when little lies between (`PlayerSettings.join_transactions`), and leaves it again when its queue
overflows, without a new stream: what is dropped was never sent, and is read from the log.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polonaise.errors import InvariantViolated, invariant
from polonaise.player.protocol.entries import DeliveryBatch, RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId


class QueueState(enum.Enum):
    """The states of a target's queue for one partition, with the paper's letters."""

    NORMAL = "N"
    """The target has been sent, or will be sent from this queue, all that the main stream has brought."""
    FETCHING = "RF"
    """Entries that the target lacks are being read from the log for it (the paper: recovery fetching)."""
    FETCHED = "FC"
    """All entries that it lacked are read, and some of them wait to be sent (the paper: fetching completed)."""
    SUSPENDED = "S"
    """Nothing is sent to the target: it is not connected, or has refused an entry of this partition."""


class RecoveryRead(NamedTuple):
    """A stretch of the log to be read for one target that lacks its entries."""

    number: int
    """Tells the answer from the answers to all other reads of the player."""
    first: TransactionId
    last: TransactionId


class ReadNumbers:
    """Numbers the reads of one player: none gets a number again, whatever becomes of its target meanwhile.

    A target may be removed, and added under its name at another place, while a read for it is under way.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """Return the number of the next read."""
        self._last += 1
        return self._last


class QueueBudget:
    """What the queues of one target together hold of the main stream, and may hold."""

    __slots__ = ("_bytes_max", "_entries_max", "bytes", "entries")

    def __init__(self, settings: PlayerSettings) -> None:
        self._entries_max = settings.queue_entries_max
        self._bytes_max = settings.queue_bytes_max
        self.entries = 0
        self.bytes = 0

    @property
    def exceeded(self) -> bool:
        """Whether the queues hold more than they may."""
        return self.entries > self._entries_max or self.bytes > self._bytes_max


class _SentBatch(NamedTuple):
    """A batch that is in flight."""

    before: TransactionId
    """The id up to which a target lacks nothing that has applied all before this batch."""
    last: TransactionId
    size: int


def _before(entry: RoutedEntry) -> TransactionId:
    """Return the id up to which a target lacks nothing to which this entry is the next one. A dummy is nothing."""
    return entry.id if entry.payload is None else entry.id - 1


class TargetQueue:
    """What waits to be sent to one target of one partition, in the order in which it is to be sent.

    Three ids follow each other: `acked` ≤ `sent` ≤ `covered`. Every entry of the target is sent once in the life of
    a stream, because the queue takes the entries up to `covered` from reads of the log and those above it from the main
    stream, and never one from both.
    """

    __slots__ = (
        "_budget",
        "_catchup",
        "_catchup_bytes",
        "_in_flight",
        "_joined_at",
        "_normal",
        "_read_failed",
        "_read_numbers",
        "_reading",
        "_settings",
        "_skipped_to",
        "acked",
        "batch_entries_max",
        "covered",
        "in_flight_bytes",
        "partition",
        "passed",
        "sent",
        "start_after",
        "state",
        "told",
    )

    def __init__(
        self,
        partition: PartitionId,
        settings: PlayerSettings,
        budget: QueueBudget,
        read_numbers: ReadNumbers,
        start_after: TransactionId = NO_TRANSACTION,
    ) -> None:
        """Begin suspended. The target gets nothing up to `start_after`, whatever it has applied."""
        self.partition = partition
        self.start_after = start_after
        self.state = QueueState.SUSPENDED
        self.batch_entries_max = settings.batch_entries_max
        """The most entries in one batch: half as many for each time that the target came to nothing with more."""
        self.acked: TransactionId = NO_TRANSACTION
        """The last id that the target is known to have applied; -1 for none."""
        self.told = False
        """Whether the target has told what it has applied, so that `acked` says more than that nothing is known."""
        self.passed: TransactionId = NO_TRANSACTION
        """The id up to which the target had applied all that is its own, when it was last suspended."""
        self.sent: TransactionId = NO_TRANSACTION
        """The last id that was taken to be sent; after `resume`, the one that the target has told."""
        self.covered: TransactionId = NO_TRANSACTION
        """The id up to which every entry was sent or is in the queue, without what the main stream brings since the
        target joined it. Not kept up while the state is NORMAL or SUSPENDED."""
        self.in_flight_bytes = 0
        """The bytes sent and not acknowledged."""
        self._settings = settings
        self._budget = budget
        self._normal: deque[RoutedEntry] = deque()
        self._catchup: deque[RoutedEntry] = deque()
        self._catchup_bytes = 0
        self._joined_at: TransactionId | None = None
        self._skipped_to: TransactionId = NO_TRANSACTION
        self._reading: RecoveryRead | None = None
        self._read_numbers = read_numbers
        self._read_failed = False
        self._in_flight: deque[_SentBatch] = deque()

    # ------------------------------------------------------------------ what it is like

    @property
    def waits(self) -> bool:
        """Whether an entry waits that is the next one to be sent."""
        return bool(self._catchup) or (self.state is QueueState.NORMAL and bool(self._normal))

    @property
    def reads(self) -> bool:
        """Whether a read is under way that it waits for."""
        return self._reading is not None

    @property
    def in_flight(self) -> int:
        """The number of batches that were sent and are not acknowledged."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """The number of entries in the queue, without those that are sent."""
        return len(self._catchup) + len(self._normal)

    @property
    def joined(self) -> bool:
        """Whether the queue takes what the main stream brings."""
        if self.state is QueueState.FETCHING:
            return self._joined_at is not None
        return self.state is not QueueState.SUSPENDED

    def delivered(self, current: TransactionId) -> TransactionId:
        """Return the id up to which the target has applied all that is its own, while the main stream is at `current`.

        That may be less than the truth: of a batch in flight it is not known how much of it is applied.
        """
        known = max(self.acked, self.passed)
        if self.state is QueueState.SUSPENDED:
            return known
        if self._in_flight:
            return max(known, self._in_flight[0].before)
        if self._catchup:
            return max(known, _before(self._catchup[0]))
        if self.state is QueueState.FETCHING:
            return max(known, self.covered)
        return max(known, _before(self._normal[0]) if self._normal else current)

    # ------------------------------------------------------------------ the life of a stream

    def resume(self, last: TransactionId, current: TransactionId) -> None:
        """Begin to serve the target, which has applied everything up to `last`, while the main stream is at `current`.

        `last` may be above `current`: the target was ahead of others when the main stream began.
        """
        invariant(self.state is QueueState.SUSPENDED, f"partition {self.partition}: a queue resumes while it is served")
        if last < self.acked:
            self.passed = NO_TRANSACTION  # it was put back: of what it had, it lacks some
        self.told = True
        self.acked = self.sent = last
        # Compared with what is pushed and read from now on: the id after which the target's entries begin.
        self._skipped_to = max(last, self.start_after)
        self.covered = self._skipped_to
        self._joined_at = None
        self.state = QueueState.NORMAL if self.covered >= current else QueueState.FETCHING

    def suspend(self, current: TransactionId | None) -> int:
        """Forget everything that waits, while the main stream is at `current`, if it has begun.

        Returns the bytes in flight, of which no acknowledgement is waited for now.
        """
        if current is not None:
            self.passed = self.delivered(current)
        released, self.in_flight_bytes = self.in_flight_bytes, 0
        self._in_flight.clear()
        self._drop_normal()
        self._catchup.clear()
        self._catchup_bytes = 0
        # The answer to a read that is under way comes later, and has an older number.
        self._reading = None
        self._read_failed = False
        self.state = QueueState.SUSPENDED
        return released

    # ------------------------------------------------------------------ entries come

    def push(self, entries: Iterable[RoutedEntry]) -> None:
        """Take the entries for this target that the main stream has brought; pass over those that it has applied.

        If the queues of the target hold too much then, what this one holds of the main stream is dropped.
        """
        if self.state is not QueueState.NORMAL and not self.joined:
            return
        budget = self._budget
        for entry in entries:
            if entry.id > self._skipped_to:
                self._normal.append(entry)
                budget.entries += 1
                budget.bytes += entry.size
        # A single entry stays however large it is: dropped, it would be read again and dropped again.
        if budget.exceeded and len(self._normal) > 1:
            self._leave_main_stream()

    def push_dummy(self, current: TransactionId, lack: int) -> bool:
        """Queue a dummy for the id `current` of the main stream, if the target gets nothing else; return whether.

        Only if its last id is `lack` or more below that. Where an entry is queued or under way, none is needed: the
        entry's acknowledgement raises the target's id.
        """
        idle = self.state is QueueState.NORMAL and not self._normal and not self._in_flight
        if not idle or current - max(self.sent, self._skipped_to) < lack:
            return False
        self.push([RoutedEntry(current, None)])
        return True

    def next_read(self, current: TransactionId) -> RecoveryRead | None:
        """Return what to read of the log next for the target, while the main stream is at `current`; None for nothing.

        One read is made at a time, and none while enough of what was read waits to be sent.
        """
        if (
            self.state is not QueueState.FETCHING
            or self._reading is not None
            or self._read_failed
            or self._catchup_bytes >= self._settings.recovery_bytes_max
        ):
            return None
        # In one step: from here on the main stream's entries are kept, and those up to here are read.
        if self._joined_at is None and current - self.covered <= self._settings.join_transactions:
            self._joined_at = current
        last = current if self._joined_at is None else self._joined_at
        if self.covered >= last:
            self.state = QueueState.FETCHED
            if not self._catchup:
                self._become_normal()
            return None
        self._reading = RecoveryRead(self._read_numbers.next(), self.covered + 1, last)
        return self._reading

    def recovered(self, number: int, entries: Sequence[RoutedEntry], through: TransactionId) -> bool:
        """Take the entries that a read found up to the id `through`; return False if nobody waits for them any more.

        Call `next_read` then: it goes on, or finds that all is read.
        """
        read = self._reading
        if read is None or read.number != number:
            return False
        invariant(read.first <= through <= read.last, f"a read of {read} was answered up to {through}")
        self._reading = None
        for entry in entries:
            self._catchup.append(entry)
            self._catchup_bytes += entry.size
        self.covered = through
        return True

    def read_failed(self, number: int) -> bool:
        """Read nothing until `retry_read`; return False if nobody waits for the read that has failed any more."""
        if self._reading is None or self._reading.number != number:
            return False
        self._reading = None
        self._read_failed = True
        return True

    def retry_read(self) -> None:
        """Read again, after a read that has failed."""
        self._read_failed = False

    # ------------------------------------------------------------------ entries go

    def take(self) -> DeliveryBatch | None:
        """Take the next batch to be sent; None if nothing can be sent, or too much of it is not acknowledged."""
        if self.in_flight_bytes >= self._settings.partition_window_bytes:
            return None
        if self._catchup:
            taken, size = self._next_of(self._catchup)
            self._catchup_bytes -= size
            if self.state is QueueState.FETCHED and not self._catchup:
                self._become_normal()
        elif self._normal and self.state is QueueState.NORMAL:
            taken, size = self._next_of(self._normal)
            self._budget.entries -= len(taken)
            self._budget.bytes -= size
        else:
            return None
        if taken[0].id <= self.sent:  # no call of `invariant`, whose text would be made for each batch
            raise InvariantViolated(f"entry {taken[0].id} after {self.sent} was sent")
        batch = DeliveryBatch(self.partition, self.sent, taken)
        self.sent = last = taken[-1].id
        before = next((_before(entry) for entry in taken if entry.payload is not None), last)
        self._in_flight.append(_SentBatch(before, last, size))
        self.in_flight_bytes += size
        return batch

    def _next_of(self, waiting: deque[RoutedEntry]) -> tuple[list[RoutedEntry], int]:
        """Take the entries of the next batch from those that wait, at least one; return them and their bytes."""
        taken = [waiting.popleft()]
        size = taken[0].size
        while waiting and len(taken) < self.batch_entries_max:
            with_next = size + waiting[0].size
            if with_next > self._settings.batch_bytes_max:
                break
            taken.append(waiting.popleft())
            size = with_next
        return taken, size

    def acknowledge(self, through: TransactionId) -> int:
        """Note that the target has applied everything up to `through`; return the bytes of the batches that this ends.

        The acknowledgement of the last entry of a run stands for all before it. One that was overtaken changes nothing.
        """
        released = 0
        while self._in_flight and self._in_flight[0].last <= through:
            released += self._in_flight.popleft().size
        self.in_flight_bytes -= released
        self.acked = max(self.acked, through)
        return released

    # ------------------------------------------------------------------ states

    def _leave_main_stream(self) -> None:
        """Drop what is queued of the main stream, of which nothing was sent; it is read from the log later."""
        if self.state is QueueState.NORMAL:
            self.covered = self._normal[0].id - 1
        # Otherwise all up to the id at which it joined is read or being read, and `covered` says how far.
        self._drop_normal()
        self._joined_at = None
        self.state = QueueState.FETCHING

    def _drop_normal(self) -> None:
        self._budget.entries -= len(self._normal)
        self._budget.bytes -= sum(entry.size for entry in self._normal)
        self._normal.clear()

    def _become_normal(self) -> None:
        self._joined_at = None
        self.state = QueueState.NORMAL
