"""Waiting with deadlines, for marks and for room: cheap enough to be done for every append."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from polonaise.errors import PolonaiseError, WrongEventLoop
from polonaise.terms import TransactionId

T = TypeVar("T")


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises `WrongEventLoop` unless this is called within that loop: another's waiters would never be woken."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise WrongEventLoop(
            "a client belongs to the event loop, and the thread, that it was connected in: call it there "
            "(asyncio.run_coroutine_threadsafe does from elsewhere), or connect another one here"
        )


async def until(future: asyncio.Future[T], deadline_s: float | None) -> T:
    """The result of `future`, which belongs to this waiter alone.

    Raises `TimeoutError` when the loop's time passes `deadline_s`. Costs one timer of the loop, and none without a
    deadline.
    """
    if deadline_s is None:
        return await future
    timer = asyncio.get_running_loop().call_at(deadline_s, _expire, future)
    try:
        return await future
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen: whoever waits gets it, and nobody may be waiting any more."""
    if not future.cancelled():
        future.exception()


class AppliedMark:
    """How far a partition is applied in this process, and who waits for it to get further."""

    __slots__ = ("_births", "_stopped", "_sweep_at", "_waiting", "trouble", "value")

    def __init__(self, value: TransactionId) -> None:
        self.value = value
        """The client high-water mark: everything up to this id is applied."""
        self.trouble: PolonaiseError | None = None
        """Why the application's view gets no further at the moment; None while it does."""
        self._waiting: list[tuple[TransactionId, int, asyncio.Future[None]]] = []
        self._births = 0
        self._sweep_at = 1024
        self._stopped: PolonaiseError | None = None

    def reach(self, value: TransactionId) -> None:
        self.value = value
        waiting = self._waiting
        while waiting and waiting[0][0] <= value:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    async def wait(self, value: TransactionId, deadline_s: float | None = None) -> None:
        """Until `value` is applied. Raises `TimeoutError`, or what stopped the partition."""
        if self.value >= value:
            return
        if self._stopped:
            raise self._stopped
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._births += 1
        if len(self._waiting) >= self._sweep_at:
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapify(self._waiting)
            self._sweep_at = max(1024, 2 * len(self._waiting))
        heappush(self._waiting, (value, self._births, future))
        await until(future, deadline_s)

    def stop(self, error: PolonaiseError) -> None:
        """The mark rises no more: everybody who waits is told why."""
        self._stopped = error
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)


class Admission:
    """Lets contexts in while the partition is ready and its outstanding appends are within bounds; first come first.

    A slot is taken before the context runs, so that what runs can also be appended, and given back when the append
    has been registered (it counts by itself then) or is not going to be.
    """

    __slots__ = ("_is_open", "_stopped", "_waiting", "taken")

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        """Given the slots taken: is there one more?"""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stopped: PolonaiseError | None = None
        self.taken = 0

    async def take(self, deadline_s: float | None) -> None:
        """Wait for a slot. Raises `TimeoutError`, or what stopped the partition."""
        if self._stopped:
            raise self._stopped
        if not self._waiting and self._is_open(self.taken):
            self.taken += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await until(future, deadline_s)
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back()
            raise

    def give_back(self) -> None:
        self.taken -= 1
        if self._waiting:
            self.admit()

    def admit(self) -> None:
        """Something changed: let in whoever may."""
        waiting = self._waiting
        while waiting:
            if waiting[0].done():
                waiting.popleft()
            elif self._is_open(self.taken):
                self.taken += 1
                waiting.popleft().set_result(None)
            else:
                return

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
