"""A stream to a target as a test makes it: call by call."""

from __future__ import annotations

from collections.abc import Sequence

from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget
from polonaise.player.protocol.entries import DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception

SOURCE = DeliverySource(bytes(range(16)), "p", "a")


class StreamCalls:
    """The calls of one stream to a target, each awaited."""

    def __init__(self, target: DeliveryTarget, fence: Fence) -> None:
        self.target = target
        self.reception = Reception(fence)

    async def greet(self, source: DeliverySource = SOURCE) -> Acceptance:
        return await self.target.accept(self.reception.fence, source)

    async def take(self, batch: DeliveryBatch) -> AppliedBatch:
        applied = await self.target.apply(batch, self.reception.judge)
        if applied.refusal:
            self.reception.refuse(batch.partition)
        return applied


async def stream(target: DeliveryTarget, epoch: int = 1, term: int = 1) -> StreamCalls:
    """Return a stream that the target has accepted."""
    calls = StreamCalls(target, Fence(epoch, term))
    assert (await calls.greet()).accepted
    return calls


def batch_of(previous: int, payloads: Sequence[str | None], partition: int = 0) -> DeliveryBatch:
    """A batch of consecutive ids; None for a dummy."""
    entries = [
        RoutedEntry(previous + 1 + place, None if payload is None else payload.encode())
        for place, payload in enumerate(payloads)
    ]
    return DeliveryBatch(partition, previous, entries)
