"""A target that is watched: what it answers has to be on its disk at that moment."""

from __future__ import annotations

from typing import cast

from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget, Judge
from polonaise.player.protocol.entries import DeliveryBatch, Fence, TargetName
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.judges.deliverycheck import DeliveryCheck
from polonaise_proving.record.targetmemory import TargetMemory


class WatchedTarget:
    """A target whose answers are compared with its disk at the moment when they are given."""

    def __init__(self, inner: DeliveryTarget, check: DeliveryCheck, name: TargetName) -> None:
        self._inner = inner
        self._check = check
        self._name = name

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Pass the stream on; an accepted fence has to be durable, and so what was told as applied."""
        put_back = self._check.targets[self._name].put_back
        acceptance = await self._inner.accept(offered, source)
        memory = self._check.look(self._name).memory
        if put_back != self._check.targets[self._name].put_back:
            return acceptance
        if acceptance.accepted and memory.fence < offered:
            self._check.violated(f"{self._name} to keep {offered}, as it has answered", f"{memory.fence} on its disk")
        for partition, last in acceptance.applied.items():
            self._is_kept(memory, partition, last)
        return acceptance

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Pass the batch on; it may be applied under the fence that is kept only, and has to be durable then."""

        def judging(kept: Fence, applied: TransactionId, given: DeliveryBatch) -> Verdict:
            verdict = judge(kept, applied, given)
            fence = cast(Reception, judge.__self__).fence  # type: ignore[attr-defined]
            durable = self._check.look(self._name).memory.fence
            if verdict is Verdict.APPLY and fence != durable:
                self._check.violated(f"{self._name} to apply nothing but under {durable}", f"a batch under {fence}")
            return verdict

        put_back = self._check.targets[self._name].put_back
        applied = await self._inner.apply(batch, judging)
        if applied.verdict is Verdict.APPLY and put_back == self._check.targets[self._name].put_back:
            self._is_kept(self._check.look(self._name).memory, batch.partition, applied.last)
        return applied

    async def close(self) -> None:
        await self._inner.close()

    def _is_kept(self, memory: TargetMemory, partition: PartitionId, last: TransactionId) -> None:
        if memory.last(partition) < last:
            expected = f"{self._name} to have applied {last} of partition {partition}, as it has answered"
            self._check.violated(expected, f"{memory.last(partition)} on its disk")
