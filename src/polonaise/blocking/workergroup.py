"""A group of workers for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from polonaise.applicationcode import OrdinaryErrors
from polonaise.blocking.background import Background
from polonaise.blocking.contexts import check_plain, returned_plainly
from polonaise.blocking.receipt import waited
from polonaise.client import workergroup as asynchronous
from polonaise.errors import Closed
from polonaise.terms import PartitionId, Transaction

PlainHandler = Callable[[Transaction], object]
"""An application's plain function that is given each transaction in order. What it returns is not looked at."""


class HandlerThreads:
    """The threads that a group's handler runs in: as many as partitions are being worked on at the same time."""

    def __init__(self, background: Background, handler: PlainHandler, name: str) -> None:
        """Raises `BadOption` for a handler that can't be called, or is a coroutine function."""
        check_plain(handler, "handler", "group(name, handler=handle)")
        self._background = background
        self._handler = handler
        # Enough for all partitions: one that is slow keeps no other from going on. They are started as they are needed.
        self._executor = ThreadPoolExecutor(asynchronous.PARTITIONS_MAX, f"polonaise group {name}")
        self._calls: dict[PartitionId, Future[None]] = {}
        """The last call of the handler by partition."""

    async def handle(self, tx: Transaction) -> None:
        """Run the handler in a thread. One that is not waited for any more runs to its end there."""
        earlier = self._calls.get(tx.partition)
        if earlier is not None and not earlier.done():
            # Nobody waits for it any more: the lease was lost meanwhile. But this process has got it again, and
            # transactions of a partition are handled one at a time. What becomes of the call was told long ago.
            ended = asyncio.Event()
            earlier.add_done_callback(lambda _: self._background.post(ended.set))
            await ended.wait()
        self._calls[tx.partition] = call = self._executor.submit(self._run, tx)
        await asyncio.wrap_future(call)

    def _run(self, tx: Transaction) -> None:
        with OrdinaryErrors("the handler"):
            returned = self._handler(tx)
        returned_plainly(returned, "handler")

    def close(self) -> None:
        """Start nothing more, and do not wait for what runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class WorkerGroup:
    # ---- from polonaise.client.workergroup by `make blocking`: change it there

    """A group of workers, as one member sees it; returned by `Log.group`.

    ::

        with log.group("billing", view=Invoices(url)) as group:  # joins; leaves at the end
            group.ended()

    Each partition has one worker at a time, by a lease, and is handed over when members join, leave, die or hang. One
    that was replaced and does not know it is fenced by an epoch, which its successor has raised.

    With `view`, a `SqlView`, each transaction is applied exactly once: epoch, position and effect are one SQL
    transaction. With `handler`, a plain function, it is handled in order at least once: the position is saved in a
    register about once a second and at a hand-over; after a death what was handled since comes again.
    """

    @property
    def name(self) -> str:
        """The group's name."""
        return self._group.name

    @property
    def member(self) -> int:
        """This member's number, which no other member has."""
        return self._group.member

    def leave(self) -> None:
        """Leave the group: what is being handled is brought to its end, and others take over at once. Waits for at most
        `lease_s` seconds for that. Does nothing in a forked child.

        A handler that takes longer runs to its end in its thread, and its transaction comes again elsewhere. Nor does a
        call do anything for a log that was closed.
        """
        return self._leave()

    def ended(self) -> None:
        """Wait until this member can work no more, and raise why: `Closed` after `leave`."""
        return waited(self._background, self._group.ended)

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions that this member works on at present."""
        return self._background.now(lambda: self._group.partitions)

    def health(self) -> dict[str, Any]:
        """Return what this member does, as a document for JSON.

        `well`; the `members` of the group; `trouble` with the leases; `lag`, the sum over this member's partitions, or
        None if not known; and by partition its `state`, `epoch`, `position`, `lag`, and the `trouble` that keeps it
        from going on.
        """
        return self._background.now(self._group.health)

    # ---- by hand: what differs for threads

    def __init__(
        self, background: Background, group: asynchronous.WorkerGroup, threads: HandlerThreads | None = None
    ) -> None:
        self._background = background
        self._group = group
        self._threads = threads

    def _leave(self) -> None:
        try:
            self._background.call_to_end(self._end)
        except Closed:
            self._close_threads()

    async def _end(self) -> None:
        """Leave, and end the threads once nothing more is handled in them."""
        try:
            await self._group.leave()
        finally:
            self._close_threads()

    def _close_threads(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def __enter__(self) -> Self:
        # Broken off after it has joined, nobody would ever leave.
        self._background.call(self._group.__aenter__, undo=lambda _: self._background.begin_here(self._end))
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
