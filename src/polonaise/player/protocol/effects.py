"""The effects that `ActivePlayer` returns: what its shell is to carry out, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from polonaise.player.protocol.entries import DeliveryBatch, TargetName, Term
from polonaise.player.protocol.targetqueue import RecoveryRead
from polonaise.terms import PartitionId, TransactionId


class OpenStream(NamedTuple):
    """Open a stream to a target under this term, with the fence; then call `connected`, `fenced` or `disconnected`."""

    target: TargetName
    term: Term


class SendBatches(NamedTuple):
    """Hand the batches to the target's stream of this term; call `written` once, later, it takes more."""

    target: TargetName
    term: Term
    batches: Sequence[DeliveryBatch]


class CloseStream(NamedTuple):
    """Close the target's stream of this term. Nothing that still comes of it counts."""

    target: TargetName
    term: Term
    reason: str


class AskMark(NamedTuple):
    """Ask the log for the partition's committed high-water mark, proved after this; then call `mark_told`."""

    partition: PartitionId
    number: int


class FollowPartition(NamedTuple):
    """Begin, or begin again, the main stream of a partition; call `fetched` with what it brings, `trimmed` if the log
    no longer has `first`, or `stopped`."""

    partition: PartitionId
    number: int
    """For events to name: an earlier main stream is not followed any more."""
    first: TransactionId


class ReadForTarget(NamedTuple):
    """Read a stretch of the log, or its beginning, for one target; then call `recovered` or `recovery_failed`."""

    target: TargetName
    partition: PartitionId
    read: RecoveryRead


class StandDown(NamedTuple):
    """Close everything: another player of this name is active. No event has an effect any more."""

    reason: str


PlayerEffect: TypeAlias = OpenStream | SendBatches | CloseStream | AskMark | FollowPartition | ReadForTarget | StandDown
