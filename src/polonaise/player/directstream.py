"""A stream to a target in the player's own process: messages go through a queue, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from polonaise.errors import InvariantViolated, PolonaiseError
from polonaise.player.deliverytarget import AppliedBatch, DeliveryTarget
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.protocol.reception import Verdict
from polonaise.player.targetsession import TargetSession
from polonaise.terms import PartitionId, TransactionId


class StreamEvents(Protocol):
    """What becomes of a stream, told to the player. Nothing is told after `disconnected`, or once it is closed."""

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        """The target has accepted the stream, and told the last id that it has applied, by partition."""

    def fenced(self, kept: Fence) -> None:
        """The target keeps this fence, and takes nothing more of the stream."""

    def written(self) -> None:
        """The stream takes more batches."""

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """The target has applied all up to this id."""

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        """The target could not apply the entry after `last`."""

    def disconnected(self, reason: str) -> None:
        """The stream has ended."""


class DirectStream:
    """Hands batches to a target of this process, one after the other. `serve` is its task."""

    def __init__(self, target: DeliveryTarget, fence: Fence, events: StreamEvents) -> None:
        self._session = TargetSession(target, fence)
        self._events = events
        self._sent: asyncio.Queue[Sequence[DeliveryBatch]] = asyncio.Queue()
        self._closed = False

    def send(self, batches: Sequence[DeliveryBatch]) -> None:
        """Send batches. Does not wait; `StreamEvents.written` says when more may be sent."""
        self._sent.put_nowait(batches)

    def close(self) -> None:
        """Tell nothing more, and have the target take nothing more than the batch that it is applying just now."""
        self._closed = True

    async def serve(self, log_key: bytes, open_s_max: float) -> None:
        """Open the stream, and have the target take what is sent, until the stream ends or is cancelled."""
        events = self._events
        try:
            async with asyncio.timeout(open_s_max):
                acceptance = await self._session.greet(log_key)
        except TimeoutError:
            events.disconnected(f"the target did not answer within {open_s_max:g} s")
            return
        except Exception as error:  # noqa: BLE001 - see _reason
            events.disconnected(_reason(error))
            return
        if not acceptance.accepted:
            events.fenced(acceptance.kept)
            return
        events.connected(dict(acceptance.applied))
        while not self._closed:
            batches = await self._sent.get()
            events.written()  # the next ones are gathered meanwhile
            for batch in batches:
                # What the player was told last may have made it close the stream.
                if self._closed:
                    return
                try:
                    applied = await self._session.take(batch)
                except Exception as error:  # noqa: BLE001 - likewise
                    events.disconnected(_reason(error))
                    return
                if applied is not None and not self._told(batch, applied):
                    return

    def _told(self, batch: DeliveryBatch, applied: AppliedBatch) -> bool:
        """Tell the player what the target has done; return whether the stream goes on."""
        if applied.verdict is Verdict.FENCED:
            self._events.fenced(applied.kept)
        elif applied.verdict is Verdict.OUT_OF_PLACE:
            what = f"it has applied {applied.last}, and was sent what follows {batch.previous}"
            self._events.disconnected(f"partition {batch.partition}: {what}")
        elif applied.refusal:
            self._events.refused(batch.partition, applied.last, applied.refusal)
            return True
        else:
            self._events.acknowledged(batch.partition, applied.last)
            return True
        return False


def _reason(error: Exception) -> str:
    """Return why the target ends the stream. Its code is the application's: no error of it ends more than that.

    Raises a mistake of our own code.
    """
    if isinstance(error, InvariantViolated):
        raise error
    return str(error) if isinstance(error, PolonaiseError) else f"the target failed: {type(error).__name__}: {error}"
