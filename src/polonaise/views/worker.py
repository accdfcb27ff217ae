"""A thread with a connection of its own, in which a view's SQL runs: the event loop never waits for a database."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from polonaise.errors import Closed, ViewUnavailable
from polonaise.views.database import Database, WriterConnection
from polonaise.views.databaseerrors import Trouble, trouble_in

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("polonaise.views")

_TRIES = 12
"""How often a transaction that conflicts with others is tried before the partition reports that it waits."""
_PAUSE_S_MIN = 0.002
_PAUSE_S_MAX = 0.25


class Worker:
    """A thread that does one piece of work after the other. Each is whole SQL transactions, so it can be repeated."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._writer: WriterConnection | None = None
        self._closing = threading.Event()

    async def do(self, work: Callable[Concatenate[WriterConnection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work(writer, …)`, run in the worker's thread.

        Repeats the work, with jitter, while the database ends it because of others. Raises `ViewUnavailable` when that
        does not help and while the database is away, and otherwise what `work` raises.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, lambda: self._do(lambda writer: work(writer, *args, **kwargs))
        )

    def _do(self, work: Callable[[WriterConnection], T]) -> T:
        pause_s = _PAUSE_S_MIN
        for _ in range(_TRIES):
            try:
                return work(self._usable_writer())
            except Exception as error:
                trouble = trouble_in(error)
                if trouble is None:
                    raise
                if trouble is Trouble.UNAVAILABLE:
                    self._drop()
                    raise ViewUnavailable(f"the database is not available: {_first_line(error)}") from error
                last = error
            if self._closing.wait(random.uniform(pause_s / 2, pause_s)):
                raise Closed("this view was closed")
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
        raise ViewUnavailable(f"others held the database, {_TRIES} times in a row: {_first_line(last)}") from last

    def _usable_writer(self) -> WriterConnection:
        """Return the connection, opened again if it was lost."""
        if self._writer is None or not self._writer.usable:
            self._drop()
            self._writer = self._database.writer()
        return self._writer

    def _drop(self) -> None:
        """Close the connection."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def end(self) -> Future[None]:
        """Take no more work, and return a future: done when what was begun is done and the connection is closed."""
        self._closing.set()
        ended = self._executor.submit(self._drop)
        self._executor.shutdown(wait=False)
        return ended


async def end_all(workers: list[Worker], within_s: float) -> None:
    """End the workers. One that its database holds up for longer than `within_s` seconds is left behind, and logged."""
    ends = [asyncio.wrap_future(worker.end()) for worker in workers]
    if not ends:
        return
    _, late = await asyncio.wait(ends, timeout=within_s)
    if late:
        _log.warning("%d threads of a view still wait for their database", len(late))


def _first_line(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
