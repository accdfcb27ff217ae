"""One target as the active player sees it: its stream, its queues, what is in flight, and when it is tried again."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from math import inf
from typing import Final

from polonaise.player.protocol.entries import DeliveryBatch, TargetName, Term
from polonaise.player.protocol.mainstream import MainStream
from polonaise.player.protocol.patience import TargetPatience
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetpartition import Halt, TargetPartition
from polonaise.player.protocol.targetqueue import QueueBudget, TargetQueue
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_OPEN_MARGIN: Final = 4
"""A target may take so many times as long to accept a stream as it has taken for the last one."""
_OPEN_GROWTH_MAX: Final = 6
"""By so much at most that time grows."""


class StreamState(enum.Enum):
    """The states of a target's stream."""

    DOWN = "down"
    """There is none; the next one is opened after a pause."""
    OPENING = "opening"
    """It is being opened: the target has not told yet what it has applied."""
    UP = "up"
    """The target has accepted the fence, and told what it has applied."""


class TargetStream:
    """One target as the active player sees it: the stream to it, and for each partition how far delivery has come."""

    def __init__(
        self,
        name: TargetName,
        settings: PlayerSettings,
        partitions: Mapping[PartitionId, MainStream],
        start_after: Mapping[PartitionId, TransactionId],
        last_term: Term = 0,
    ) -> None:
        """Begin without a stream, to be opened at once, under terms above `last_term`."""
        self.name: Final = name
        self.term: Term = last_term
        """The term of the stream that was opened last. `open` raises it by one; `ActivePlayer.fenced` raises it to the
        term that the target keeps."""
        self.state = StreamState.DOWN
        self.reason = "not tried yet"
        """Why there is no stream, or why the last one ended."""
        self.retry_at_s = -inf
        """When the next stream is opened, in monotonic seconds, while there is none."""
        self.writing = False
        """Whether the stream has not said yet that it takes more than it was handed. `ActivePlayer.written` clears
        it."""
        self.in_flight_bytes = 0
        """Sent and not acknowledged, of all partitions."""
        budget = QueueBudget(settings)
        self.pairs: Final = {
            partition: TargetPartition(partition, main, settings, budget, start_after.get(partition, NO_TRANSACTION))
            for partition, main in partitions.items()
        }
        self._settings = settings
        self._troubled: dict[PartitionId, TargetPartition] = {}
        """The pairs that ticks look at, with a trouble or a failed read, in the order in which these came."""
        self._ready: dict[PartitionId, None] = {}
        self.slow: dict[PartitionId, bool] = {}
        """The partitions of which the target has acknowledged nothing for long, and whether it has meanwhile gone on
        with what it was sent before."""
        self.open_s_max = settings.open_s_max
        """How long the target may take to accept the next stream."""
        self.patience: Final = TargetPatience(settings)
        self._since_s = inf
        """Since when the stream is opening, or up."""
        self._pause_s = settings.retry_s_min

    # ------------------------------------------------------------------ the stream

    def open(self, now_s: float) -> Term:
        # Counted here, not when it succeeds: an attempt whose answer was lost has raised the fence at the target.
        self.term += 1
        self.state = StreamState.OPENING
        self._since_s = now_s
        return self.term

    def opened(self, now_s: float) -> None:
        # As long as it has taken now, and some more, it may take again.
        took_s = now_s - self._since_s
        self.open_s_max = max(self._settings.open_s_max, min(self.open_s_max, _OPEN_MARGIN * took_s))
        self.state = StreamState.UP
        self.reason = ""
        self._since_s = now_s

    def close(self, reason: str, now_s: float) -> None:
        """End the stream or the attempt, and forget what was queued for it; decide when the next one is opened."""
        for pair in self.pairs.values():
            pair.disconnect(reason)
            self._troubled.setdefault(pair.partition, pair)
        self._ready.clear()
        self.in_flight_bytes = 0
        self.writing = False
        self.patience.forget_all()
        self.slow.clear()
        if self.state is StreamState.OPENING and now_s - self._since_s >= self.open_s_max:
            self.open_s_max = min(2 * self.open_s_max, _OPEN_GROWTH_MAX * self._settings.open_s_max)
        if self.state is StreamState.UP and now_s - self._since_s >= self._settings.steady_s:
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
        Empty while the stream is not up, or is still taking what it was handed before."""
        batches: list[DeliveryBatch] = []
        if not self._ready or self.writing or self.state is not StreamState.UP:
            return batches
        size, settings, ready = 0, self._settings, self._ready
        while ready and self.in_flight_bytes < settings.window_bytes and size < settings.batch_bytes_max:
            partition = next(iter(ready))
            del ready[partition]
            pair = self.pairs[partition]
            queue = pair.queue
            if queue is None:
                continue
            in_flight_bytes = queue.in_flight_bytes
            batch = pair.take(queue)
            if batch is None:
                continue
            batch_bytes = queue.in_flight_bytes - in_flight_bytes  # as the queue has counted, entry by entry
            if queue.waits:
                ready[partition] = None
            self.patience.sent(partition, now_s)
            batches.append(batch)
            size += batch_bytes
            self.in_flight_bytes += batch_bytes
        self.writing = bool(batches)
        return batches

    def acknowledged(self, pair: TargetPartition, queue: TargetQueue, through: TransactionId, now_s: float) -> None:
        """Note that the target, which is served from this queue, has applied all of the partition up to `through`."""
        is_progress = pair.acknowledge(through)
        self.in_flight_bytes -= queue.acknowledge(through)
        if is_progress:
            self.slow.pop(pair.partition, None)
            self.patience.acknowledged(pair.partition, queue.in_flight, now_s)
        if queue.waits:
            self.ready(pair.partition)  # its window was full

    def halt(
        self, pair: TargetPartition, last: TransactionId, reason: str, now_s: float, *, for_good: bool = False
    ) -> None:
        """Stop the delivery of one partition for a while, or `for_good`, on later streams too."""
        self.in_flight_bytes -= pair.halt(last, reason, now_s, for_good=for_good)
        self.patience.forget(pair.partition)
        self.slow.pop(pair.partition, None)
        self._note_trouble(pair)

    def read_failed(self, pair: TargetPartition, number: int, reason: str, now_s: float) -> None:
        """Note that the log could not be read for this target, if that is waited for."""
        queue = pair.queue
        if queue is not None:
            failed_before = queue.failed_read is not None
            if pair.read_failed(queue, number, reason, now_s) and not failed_before:
                self._note_trouble(pair)

    def _note_trouble(self, pair: TargetPartition) -> None:
        self._troubled.pop(pair.partition, None)
        self._troubled[pair.partition] = pair

    # ------------------------------------------------------------------ time

    def silence(self, now_s: float) -> str:
        """Return what the target has not done for too long, as a reason to close the stream; empty if nothing. A target
        that hangs gets less at a time on the next stream."""
        # The shell has a deadline for this, too; whatever becomes of it, the next attempt must come.
        if self.state is StreamState.OPENING and now_s - self._since_s >= 2 * self.open_s_max:
            return f"it did not accept the stream within {2 * self.open_s_max:g} s"
        patience_s = self.patience.patience_s(now_s)
        stuck = self.patience.stuck(now_s)
        if not stuck:
            self.slow = dict(self.patience.late(now_s))
            return ""
        for partition in stuck:
            self.pairs[partition].hung()
        return f"it hangs: it acknowledged nothing of partition {stuck[0]} for {patience_s:.3g} s"

    def forget_troubles(self) -> None:
        for pair in list(self._troubled.values()):
            if pair.lacks_nothing:
                pair.forget_trouble()
            if not pair.troubled:
                del self._troubled[pair.partition]

    def due_halts(self, now_s: float) -> list[tuple[TargetPartition, Halt]]:
        return [
            (pair, pair.state)
            for pair in self._troubled.values()
            if isinstance(pair.state, Halt) and pair.state.retry_at_s <= now_s
        ]

    def due_reads(self, now_s: float) -> list[tuple[TargetPartition, TargetQueue]]:
        return [
            (pair, queue)
            for pair in self._troubled.values()
            if (queue := pair.queue) is not None and queue.retry_read(now_s)
        ]
