"""The queue of one target for one partition: what waits to be sent to it, and what it still has to be caught up with.

The states are those of the LogPlayer paper (`docs/references.md`); how a target joins the main stream again is our own.
In the paper it gets the entries of the main stream from its return on, and must keep them all while older ones are read
for it. Here it joins only when little lies between (`PlayerSettings.join_transactions`), and leaves again when its
queue overflows: what is dropped was never sent, and is read from the log.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from polonaise.errors import InvariantViolated, invariant
from polonaise.player.protocol.entries import DeliveryBatch, RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.terms import PartitionId, TransactionId


class QueueState(enum.Enum):
    """The states of a target's queue for one partition, with the paper's letters. In its state S there is no queue."""

    NORMAL = "N"
    """The target has been sent, or will be sent from this queue, all that the main stream has brought."""
    FETCHING = "RF"
    """Entries that the target lacks are being read from the log (the paper: recovery fetching)."""
    FETCHED = "FC"
    """All of these are read, and some of them wait to be sent (the paper: fetching completed)."""


class RecoveryRead(NamedTuple):
    """A stretch of the log to be read for one target that lacks its entries."""

    number: int
    """No other read of the player has it."""
    first: TransactionId
    last: TransactionId


class FailedRead(NamedTuple):
    """Why the log could not be read for a target that catches up, and when that is tried again."""

    reason: str
    retry_at_s: float
    """Infinite while it is being tried."""


class QueueBudget:
    """What the queues of one target together hold of the main stream, and may hold. `TargetQueue` writes it."""

    def __init__(self, settings: PlayerSettings) -> None:
        self._entries_max = settings.queue_entries_max
        self._bytes_max = settings.queue_bytes_max
        self.entries = 0
        self.bytes = 0

    @property
    def exceeded(self) -> bool:
        return self.entries > self._entries_max or self.bytes > self._bytes_max


class _SentBatch(NamedTuple):
    """A batch that is in flight."""

    before: TransactionId
    """Up to where a target lacks nothing that has applied all before this batch."""
    last: TransactionId
    size: int


def _before(entry: RoutedEntry) -> TransactionId:
    """Return up to where a target lacks nothing to which this entry is the next one. A dummy is nothing."""
    return entry.id if entry.payload is None else entry.id - 1


class TargetQueue:
    """What waits to be sent to one target of one partition, in the order in which it is to be sent. It lives while the
    target is served. Every entry is sent once, because the queue takes the entries up to `covered` from reads of the
    log and those above it from the main stream, and never one from both. Fields are written here alone."""

    def __init__(
        self,
        partition: PartitionId,
        settings: PlayerSettings,
        budget: QueueBudget,
        last: TransactionId,
        after: TransactionId,
        current: TransactionId,
    ) -> None:
        """Begin to serve the target, which has applied everything up to `last`, and gets what follows `after`. `last`
        may be above `current`, where the main stream is: the target was ahead of others when that began."""
        self.sent: TransactionId = last
        """The last id that was taken to be sent; at first the one that the target has told."""
        self.covered: TransactionId = after
        """Up to where every entry was sent or is in the queue, without what the main stream brings since the target
        joined it. Not kept up while the state is NORMAL."""
        self.state = QueueState.NORMAL if self.covered >= current else QueueState.FETCHING
        self.in_flight_bytes = 0
        """Sent and not acknowledged."""
        self.failed_read: FailedRead | None = None
        """The last read, if it has failed."""
        self._partition = partition
        self._settings = settings
        self._budget = budget
        self._normal: deque[RoutedEntry] = deque()
        self._catchup: deque[RoutedEntry] = deque()
        self._catchup_bytes = 0
        self._joined_at: TransactionId | None = None
        self._skipped_to = after
        self._reading: RecoveryRead | None = None
        self._in_flight: deque[_SentBatch] = deque()

    # ------------------------------------------------------------------ what it is like

    @property
    def waits(self) -> bool:
        """Whether an entry waits that is the next one to be sent."""
        return bool(self._catchup) or (self.state is QueueState.NORMAL and bool(self._normal))

    @property
    def reads(self) -> bool:
        return self._reading is not None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        return len(self._catchup) + len(self._normal)

    def clear_through(self, current: TransactionId) -> TransactionId:
        """Return up to where nothing of the target's own waits or is in flight, while the main stream is at `current`.
        That may be less than the truth: how much of a batch in flight is applied is not known."""
        if self._in_flight:
            return self._in_flight[0].before
        if self._catchup:
            return _before(self._catchup[0])
        if self.state is QueueState.FETCHING:
            return self.covered
        return _before(self._normal[0]) if self._normal else current

    def drop(self) -> int:
        """Give back what the queue holds of the budget, as its last deed; return the bytes in flight."""
        self._drop_normal()
        return self.in_flight_bytes

    # ------------------------------------------------------------------ entries come

    def push(self, entries: Iterable[RoutedEntry]) -> None:
        """Take the entries for this target that the main stream has brought, but those that it has applied. If the
        target's queues hold too much then, what this one holds of the main stream is dropped."""
        if self.state is QueueState.FETCHING and self._joined_at is None:
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
        """Queue a dummy for the id `current` of the main stream, if the target gets nothing else; return whether. Only
        if its last id is `lack` or more below that."""
        idle = self.state is QueueState.NORMAL and not self._normal and not self._in_flight
        if not idle or current - max(self.sent, self._skipped_to) < lack:
            return False
        self.push([RoutedEntry(current, None)])
        return True

    def next_read(self, current: TransactionId, number: int) -> RecoveryRead | None:
        """Return what to read next for the target, while the main stream is at `current`; None for nothing. One read is
        made at a time, under this number, and none while enough of what was read waits to be sent."""
        if (
            self.state is not QueueState.FETCHING
            or self._reading is not None
            or (self.failed_read is not None and self.failed_read.retry_at_s < inf)
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
        self._reading = RecoveryRead(number, self.covered + 1, last)
        return self._reading

    def recovered(self, number: int, entries: Sequence[RoutedEntry], through: TransactionId) -> bool:
        """Take the entries that a read found up to the id `through`; return False if nobody waits for them. Call
        `next_read` then: it goes on, or finds that all is read."""
        read = self._reading
        if read is None or read.number != number:
            return False
        invariant(read.first <= through <= read.last, f"a read of {read} was answered up to {through}")
        self._reading = self.failed_read = None
        for entry in entries:
            self._catchup.append(entry)
            self._catchup_bytes += entry.size
        self.covered = through
        return True

    def read_failed(self, number: int, reason: str, retry_at_s: float) -> bool:
        """Read nothing until `retry_read`; return False if nobody waits for the read that has failed."""
        if self._reading is None or self._reading.number != number:
            return False
        self._reading = None
        self.failed_read = FailedRead(reason, retry_at_s)
        return True

    def retry_read(self, now_s: float) -> bool:
        """Read again, if a read has failed that is to be tried again by now; return whether."""
        if self.failed_read is None or self.failed_read.retry_at_s > now_s:
            return False
        # What it failed for is told until it has succeeded.
        self.failed_read = FailedRead(self.failed_read.reason, inf)
        return True

    # ------------------------------------------------------------------ entries go

    def take(self, entries_max: int) -> DeliveryBatch | None:
        """Take the next batch, of so many entries at most; None if none can be sent, or too much is not
        acknowledged."""
        if self.in_flight_bytes >= self._settings.partition_window_bytes:
            return None
        if self._catchup:
            taken, size = self._next_of(self._catchup, entries_max)
            self._catchup_bytes -= size
            if self.state is QueueState.FETCHED and not self._catchup:
                self._become_normal()
        elif self._normal and self.state is QueueState.NORMAL:
            taken, size = self._next_of(self._normal, entries_max)
            self._budget.entries -= len(taken)
            self._budget.bytes -= size
        else:
            return None
        if taken[0].id <= self.sent:  # no call of `invariant`, whose text would be made for each batch
            raise InvariantViolated(f"entry {taken[0].id} after {self.sent} was sent")
        batch = DeliveryBatch(self._partition, self.sent, taken)
        self.sent = last = taken[-1].id
        before = next((_before(entry) for entry in taken if entry.payload is not None), last)
        self._in_flight.append(_SentBatch(before, last, size))
        self.in_flight_bytes += size
        return batch

    def _next_of(self, waiting: deque[RoutedEntry], entries_max: int) -> tuple[list[RoutedEntry], int]:
        """Take the entries of the next batch, at least one; return them and their bytes."""
        taken = [waiting.popleft()]
        size = taken[0].size
        while waiting and len(taken) < entries_max:
            with_next = size + waiting[0].size
            if with_next > self._settings.batch_bytes_max:
                break
            taken.append(waiting.popleft())
            size = with_next
        return taken, size

    def acknowledge(self, through: TransactionId) -> int:
        """Note that the target has applied everything up to `through`; return the bytes of batches that this ends."""
        released = 0
        while self._in_flight and self._in_flight[0].last <= through:
            released += self._in_flight.popleft().size
        self.in_flight_bytes -= released
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
