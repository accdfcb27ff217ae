"""Waiting with deadlines, for marks and for room: cheap enough to be done for every append."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from polonaise.errors import Forked, PolonaiseError, WrongEventLoop, fresh
from polonaise.terms import TransactionId

T = TypeVar("T")


_processes: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, int]] = WeakKeyDictionary()
"""Which process a client's loop is of. A child has them too, and they do nothing there."""


def own_loop() -> asyncio.AbstractEventLoop:
    """The running loop, for a client that is connected in it."""
    loop = asyncio.get_running_loop()
    _processes[loop] = os.getpid()
    return loop


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises `WrongEventLoop` unless this is called within that loop: another's waiters would never be woken.

    Or `Forked`, where that loop is the parent process's.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        if _processes.get(loop, os.getpid()) != os.getpid():
            raise Forked(
                "this log was opened before the process forked, and its connections belong to the parent: "
                "open one in each process, after the fork"
            )
        raise WrongEventLoop(
            "a client belongs to the event loop, and the thread, that it was connected in: call it there "
            "(asyncio.run_coroutine_threadsafe does from elsewhere), or connect another one here"
        )


def until(future: asyncio.Future[T], deadline_s: float | None) -> Awaitable[T]:
    """Await this for the result of `future`, which belongs to this waiter alone.

    Raises `TimeoutError` when the loop's time passes `deadline_s`. Costs one timer of the loop, and nothing without a
    deadline: then it is the future itself.
    """
    return future if deadline_s is None else _until(future, deadline_s)


async def _until(future: asyncio.Future[T], deadline_s: float) -> T:
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


class Given(NamedTuple):
    """A transaction, or a run of them, that was given to the application's view."""

    first: TransactionId
    last: TransactionId
    since_s: float
    """By the loop's clock."""

    def told(self, now_s: float) -> str:
        """For the message of who waits for it."""
        which = f"transaction {self.first}" if self.first == self.last else f"transactions {self.first} to {self.last}"
        return f"the view has been applying {which} for {round(now_s - self.since_s, 2):g} s"


class AppliedMark:
    """How far a partition is applied in this process, and who waits for it to get further."""

    __slots__ = ("_births", "_stopped", "_sweep_at", "_waiting", "given", "trouble", "value")

    def __init__(self, value: TransactionId) -> None:
        self.value = value
        """The client high-water mark: everything up to this id is applied."""
        self.trouble: PolonaiseError | None = None
        """Why the application's view gets no further at the moment; None while it does."""
        self.given: Given | None = None
        """What the view is applying; None while it is not waited for."""
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
        if self.value < value:
            await until(self.reached(value), deadline_s)

    def reached(self, value: TransactionId) -> asyncio.Future[None]:
        """Done when `value` is applied, or the mark rises no more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.value >= value:
            future.set_result(None)
            return future
        if self._stopped:
            future.set_exception(fresh(self._stopped))
            return future
        self._births += 1
        if len(self._waiting) >= self._sweep_at:
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapify(self._waiting)
            self._sweep_at = max(1024, 2 * len(self._waiting))
        heappush(self._waiting, (value, self._births, future))
        return future

    def stop(self, error: PolonaiseError) -> None:
        """The mark rises no more: everybody who waits is told why."""
        self._stopped = error
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(fresh(error))


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

    def take_now(self) -> bool:
        """Take a slot if there is one and nobody waits for it. Raises what stopped the partition."""
        if self._stopped:
            raise fresh(self._stopped)
        if self._waiting or not self._is_open(self.taken):
            return False
        self.taken += 1
        return True

    async def take(self, deadline_s: float | None) -> None:
        """Wait for a slot. Raises `TimeoutError`, or what stopped the partition."""
        if self.take_now():
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
                future.set_exception(fresh(error))
