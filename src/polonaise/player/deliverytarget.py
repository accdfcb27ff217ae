"""What a target has to do: keep a fence and, for each partition, what it has applied; and apply entries with that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from polonaise.player.protocol.entries import DeliveryBatch, Fence, TargetName
from polonaise.player.protocol.reception import Verdict
from polonaise.terms import PartitionId, TransactionId


class DeliverySource(NamedTuple):
    """Where the entries of a stream come from. A target's memory belongs to one source for ever."""

    log_key: bytes
    """The key of the log: that of the cluster, or of a topic (`Log.log_key`)."""
    player: str
    """The name of the player."""
    target: TargetName
    """The name by which this player knows the target."""

    @property
    def in_words(self) -> str:
        """What an error calls it."""
        return f"target {self.target!r} of player {self.player!r}, for log {self.log_key.hex()}"


Judge: TypeAlias = Callable[[Fence, TransactionId, DeliveryBatch], Verdict]
"""Decides on a batch, given the fence that the target keeps and the last id of the partition that it has applied. May
be called in any thread."""


class Acceptance(NamedTuple):
    """A target's answer to a stream that is offered to it."""

    accepted: bool
    kept: Fence
    """The fence that the target keeps now: that of the stream if it was accepted, or else the one that shuts it out."""
    applied: Mapping[PartitionId, TransactionId]
    """By partition, the last id that the target has applied; empty unless the stream was accepted."""


class AppliedBatch(NamedTuple):
    """What a target did with a batch."""

    verdict: Verdict
    last: TransactionId
    """The last id of the partition that the target has applied; -1 for none."""
    kept: Fence
    """The fence that the target keeps."""
    refusal: str = ""
    """Why the entry after `last` could not be applied; empty if none was refused."""


class DeliveryTarget(Protocol):
    """A place that entries are delivered to, with its durable memory.

    Calls for one stream and partition come one after the other, those for different partitions side by side; streams
    may overlap, and so may processes that share the memory. So both methods read, decide and write in one durable step
    that no other such step of the partition comes in between. Both may be cancelled at any `await`: the step is then
    done whole, or not at all.

    An error that they raise ends the stream, for all partitions, and another one is opened after a pause; an entry that
    can't be applied is no error, but a refusal. What is no `Exception`, such as an exit, ends the player, which raises
    it, or the server of the target.
    """

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Accept a stream under the fence `offered` if that is above the one that is kept, and keep it then. Raises
        `ViewUnfit` if this memory belongs to another source, and `ViewUnavailable` while it can't be used."""

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Ask `judge` what to do; if it is to be applied, apply the entries and keep the last id, in one durable step.
        An entry that can't be applied is refused, with those after it; those before it are applied. A dummy only raises
        the id. Raises `ViewUnavailable` while the memory can't be used: nothing was applied then."""

    async def close(self) -> None:
        """Let go of what is open, after what is being applied is done."""
