"""The target of the measurements: it keeps everything in memory, and notes when entries arrive."""

from __future__ import annotations

import time

from benchmarks.deliveries.form import Notes

from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId


class ReceivingTarget:
    """A target that only receives, as those of the paper's experiments do."""

    def __init__(self, *, with_times: bool = True) -> None:
        self.notes = Notes(with_times=with_times)
        self._kept = NO_FENCE
        self._applied: dict[PartitionId, TransactionId] = {}

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Accept a stream under a higher fence."""
        if not Reception.accepts(self._kept, offered):
            return Acceptance(False, self._kept, {})
        self._kept = offered
        return Acceptance(True, offered, dict(self._applied))

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Note the entries' arrival."""
        now_ns = time.monotonic_ns()
        last = self._applied.get(batch.partition, NO_TRANSACTION)
        verdict = judge(self._kept, last, batch)
        if verdict is Verdict.APPLY:
            self.notes.received([entry.payload for entry in batch.entries if entry.payload is not None], now_ns)
            last = self._applied[batch.partition] = batch.last
        return AppliedBatch(verdict, last, self._kept)

    async def close(self) -> None:
        """Keep nothing open."""
