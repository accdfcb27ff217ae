"""The turns in which the partitions of a server start their sessions, and copy to late replicas."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from polonaise.errors import DeadlineExceeded
from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.server.protocol.copythrottle import Commits, CopyThrottle, ThrottleSettings
from polonaise.server.protocol.turns import StartQueue
from polonaise.server.settings import ServerSettings
from polonaise.terms import StorageId


class StartTurns:
    """Lets partitions start sessions when `StartQueue` says that it is their turn.

    A turn ends with the attempt, or after `session_start_turn_s`: what one partition waits for, another may not need.
    While `storage_connected` says that too few storage nodes are connected, only the attempt's end ends it: all wait
    for nodes, and would crowd in together when these come back.
    """

    def __init__(self, settings: ServerSettings, storage_connected: Callable[[], bool]) -> None:
        self._queue = StartQueue(settings.session_starts_max)
        self._settings = settings
        self._last_turn_s = float("-inf")
        self._storage_connected = storage_connected
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}

    def want(self, partition: Hashable) -> None:
        """Note that a client waits for this partition's session."""
        self._queue.want(partition)

    @asynccontextmanager
    async def turn(self, partition: Hashable, *, wanted: bool, report: Callable[[str], None]) -> AsyncIterator[None]:
        """Wait for a partition's turn, then run the `async with` block, whose end ends the turn at the latest.

        `wanted` says that a client waits for the partition. `report` is called with what the partition waits for.
        Raises `DeadlineExceeded` when no partition has got a turn for `session_start_wait_s_max` seconds.
        """
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting[partition] = granted
        self._queue.ask(partition, wanted=wanted)
        self._grant_turns()
        timer: asyncio.TimerHandle | None = None

        def end_turn() -> None:
            nonlocal timer
            if self._storage_connected():
                self._leave(partition)
            else:
                timer = loop.call_later(self._settings.session_start_turn_s, end_turn)

        try:
            if not granted.done():
                report(self._waits_for())
                await self._wait_for(granted)
            timer = loop.call_later(self._settings.session_start_turn_s, end_turn)
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(partition, None)
            self._leave(partition)

    async def _wait_for(self, granted: asyncio.Future[None]) -> None:
        """Wait for a turn; the deadline starts anew whenever any partition gets one."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not granted.done():
            left_s = max(self._last_turn_s, began_s) + self._settings.session_start_wait_s_max - loop.time()
            if left_s <= 0:
                raise DeadlineExceeded(
                    f"no partition of this server could begin to start a session for "
                    f"{self._settings.session_start_wait_s_max:g} s: {self._waits_for()}"
                )
            await asyncio.wait([granted], timeout=left_s)

    def _waits_for(self) -> str:
        if self._storage_connected():
            return "waiting for its turn to start a session: other partitions of this server come first"
        return (
            "waiting for storage nodes, as other partitions of this server do: fewer are connected than a majority of "
            "a partition's copies"
        )

    def _leave(self, partition: Hashable) -> None:
        self._queue.leave(partition)
        self._grant_turns()

    def _grant_turns(self) -> None:
        while (partition := self._queue.next()) is not None:
            granted = self._waiting.pop(partition)
            self._last_turn_s = asyncio.get_running_loop().time()
            if not granted.done():
                granted.set_result(None)


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
