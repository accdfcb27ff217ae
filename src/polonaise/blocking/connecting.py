"""`polonaise.blocking.connect`: opens a log, and keeps it open in a background thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from polonaise.blocking.background import Background
from polonaise.blocking.log import Log
from polonaise.client.connected import Partitioner
from polonaise.client.log import Serializer
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import Closed
from polonaise.host.tls import TlsFiles
from polonaise.node import connecting
from polonaise.redaction import redacted_address
from polonaise.terms import BodyForm, PartitionId

T = TypeVar("T")


def connect(
    address: str,
    *,
    view: View | RunView | None = None,
    settings: ClientSettings | None = None,
    serializer: Serializer | None = None,
    partitioner: Partitioner | None = None,
    partitions: Collection[PartitionId] | None = None,
    bodies: BodyForm = BodyForm.INLINE,
    wants: Callable[[int], bool] | None = None,
    header_filter: tuple[int, int] | None = None,
    wait: float | None = None,
    tls: TlsFiles | None = None,
) -> Log:
    """Open the log at `address`, and return it, connected. Use it as a context manager, or `close` it.

    ::

        with polonaise.blocking.connect("embedded:./bank", view=balances) as log:
            log.append(b"1 100", partition=0).applied()

    Addresses, options and errors are those of `polonaise.connect`. Which thread calls the view, the partitioner and the
    serializer is said in `polonaise.blocking`.
    """
    background, context = hold(
        lambda: connecting.connect(
            address,
            view=view,
            settings=settings,
            serializer=serializer,
            partitioner=partitioner,
            partitions=partitions,
            bodies=bodies,
            wants=wants,
            header_filter=header_filter,
            wait=wait,
            tls=tls,
        ),
        f"polonaise {redacted_address(address)}",
    )
    try:
        return Log(background, context.value, context.close)
    except BaseException:  # broken off by a handler of signals
        background.close(context.close)
        raise


def hold(make: Callable[[], AbstractAsyncContextManager[T]], name: str) -> tuple[Background, TaskBoundContext[T]]:
    """Enter an asynchronous context manager in a new background thread; return the thread and the context manager.

    Raises what entering raises.
    """
    context = TaskBoundContext(make)
    background = Background(name)
    try:
        background.call(context.open)
    except BaseException:
        background.close(context.close)
        raise
    return background, context


class TaskBoundContext(Generic[T]):
    """An asynchronous context manager that one task enters and leaves, whichever task calls `open` and `close`.

    Each `Background.call` has a task of its own, and what a context manager holds, such as a timeout, may be left only
    by the task that entered it.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self.value: T

    async def open(self) -> None:
        """Enter the context manager. Raises what entering raises."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(opened))
        await opened

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        try:
            async with self._make() as self.value:
                opened.set_result(None)
                await self._leave.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            if not opened.done():
                opened.set_exception(Closed("the log was closed before it was open: connect a new one"))

    async def close(self) -> None:
        """Leave the context manager, or break off entering it. Raises what leaving raises."""
        self._leave.set()
        if self._task is not None:
            if not hasattr(self, "value"):
                self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
