"""The target's side of one stream: it takes messages in their order, and says what to answer."""

from __future__ import annotations

from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.protocol.reception import Reception, Verdict


class TargetSession:
    """Carries out for one target what `Reception` decides on one stream. `greet` first, then `take` each batch."""

    def __init__(self, target: DeliveryTarget, fence: Fence) -> None:
        """`fence` is that of the stream."""
        self._target = target
        self._reception = Reception(fence)

    async def greet(self, source: DeliverySource) -> Acceptance:
        """Offer the stream to the target; unless it is accepted, the stream is to be ended after the answer.

        Raises what `DeliveryTarget.accept` does.
        """
        return await self._target.accept(self._reception.fence, source)

    async def take(self, batch: DeliveryBatch) -> AppliedBatch | None:
        """Have the target apply a batch; return what to tell the player, None for nothing.

        After an answer with `Verdict.FENCED` or `OUT_OF_PLACE` the stream is to be ended. Raises what
        `DeliveryTarget.apply` does: then, too.
        """
        applied = await self._target.apply(batch, self._reception.judge)
        if applied.refusal:
            self._reception.refuse(batch.partition)
        return None if applied.verdict is Verdict.PASS_OVER else applied
