"""The turns in which the partitions of a server start their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from polonaise.errors import DeadlineExceeded
from polonaise.server.protocol.startqueue import StartQueue


class SessionStarts:
    """Lets partitions start sessions when `StartQueue` says that it is their turn.

    A turn ends with the attempt, or after `turn_s`: what one partition waits for, no other has to. Unless it waits for
    the storage nodes, which all need; then the others would only be one more crowd when these come. As long as turns
    come, those that are many wait for theirs; when none has come to anybody for `wait_s_max`, they are told so.
    """

    def __init__(
        self, at_once_max: int, turn_s: float, wait_s_max: float, storage_is_there: Callable[[], bool]
    ) -> None:
        self._queue = StartQueue(at_once_max)
        self._turn_s = turn_s
        self._wait_s_max = wait_s_max
        self._came_s = float("-inf")
        """When a turn came last."""
        self._storage_is_there = storage_is_there
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self.catch_ups = asyncio.Semaphore(at_once_max)
        """Turns in which partitions bring late replicas up to date, beside their sessions."""

    def want(self, partition: Hashable) -> None:
        """Somebody waits for this partition's session."""
        self._queue.want(partition)

    @asynccontextmanager
    async def turn(self, partition: Hashable, *, wanted: bool, waits: Callable[[str], None]) -> AsyncIterator[None]:
        """A partition's turn; `waits` is told what for if it has not come yet. Raises `DeadlineExceeded`."""
        loop = asyncio.get_running_loop()
        come: asyncio.Future[None] = loop.create_future()
        self._waiting[partition] = come
        self._queue.ask(partition, wanted=wanted)
        self._go_on()
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal timer
            if self._storage_is_there():
                self._leave(partition)
            else:
                timer = loop.call_later(self._turn_s, check)

        try:
            if not come.done():
                waits(self._waits_for())
                await self._until(come)
            timer = loop.call_later(self._turn_s, check)
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(partition, None)
            self._leave(partition)

    async def _until(self, come: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not come.done():
            left_s = max(self._came_s, began_s) + self._wait_s_max - loop.time()
            if left_s <= 0:
                raise DeadlineExceeded(
                    f"no partition of this server could begin to start a session for {self._wait_s_max:g} s: "
                    f"it waits for {self._waits_for()}"
                )
            await asyncio.wait([come], timeout=left_s)

    def _waits_for(self) -> str:
        if self._storage_is_there():
            return "its turn to start a session: other partitions of this server come first"
        return "a majority of the storage nodes, as other partitions of this server do"

    def _leave(self, partition: Hashable) -> None:
        self._queue.leave(partition)
        self._go_on()

    def _go_on(self) -> None:
        while (partition := self._queue.next()) is not None:
            come = self._waiting.pop(partition)
            self._came_s = asyncio.get_running_loop().time()
            if not come.done():
                come.set_result(None)
