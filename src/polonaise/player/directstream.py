"""Streams to a target in the player's own process: batches go through a queue, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from polonaise.player.deliverytarget import DeliverySource, DeliveryTarget
from polonaise.player.endpoint import DeliveryStream, StreamEvents
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.targetsession import ServedTarget


class DirectEndpoint:
    """Opens streams to a target of the player's own process."""

    tells_kept = True

    def __init__(self, target: DeliveryTarget) -> None:
        """`target` stays the application's: `close` does not close it."""
        self._served = ServedTarget(target)

    def stream(self, fence: Fence, events: StreamEvents) -> DeliveryStream:
        return DirectStream(self._served, fence, events)

    async def close(self) -> None:
        """Do nothing: what the streams share is the target."""


class DirectStream:
    """Hands batches to the session of a target in this process, and its answers to the player."""

    def __init__(self, served: ServedTarget, fence: Fence, events: StreamEvents) -> None:
        self._session = served.session(fence, self)
        self._events = events
        self._over = asyncio.Event()
        """Set once nothing more is to be told."""
        self._failure: BaseException | None = None
        self.acknowledged, self.refused, self.eased = events.acknowledged, events.refused, events.written

    def send(self, batches: Sequence[DeliveryBatch]) -> bool:
        for batch in batches:
            self._session.take(batch)
        return not self._session.full

    def close(self) -> None:
        self._session.close()
        self._over.set()

    async def serve(self, source: DeliverySource, open_s_max: float) -> None:
        session, events = self._session, self._events
        try:
            try:
                async with asyncio.timeout(open_s_max):
                    applied = await session.greet(source)
            except TimeoutError:  # that of the deadline: those of the target are wrapped
                if not self._over.is_set():
                    self.close()
                    events.disconnected(f"the target did not answer within {open_s_max:g} s")
                return
            if applied is None:
                return
            events.connected(applied)
            await self._over.wait()
        finally:
            session.close()
            await session.gone()
            if self._failure is not None:
                raise self._failure

    # ------------------------------------------------------------------ what the session answers

    def fenced(self, kept: Fence) -> None:
        self._over.set()
        self._events.fenced(kept)

    def ended(self, reason: str) -> None:
        self._over.set()
        self._events.disconnected(reason)

    def failed(self, error: BaseException) -> None:
        self._failure = error
        self._over.set()
