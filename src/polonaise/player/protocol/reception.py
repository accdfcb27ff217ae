"""A stream as its target sees it: what to do with each batch, by what the target keeps durably."""

from __future__ import annotations

import enum
from typing import Final

from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.terms import PartitionId, TransactionId


class Verdict(enum.Enum):
    """What a target does with a batch."""

    APPLY = "apply"
    """Apply the entries in their order; then acknowledge the last one that was applied."""
    PASS_OVER = "pass over"
    """Do nothing: it was sent before the player heard that an earlier entry was refused, and will be sent again."""
    FENCED = "fenced"
    """Apply nothing, and tell the player the fence that the target keeps: a later stream has taken over."""
    OUT_OF_PLACE = "out of place"
    """Apply nothing, and end the stream: an entry is missing before this batch, or it was applied already."""


class Reception:
    """Judges the batches of one stream.

    The target keeps the fence of the last stream that it has accepted, and for each partition the id of the last entry
    that it has applied. Both are read, and the id is written, in the transaction that applies an entry: another process
    of the target may serve a later stream meanwhile.

    Calls about one partition come one after the other; those about different ones may come from several threads.
    """

    def __init__(self, fence: Fence) -> None:
        self.fence: Final = fence
        self._refused: set[PartitionId] = set()

    @staticmethod
    def accepts(kept: Fence, offered: Fence) -> bool:
        """Return whether a target that keeps the fence `kept` accepts a stream with the fence `offered`. If so, it
        writes `offered` durably, in one step with reading what it has applied, before it answers."""
        return offered > kept

    def judge(self, kept: Fence, applied: TransactionId, batch: DeliveryBatch) -> Verdict:
        """Return what to do with a batch; `applied` is the last id that was applied of its partition."""
        if kept != self.fence:
            return Verdict.FENCED
        if batch.previous == applied:
            # After a refusal only the refused entry, sent again, comes behind what was applied: streams keep the order.
            self._refused.discard(batch.partition)
            return Verdict.APPLY
        return Verdict.PASS_OVER if batch.partition in self._refused else Verdict.OUT_OF_PLACE

    def refuse(self, partition: PartitionId) -> None:
        """Note that an entry of the partition could not be applied, and that the player is told so."""
        self._refused.add(partition)
