"""One partition at one target: what the target is known to have of it, and whether it is served or what keeps it."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple, TypeAlias

from polonaise.player.protocol.entries import DeliveryBatch
from polonaise.player.protocol.mainstream import MainStream
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetqueue import QueueBudget, TargetQueue
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId


class Away(NamedTuple):
    """There is no stream on which the target has told what it has applied."""


class Unproved(NamedTuple):
    """The target has told a last id that the log is not known to reach: the answer to a request decides."""

    last: TransactionId
    request: int
    """The first request whose answer counts: it was asked after the target told the id."""


class AwaitingMain(NamedTuple):
    """The target is served behind this id, its last one, as soon as the main stream of the partition has begun."""

    last: TransactionId


class Halt(NamedTuple):
    """The partition is not delivered to the target for this reason, until that is tried again."""

    reason: str
    last: TransactionId
    """The last id that the target has applied."""
    retry_at_s: float
    """Infinite if it is given up."""


PairState: TypeAlias = Away | Unproved | AwaitingMain | Halt | TargetQueue
"""What a pair of target and partition is in: while the target is served, the queue of what waits for it."""

_AWAY: Final = Away()


class TargetPartition:
    """A pair of target and partition, in one state at a time. Fields are written here alone. It outlives streams: what
    the target has applied, and its trouble, is known while it is away, too."""

    def __init__(
        self,
        partition: PartitionId,
        main: MainStream,
        settings: PlayerSettings,
        budget: QueueBudget,
        start_after: TransactionId,
    ) -> None:
        """Begin away. The target gets nothing up to `start_after`, whatever it has applied."""
        self.partition: Final = partition
        self.main: Final = main
        self.start_after: Final = start_after
        self.state: PairState = _AWAY
        self.acked: TransactionId = NO_TRANSACTION
        """The last id that the target is known to have applied; -1 for none."""
        self.told = False
        """Whether the target has told what it has applied."""
        self.passed: TransactionId = NO_TRANSACTION
        """Up to where the target had applied all that is its own, when it was last served."""
        self.batch_entries_max = settings.batch_entries_max
        """The most entries in the next batch; halved each time the target hangs, doubled with progress."""
        self.trouble = ""
        """Why the delivery was halted or its stream ended last, until the target goes on, or lacks nothing."""
        self.given_up = ""
        """Why nothing is delivered for as long as this player lives."""
        self._trouble_stays = False
        """Whether `trouble` was a halt, and nothing was sent since."""
        self._settings = settings
        self._budget = budget
        self._pause_s = settings.retry_s_min

    # ------------------------------------------------------------------ what it is like

    @property
    def queue(self) -> TargetQueue | None:
        return self.state if isinstance(self.state, TargetQueue) else None

    @property
    def delivered(self) -> TransactionId:
        """The id up to which the target has applied all that is its own, as far as is known."""
        known = max(self.acked, self.passed)
        queue, current = self.queue, self.main.current
        return known if queue is None or current is None else max(known, queue.clear_through(current))

    @property
    def lacks_nothing(self) -> bool:
        """Whether the target is served, and has all that is its own of what the main stream has brought."""
        return self.queue is not None and self.main.current is not None and self.delivered >= self.main.current

    @property
    def troubled(self) -> bool:
        """Whether there is a trouble, as with each halt, or a read that has failed."""
        return bool(self.trouble) or (self.queue is not None and self.queue.failed_read is not None)

    @property
    def trouble_now(self) -> str:
        """Why the target is not served now, or not caught up; empty if it is, and if there is no stream to it."""
        match self.state:
            case Unproved():
                return "the log has not told yet how far it reaches"
            case Halt(reason):
                return reason
            case TargetQueue(failed_read=failed) if failed is not None:
                return failed.reason
        return ""

    # ------------------------------------------------------------------ states

    def ask(self, last: TransactionId, request: int) -> None:
        """Wait for the answer to this request, or a later one, to prove that the log reaches what the target told."""
        self.state = Unproved(last, request)

    def await_main(self, last: TransactionId) -> None:
        self.state = AwaitingMain(last)

    def serve(self, last: TransactionId, current: TransactionId) -> TargetQueue:
        """Serve the target, which has applied everything up to `last`, while the main stream is at `current`."""
        if last < self.acked:
            self.passed = NO_TRANSACTION  # it was put back: of what it had, it lacks some
        self.told = True
        self.acked = last
        # Compared with what is pushed and read from now on: the id after which the target's entries begin.
        after = max(last, self.start_after)
        queue = self.state = TargetQueue(self.partition, self._settings, self._budget, last, after, current)
        return queue

    def halt(self, last: TransactionId, reason: str, now_s: float, *, for_good: bool) -> int:
        """Stop for a while, or with `for_good` for as long as the player lives; return as `TargetQueue.drop`."""
        released = self._leave_service()
        if for_good:
            self.given_up = reason
        self.trouble, self._trouble_stays = reason, True
        self.state = Halt(reason, last, inf if for_good else now_s + self._pause_s)
        if not for_good:
            self._lengthen_pause()
        return released

    def disconnect(self, reason: str) -> None:
        self._leave_service()
        # A refusal says more than the end of the stream after it, until what was refused is sent again. Why an
        # earlier stream or attempt failed says nothing any more.
        if not self._trouble_stays:
            self.trouble = reason
        self.state = _AWAY

    def _leave_service(self) -> int:
        queue = self.queue
        if queue is None:
            return 0
        self.passed = self.delivered
        return queue.drop()

    # ------------------------------------------------------------------ while it is served

    def take(self, queue: TargetQueue) -> DeliveryBatch | None:
        """Take the next batch to be sent from the queue of this pair, as `TargetQueue.take`."""
        batch = queue.take(self.batch_entries_max)
        if batch is not None:
            self._trouble_stays = False
        return batch

    def acknowledge(self, through: TransactionId) -> bool:
        """Note that the target has applied everything up to `through`; return whether that is progress."""
        if through <= self.acked:
            return False
        self.acked = through
        self.batch_entries_max = min(2 * self.batch_entries_max, self._settings.batch_entries_max)
        self._pause_s = self._settings.retry_s_min
        self.forget_trouble()
        return True

    def hung(self) -> None:
        """Send half as many entries at a time: the target came to nothing with what was in flight."""
        self.batch_entries_max = max(1, self.batch_entries_max // 2)

    def read_failed(self, queue: TargetQueue, number: int, reason: str, now_s: float) -> bool:
        """Read for the queue of this pair again after a pause; return as `TargetQueue.read_failed`."""
        if not queue.read_failed(number, reason, now_s + self._pause_s):
            return False
        self._lengthen_pause()
        return True

    def forget_trouble(self) -> None:
        self.trouble, self._trouble_stays = "", False

    def _lengthen_pause(self) -> None:
        self._pause_s = min(2 * self._pause_s, self._settings.retry_s_max)
