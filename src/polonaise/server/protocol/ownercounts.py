"""The counts of an owner: what has happened in its partition, for health and metrics. No decision rests on them."""

from __future__ import annotations

from collections.abc import Sequence

from polonaise.histogram import Histogram
from polonaise.server.protocol.order import Order, Refusal, SealedBatch
from polonaise.terms import FailureReason, TransactionId


class OwnerCounts(dict[str, int]):
    """Counts by name, from the beginning of the ownership; raised once for a whole batch or frame. No decision rests on
    them.

    They are counts of appends unless they say otherwise.

    - `sessions`: sessions started. `committed_batches`, `committed_transactions`, `committed_bytes`: what this owner
      committed, in bytes of batches.
    - `refused`: appends judged and refused. `conflicts`: those of them refused because of a lock.
      `conflicts_before_session`: those conflicts that rest on nothing ordered in the session, but on how little is
      known of the locks from before it. `conflicts_by_table`: others, judged while the locks shared places in the
      table. Of these two kinds some may be false; all other conflicts are certain.
    - `expired`: appends that waited in the inbox past their deadline. `void_appends`: those that came without a mount
      on their connection, or whose mount had ended when they were to be judged.
    """

    def __init__(self, latencies: Histogram | None = None) -> None:
        super().__init__(
            void_appends=0,
            expired=0,
            sessions=0,
            refused=0,
            conflicts=0,
            conflicts_before_session=0,
            conflicts_by_table=0,
            committed_batches=0,
            committed_transactions=0,
            committed_bytes=0,
        )
        self._latencies = latencies or Histogram()
        self._received_s: list[float] = []
        """When the oldest append of each batch arrived that was committed since the last `measure`."""

    def committed(self, batch: SealedBatch) -> None:
        self["committed_batches"] += 1
        self["committed_transactions"] += batch.last - batch.first + 1
        self["committed_bytes"] += len(batch.raw)
        self._received_s.append(batch.received_s)

    def measure(self, now_s: float) -> None:
        """Observe how long each batch committed since the last call took, from the receipt of its oldest append."""
        for received_s in self._received_s:
            self._latencies.observe(now_s - received_s)
        self._received_s.clear()

    def judged(self, refusals: Sequence[Refusal], order: Order, closing: TransactionId) -> None:
        """Count the refusals of one frame; `closing` is the last id before the session."""
        self["refused"] += len(refusals)
        conflicts = [each.value for each in refusals if each.reason is FailureReason.LOCK_CONFLICT]
        self["conflicts"] += len(conflicts)
        self["conflicts_before_session"] += conflicts.count(closing)
        if not order.locks.exact:
            self["conflicts_by_table"] += len(conflicts) - conflicts.count(closing)
