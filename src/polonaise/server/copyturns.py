"""The turns in which the partitions of a server copy to late replicas, as fast as `CopyThrottle` lets them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.server.protocol.copythrottle import Commits, CopyThrottle, ThrottleSettings
from polonaise.server.settings import ServerSettings
from polonaise.terms import StorageId

_LOOK_S: Final = 0.25
"""The longest time until the throttle is asked again: a copy that was smaller than announced shortens the wait."""


class OneCopy:
    """One copy under way, whose maker notes how many bytes it has copied."""

    def __init__(self) -> None:
        self.copied_bytes = 0
        self.worked_s = 0.0
        """The seconds that it took, without the wait for its turn; 0 until it has ended."""


class CopyTurns:
    """Lets some copies at a time be made in the background, at the throttle's rate; session starts do not come here."""

    def __init__(self, host: Host, settings: ServerSettings, latencies: Histogram) -> None:
        """`latencies` has the time that each batch took to be committed."""
        self._host = host
        self._settings = settings
        self._latencies = latencies
        self._throttle = CopyThrottle(
            ThrottleSettings(
                settings.copy_bytes_per_s,
                min(settings.copy_bytes_per_s_min, settings.copy_bytes_per_s),
                settings.copy_share,
                settings.copy_latency_s,
            )
        )
        self._all = asyncio.Semaphore(settings.copies_max)
        self._of_node: defaultdict[StorageId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(settings.copies_per_storage_max)
        )
        self._gate = asyncio.Lock()
        self.waiting = 0
        """How many wait for a turn or for the throttle."""

    @property
    def bytes_per_s(self) -> float:
        """What may be copied at present."""
        return self._throttle.bytes_per_s

    def health(self) -> dict[str, Any]:
        return {
            "bytes": self._throttle.copied_bytes,
            "under_way": self._throttle.under_way,
            "waiting": self.waiting,
            "bytes_per_s": round(self.bytes_per_s),
        }

    @asynccontextmanager
    async def turn(self, name: StorageId) -> AsyncIterator[None]:
        """Wait until a partition may talk to the late replica on this storage node, for the block."""
        async with AsyncExitStack() as held:
            self.waiting += 1
            try:
                # The node's first: those that wait for a slow node must not take the server's turns from other nodes.
                await held.enter_async_context(self._of_node[name])
                await held.enter_async_context(self._all)
            finally:
                self.waiting -= 1
            yield

    @asynccontextmanager
    async def copy(self, name: StorageId) -> AsyncIterator[OneCopy]:
        """Wait for a turn and for the throttle; then the block may copy about `copy_bytes`."""
        clock, size = self._host.clock, self._settings.copy_bytes
        async with self.turn(name):
            await self._let_through()
            began_s = clock.monotonic_s()
            copy = OneCopy()
            self._throttle.begin(began_s, size, self._commits)
            try:
                yield copy
            finally:
                now_s = clock.monotonic_s()
                copy.worked_s = now_s - began_s
                self._throttle.end(now_s, size, copy.copied_bytes, copy.worked_s, self._commits)

    async def _let_through(self) -> None:
        self.waiting += 1
        try:
            async with self._gate:
                while (wait_s := self._throttle.wait_s(self._host.clock.monotonic_s())) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(min(wait_s, _LOOK_S))
        finally:
            self.waiting -= 1

    @property
    def _commits(self) -> Commits:
        return Commits(sum(self._latencies.counts), self._latencies.total)
