"""Threads, each with a connection of its own, in which a view applies: the event loop never waits for a database."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from polonaise.applicationcode import OrdinaryErrors
from polonaise.errors import BadOption, Closed
from polonaise.terms import PartitionId
from polonaise.views.database import Database
from polonaise.views.retrying import TRIED_S_MAX, Portion, RetryingWriter
from polonaise.views.writerconnection import WriterConnection

S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger("polonaise.views")


class Worker:
    """A thread that does one piece of work after the other. Each is whole SQL transactions, so it can be repeated."""

    def __init__(self, database: Database, name: str, lost: Callable[[], None]) -> None:
        """Start no thread before there is work. `lost` is as in `RetryingWriter`, and called in the thread."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._writer = RetryingWriter(database, self._pause, lost, TRIED_S_MAX)
        self._closing = threading.Event()
        self._undone: set[Future[Any]] = set()

    @property
    def is_free(self) -> bool:
        """Whether all work that it was given is done."""
        return not self._undone

    async def run(self, work: Callable[[RetryingWriter], T]) -> T:
        """Return the result of `work`, done in the worker's thread."""

        def carry_out() -> T:
            with OrdinaryErrors("the code that applies"):
                return work(self._writer)

        doing = self._executor.submit(carry_out)
        self._undone.add(doing)
        doing.add_done_callback(self._undone.discard)
        return await asyncio.wrap_future(doing)

    def _pause(self, seconds: float) -> None:
        """Wait between attempts. Raises `Closed` if the worker is ended meanwhile."""
        if self._closing.wait(seconds):
            raise Closed("this view was closed: connect a client with the view to use it again")

    def end(self) -> Future[None]:
        """Take no more work. Return a future: done when all earlier work is done and the connection is closed."""
        self._closing.set()
        ended = self._executor.submit(self._writer.close)
        self._executor.shutdown(wait=False)
        return ended


class Workers:
    """The workers that apply to one database, each some of the partitions. A database with one writer has one."""

    def __init__(
        self, database: Database, name: str, workers_max: int, close_s_max: float, lost: Callable[[], None]
    ) -> None:
        """Take the beginning of the threads' names, and for how long `end` waits; `lost` is as in `RetryingWriter`."""
        self._database = database
        self._name = name
        self._count = 1 if database.has_one_writer else max(1, workers_max)
        self._close_s_max = close_s_max
        self._lost = lost
        self._workers: dict[int, Worker] = {}
        """By number; the one that was given work last is the last."""
        self.portions: defaultdict[PartitionId, Portion] = defaultdict(Portion)

    def __bool__(self) -> bool:
        """Whether any was needed since the last `end`."""
        return bool(self._workers)

    async def do(self, partition: PartitionId, work: Callable[[WriterConnection], T]) -> T:
        """Return the result of `work`, in the partition's thread, as `RetryingWriter.do` does. Raises `Forked`, too."""
        return await self._of(partition).run(lambda writer: writer.do(work))

    async def do_some(
        self, partition: PartitionId, run: Sequence[S], work: Callable[[WriterConnection, Sequence[S]], T]
    ) -> T:
        """Return the result of `work` for the beginning of `run`, likewise, as `RetryingWriter.do_some` does."""
        portion = self.portions[partition]
        return await self._of(partition).run(lambda writer: writer.do_some(run, portion, work))

    def at_hand(self) -> PartitionId:
        """Return a partition whose thread is there and has nothing to do. If all of them have, that of the one which
        was given work last: one that hangs is given none any more."""
        free = (number for number, worker in self._workers.items() if worker.is_free)
        return next(free, next(reversed(self._workers)))

    def _of(self, partition: PartitionId) -> Worker:
        self._database.check_process()
        number = partition % self._count
        worker = self._workers.pop(number, None) or Worker(self._database, f"{self._name}-{number}", self._lost)
        self._workers[number] = worker
        return worker

    async def end(self) -> None:
        """End the workers, after what is being done. One that its database holds up for longer than `close_s_max`
        seconds is left behind, and logged."""
        workers, self._workers = list(self._workers.values()), {}
        ends = [asyncio.wrap_future(worker.end()) for worker in workers]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=self._close_s_max)
        if late:
            _log.warning("%d threads that apply still wait for their database", len(late))


def check_plain(*methods: Callable[..., object]) -> None:
    """Raise `BadOption` for a coroutine function among the methods that are called in a worker's thread."""
    for method in methods:
        if inspect.iscoroutinefunction(method):
            raise BadOption(
                f"{method.__qualname__} is a coroutine function, and runs in a thread: write a plain function"
            )
