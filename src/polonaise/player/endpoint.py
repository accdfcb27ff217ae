"""The port between the player and its transports: streams to a target, wherever that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.terms import PartitionId, TransactionId


class TargetAnswers(Protocol):
    """What a target says of a stream, on its way to the player."""

    def fenced(self, kept: Fence) -> None:
        """The target keeps this fence, and takes nothing more of the stream."""

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """The target has applied all that it was sent of the partition up to this id."""

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        """The target could not apply the entry after `last`."""


class StreamEvents(TargetAnswers, Protocol):
    """What becomes of a stream, told to the player. Nothing is told after `disconnected`, or once it is closed."""

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        """The target has accepted the stream, and told the last id that it has applied, by partition."""

    def written(self) -> None:
        """The stream takes more batches, after a `send` that has returned False."""

    def disconnected(self, reason: str) -> None:
        """The stream has ended."""


class DeliveryStream(Protocol):
    """One stream to a target, as the player sees it."""

    def send(self, batches: Sequence[DeliveryBatch]) -> bool:
        """Send batches, without waiting; return whether more may be sent, or once `StreamEvents.written` says so."""

    def close(self) -> None:
        """Tell nothing more, and have the target take nothing more than what it is applying just now."""

    async def serve(self, source: DeliverySource, open_s_max: float) -> None:
        """Open the stream, and be its task: until it ends, is closed or is cancelled. One that is not accepted within
        `open_s_max` seconds is disconnected. A cancelled one leaves nothing open."""


class DeliveryEndpoint(Protocol):
    """The place where a target is reached: opens streams to it, one after the other. One with a true `tells_kept` may
    be given `NO_FENCE`, which its target answers with the fence that it keeps."""

    def stream(self, fence: Fence, events: StreamEvents) -> DeliveryStream:
        """Return a new stream under this fence; its `serve` opens it."""

    async def close(self) -> None:
        """Let go of what the streams share: called when the player closes, and when the target is removed."""
