"""A few threads that wait for the disk, so that the event loop does not.

Every append makes this trip: a job goes through one queue, and its outcome comes back with one call into the loop. An
executor's futures, their locks and their chaining to the loop's cost several times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from polonaise.errors import Closed

T = TypeVar("T")

_log = logging.getLogger(__name__)

CLOSE_S_MAX: Final = 10.0
"""How long `DiskThreads.close` waits for the threads to end."""

_Outcome: TypeAlias = tuple[Any, BaseException | None]


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    call: Callable[[], Any]


class _Offer(Generic[T]):
    """What one thread opens and another takes; if the offer is withdrawn instead, `give_back` closes it."""

    def __init__(self, call: Callable[[], T], give_back: Callable[[T], None]) -> None:
        self._call = call
        self._give_back = give_back
        self._guard = threading.Lock()
        self._made: list[T] = []
        self._withdrawn = False

    def make(self) -> None:
        made = self._call()
        with self._guard:
            self._made.append(made)
        # After it was noted: whichever of `make` and `withdraw` comes second finds it, and gives it back.
        if self._withdrawn:
            self._return()

    def take(self) -> T:
        with self._guard:
            return self._made.pop()

    def withdraw(self) -> None:
        self._withdrawn = True
        self._return()

    def _return(self) -> None:
        with self._guard:
            made, self._made = self._made, []
        for each in made:
            self._give_back(each)


class DiskThreads:
    """Threads that run blocking calls, whose outcomes are awaited. Up to `count_max` at a time, begun in order.

    A call is carried out to its end, also when nobody waits for it. Only `close` may drop calls that have not begun;
    their outcomes never come.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._threads: list[threading.Thread] = []
        # By the name in its module: gevent may have put another one there.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._begun_s: dict[asyncio.Future[Any], float] = {}
        """When each call that has not returned was given, by the future of its outcome, in that order."""
        self._closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in a thread, and return the future of its outcome, which may be cancelled; the call may not.

        Raises `Closed` after `close`.
        """
        if self._closed:
            raise Closed("this machine's disk was closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._begun_s[done] = time.monotonic()
        if len(self._begun_s) > len(self._threads) < self._count_max:
            thread = threading.Thread(target=_work, args=(self._jobs, self._settle), name="disk", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(_Job(loop, done, call))
        return done

    async def obtain(self, call: Callable[[], T], give_back: Callable[[T], None]) -> T:
        """Return the outcome of a `call` that opens something; if cancelled, `give_back` closes it."""
        offer = _Offer(call, give_back)
        try:
            await self.run(offer.make)
            return offer.take()
        except BaseException:
            offer.withdraw()
            raise

    @property
    def idle(self) -> bool:
        """Whether no call is under way, and one could be made."""
        return not self._begun_s and not self._closed

    @property
    def under_way_s(self) -> float:
        for begun_s in self._begun_s.values():
            return time.monotonic() - begun_s
        return 0.0

    def close(self, *, drop: bool = False, within_s: float = CLOSE_S_MAX) -> bool:
        """End the threads after all calls that `run` was given; with `drop`, after those that have begun.

        Waits `within_s` seconds at most. Returns False when a disk holds some threads up for longer; these are left
        behind.
        """
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while drop:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        until_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self._threads:
            _log.error("%d calls to a disk have not returned for %g s; left behind", len(self._threads), within_s)
        return not self._threads

    def _settle(self, done: asyncio.Future[Any], outcome: _Outcome) -> None:
        del self._begun_s[done]
        if done.done():
            return
        result, error = outcome
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _work(jobs: queue.SimpleQueue[_Job | None], settle: Callable[[asyncio.Future[Any], _Outcome], None]) -> None:
    while (job := jobs.get()) is not None:
        outcome = _outcome(job.call)
        # Not `contextlib.suppress`, which takes longer: the loop is awake by then, and waits for this thread to let go
        # of the interpreter.
        try:
            job.loop.call_soon_threadsafe(settle, job.done, outcome)
        except RuntimeError:
            pass  # the loop was closed: nobody waits for the outcome
        # Or the last job's buffers would stay in memory until the next one comes.
        del job, outcome


def _outcome(call: Callable[[], Any]) -> _Outcome:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is awaited
        return None, error
