"""The turns in which the partitions of a server start their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from polonaise.errors import DeadlineExceeded
from polonaise.server.protocol.startqueue import StartQueue
from polonaise.server.settings import ServerSettings


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
