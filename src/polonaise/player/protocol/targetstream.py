"""One target as the active player sees it: its stream, its queues, what is in flight, and when it is tried again."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final, NamedTuple

from polonaise.player.protocol.entries import DeliveryBatch, TargetName, Term
from polonaise.player.protocol.patience import TargetPatience
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetqueue import QueueBudget, ReadNumbers, TargetQueue
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_OPEN_MARGIN: Final = 4
"""A target may take so many times as long to accept a stream as it has taken for the last one."""
_OPEN_GROWTH_MAX: Final = 6
"""By so much at most the time grows that a target may take to accept a stream."""


class StreamState(enum.Enum):
    """The states of a target's stream."""

    DOWN = "down"
    """There is none; the next one is opened after a pause."""
    OPENING = "opening"
    """It is being opened: the target has not told yet what it has applied."""
    UP = "up"
    """The target has accepted the fence, and told what it has applied."""


class Halt(NamedTuple):
    """Why one partition is not delivered to a target, and when that is tried again."""

    reason: str
    last: TransactionId
    """The last id that the target has applied."""
    retry_at_s: float


class FailedRead(NamedTuple):
    """Why the log could not be read for a target that catches up, and when that is tried again."""

    reason: str
    retry_at_s: float
    """Infinite while it is being tried."""


class Unproved(NamedTuple):
    """A last id told by a target that the log is not known to reach: the answer to a request decides."""

    last: TransactionId
    request: int
    """The number of the first request whose answer counts: it was asked after the target told the id."""


class TargetStream:
    """A target's queues, one for each partition, and the one stream that they share."""

    def __init__(
        self,
        name: TargetName,
        settings: PlayerSettings,
        read_numbers: ReadNumbers,
        start_after: Mapping[PartitionId, TransactionId],
        last_term: Term = 0,
    ) -> None:
        """Begin without a stream, to be opened at once, under terms above `last_term`. `start_after` is as for
        `TargetQueue`, by partition."""
        self.name = name
        self.term: Term = last_term
        """The term of the present or last stream; each attempt to open one has its own."""
        self.state = StreamState.DOWN
        self.reason = "not tried yet"
        """Why there is no stream, or why the last one ended."""
        self.retry_at_s = -inf
        """When the next stream is opened, while there is none; in monotonic seconds."""
        self.troubles: dict[PartitionId, str] = {}
        """By partition, why its delivery was halted or its stream ended last, until the target has applied something of
        it after that, or lacks nothing."""
        self._halted: set[PartitionId] = set()
        """The partitions of `troubles` that were halted, of which nothing was sent since."""
        self.writing = False
        """Whether batches were handed to the stream, and it has not said yet that it takes more."""
        self.in_flight_bytes = 0
        """The bytes sent and not acknowledged, of all partitions."""
        self.halts: dict[PartitionId, Halt] = {}
        self.given_up: dict[PartitionId, str] = {}
        """By partition, why nothing is delivered to the target for as long as this player lives."""
        self.failed_reads: dict[PartitionId, FailedRead] = {}
        self.unproved: dict[PartitionId, Unproved] = {}
        self.proved: dict[PartitionId, TransactionId] = {}
        """What the target has applied, in partitions whose main stream has not begun."""
        self.queues: dict[PartitionId, TargetQueue] = {}
        self._settings = settings
        self._read_numbers = read_numbers
        self._start_after = start_after
        self._budget = QueueBudget(settings)
        self._ready: dict[PartitionId, None] = {}
        self.slow: dict[PartitionId, bool] = {}
        """The partitions of which the target has acknowledged nothing for long, and whether it has meanwhile gone on
        with what it was sent before."""
        self.open_s_max = settings.open_s_max
        """How long the target may take to accept the next stream: longer after an attempt that has taken so long."""
        self.patience = TargetPatience(settings)
        self._up_since_s = inf
        self._opening_since_s = inf
        self._pause_s = settings.retry_s_min
        self._pauses_s: dict[PartitionId, float] = {}

    def queue(self, partition: PartitionId) -> TargetQueue:
        """Return the target's queue for a partition, made when it is first asked for."""
        queue = self.queues.get(partition)
        if queue is None:
            after = self._start_after.get(partition, NO_TRANSACTION)
            queue = TargetQueue(partition, self._settings, self._budget, self._read_numbers, after)
            self.queues[partition] = queue
        return queue

    # ------------------------------------------------------------------ the stream

    def open(self, now_s: float) -> Term:
        """Begin an attempt to open a stream; return its term."""
        # Counted here, not when it succeeds: an attempt whose answer was lost has raised the fence at the target.
        self.term += 1
        self.state = StreamState.OPENING
        self._opening_since_s = now_s
        return self.term

    def opened(self, now_s: float) -> None:
        """Note that the target has accepted the fence."""
        # As long as it has taken now, and some more, it may take again.
        took_s = now_s - self._opening_since_s
        self.open_s_max = max(self._settings.open_s_max, min(self.open_s_max, _OPEN_MARGIN * took_s))
        self.state = StreamState.UP
        self.reason = ""
        self._up_since_s = now_s

    def close(self, reason: str, current: Mapping[PartitionId, TransactionId | None], now_s: float) -> None:
        """End the stream or the attempt, and forget all that was queued for it; decide when the next one is opened.

        `current` says by partition where the main stream is, None where it has not begun.
        """
        for partition, queue in self.queues.items():
            queue.suspend(current[partition])
            # A refusal says more than the end of the stream after it, until what was refused is sent again. Why an
            # earlier stream or attempt failed says nothing any more.
            if partition not in self._halted:
                self.troubles[partition] = reason
        self.halts.clear()
        self.failed_reads.clear()
        self.unproved.clear()
        self.proved.clear()
        self._ready.clear()
        self.in_flight_bytes = 0
        self.writing = False
        self.patience.forget_all()
        self.slow.clear()
        if self.state is StreamState.OPENING and now_s - self._opening_since_s >= self.open_s_max:
            self.open_s_max = min(2 * self.open_s_max, _OPEN_GROWTH_MAX * self._settings.open_s_max)
        if self.state is StreamState.UP and now_s - self._up_since_s >= self._settings.steady_s:
            self._pause_s = self._settings.retry_s_min
        self.state = StreamState.DOWN
        self.reason = reason
        self.retry_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._settings.retry_s_max)

    # ------------------------------------------------------------------ batches

    def ready(self, partition: PartitionId) -> None:
        """Note that the queue of a partition may have an entry to send; partitions take turns."""
        self._ready.setdefault(partition)

    def take(self, now_s: float) -> list[DeliveryBatch]:
        """Take what is to be handed to the stream now: batches of partitions in turn, as far as the window allows.

        Empty while the stream is not up, or is still taking what it was handed before.
        """
        batches: list[DeliveryBatch] = []
        if not self._ready or self.writing or self.state is not StreamState.UP:
            return batches
        size, settings, ready = 0, self._settings, self._ready
        while ready and self.in_flight_bytes < settings.window_bytes and size < settings.batch_bytes_max:
            partition = next(iter(ready))
            del ready[partition]
            queue = self.queues[partition]
            in_flight_bytes = queue.in_flight_bytes
            batch = queue.take()
            if batch is None:
                continue
            self._halted.discard(partition)
            batch_bytes = queue.in_flight_bytes - in_flight_bytes  # as the queue has counted, entry by entry
            if queue.waits:
                ready[partition] = None
            self.patience.sent(partition, now_s)
            batches.append(batch)
            size += batch_bytes
            self.in_flight_bytes += batch_bytes
        self.writing = bool(batches)
        return batches

    def acknowledged(self, partition: PartitionId, through: TransactionId, now_s: float) -> None:
        """Note that the target has applied everything of the partition up to `through`."""
        queue = self.queues[partition]
        is_progress = through > queue.acked
        if is_progress:
            self.slow.pop(partition, None)
            self._pauses_s.pop(partition, None)
            self.forget_trouble(partition)
            queue.batch_entries_max = min(2 * queue.batch_entries_max, self._settings.batch_entries_max)
        self.in_flight_bytes -= queue.acknowledge(through)
        if is_progress:
            self.patience.acknowledged(partition, queue.in_flight, now_s)
        if queue.waits:
            self.ready(partition)  # its window was full

    def halt(
        self,
        partition: PartitionId,
        last: TransactionId,
        reason: str,
        current: TransactionId | None,
        now_s: float,
        *,
        for_good: bool = False,
    ) -> None:
        """Stop the delivery of one partition for a while, and leave the others alone; `current` is as for `close`.

        With `for_good` it is not tried again, on a later stream neither.
        """
        if for_good:
            self.given_up[partition] = reason
        self.in_flight_bytes -= self.queue(partition).suspend(current)
        self.patience.forget(partition)
        self.slow.pop(partition, None)
        self.failed_reads.pop(partition, None)
        self.troubles[partition] = reason
        self._halted.add(partition)
        retry_at_s = inf if for_good else now_s + self._next_pause_s(partition)
        self.halts[partition] = Halt(reason, last, retry_at_s)

    def forget_trouble(self, partition: PartitionId) -> None:
        """Forget what hindered the delivery of a partition: the target has gone on, or lacks nothing of it."""
        self.troubles.pop(partition, None)
        self._halted.discard(partition)

    def read_failed(self, partition: PartitionId, reason: str, now_s: float) -> None:
        """Note that the log could not be read for this target."""
        self.failed_reads[partition] = FailedRead(reason, now_s + self._next_pause_s(partition))

    def _next_pause_s(self, partition: PartitionId) -> float:
        """Return the next pause of a partition: twice as long each time, until the target has applied something."""
        pause_s = self._pauses_s.get(partition, self._settings.retry_s_min)
        self._pauses_s[partition] = min(2 * pause_s, self._settings.retry_s_max)
        return pause_s

    # ------------------------------------------------------------------ time

    def silence(self, now_s: float) -> str:
        """Return what the target has not done for too long, as a reason to close the stream; empty if nothing.

        A target that came to nothing with what is in flight gets less at a time on the next stream.
        """
        # The shell has a deadline for this, too; whatever becomes of it, the next attempt must come.
        if self.state is StreamState.OPENING and now_s - self._opening_since_s >= 2 * self.open_s_max:
            return f"it did not accept the stream within {2 * self.open_s_max:g} s"
        patience_s = self.patience.patience_s(now_s)
        stuck = self.patience.stuck(now_s)
        if not stuck:
            self.slow = dict(self.patience.late(now_s))
            return ""
        for partition in stuck:
            queue = self.queues[partition]
            queue.batch_entries_max = max(1, queue.batch_entries_max // 2)
        return f"it hangs: it acknowledged nothing of partition {stuck[0]} for {patience_s:.3g} s"

    def due_halts(self, now_s: float) -> Iterable[tuple[PartitionId, Halt]]:
        """Return the partitions whose delivery is to be tried again, and no longer count them as halted."""
        due = [(partition, halt) for partition, halt in self.halts.items() if halt.retry_at_s <= now_s]
        for partition, _ in due:
            del self.halts[partition]
        return due

    def due_reads(self, now_s: float) -> Iterable[TargetQueue]:
        """Return the queues whose reads are to be tried again now."""
        for partition, failed in list(self.failed_reads.items()):
            if failed.retry_at_s <= now_s:
                # What it failed for is told until it has succeeded.
                self.failed_reads[partition] = FailedRead(failed.reason, inf)
                self.queues[partition].retry_read()
                yield self.queues[partition]
