"""Reading a log as a plain iterator, which the background thread fills a little ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from polonaise.blocking.background import Background

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_AHEAD_MAX: Final = 1_024
_AHEAD_BYTES_MAX: Final = 1024 * 1024
"""The bounds of what is read ahead, in items (`_AHEAD_MAX`) and in bytes. One item may exceed the bytes."""


class ResumableReader(Protocol[T_co]):
    """A reader that can be used after it raised: it goes on where it was, raises again, or is at its end."""

    def __aiter__(self) -> ResumableReader[T_co]: ...

    async def __anext__(self) -> T_co: ...

    async def aclose(self) -> None: ...


class _Taken(NamedTuple, Generic[T]):
    number: int
    """Counts the takes of one reading, from 1."""
    items: list[T]


class Reading(Generic[T]):
    """Iterates over transactions or batches of a partition; returned by `Log.read`, `read_batches` and `read_time`.

    ::

        for tx in log.read(partition=0, after=-1):
            print(tx.id, tx.data)

    For one thread at a time. The iteration ends at the end of the range, and never because of an error: after
    `DeadlineExceeded`, or a wait that was interrupted, it can be continued from where it was; another error is raised
    again. To leave it before its end, `close` it, or use it as a context manager.
    """

    def __init__(self, background: Background, source: Callable[[], ResumableReader[T]], size: Callable[[T], int]):
        self._background = background
        self._taken: _Taken[T] = _Taken(0, [])
        self._next = 0
        """Which of the items that were taken is returned next."""
        self._pump = background.now(lambda: _Pump(source(), size), undo=_Pump.stop)
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._next >= len(self._taken.items):
            if self._closed:
                raise StopIteration
            number = self._taken.number
            taken = self._background.call(lambda: self._pump.take(number))
            if not taken.items:
                self.close()
                raise StopIteration
            self._taken, self._next = taken, 0
        item = self._taken.items[self._next]
        # Counted last, and by nothing that is called: an exception of a handler of signals comes where something is
        # called, and no item would be passed over.
        self._next += 1
        return item

    def close(self) -> None:
        """Stop reading, without waiting for what is under way."""
        self._closed = True
        self._taken = _Taken(self._taken.number, [])
        self._background.post(self._pump.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        pump = getattr(self, "_pump", None)
        if pump is not None:
            self._background.post(pump.stop)


class _Pump(Generic[T]):
    """Reads ahead, within bounds, in the background thread."""

    def __init__(self, source: ResumableReader[T], size: Callable[[T], int]) -> None:
        self._size = size
        self._ready: list[T] = []
        self._ready_bytes = 0
        self._handed: _Taken[T] = _Taken(0, [])
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False
        self._task = asyncio.get_running_loop().create_task(self._read(source))

    async def _read(self, source: ResumableReader[T]) -> None:
        try:
            while not self._ended:
                try:
                    await self._read_to_end(source)
                    self._ended = True
                except Exception as error:  # noqa: BLE001 - raised where it is read
                    self._error = error
                    self._arrived.set()
                while self._error is not None:  # until a take has raised it and a later one asks for more
                    self._room.clear()
                    await self._room.wait()
        finally:
            await source.aclose()
            self._ended = True
            self._arrived.set()

    async def _read_to_end(self, source: ResumableReader[T]) -> None:
        async for item in source:
            self._ready.append(item)
            self._ready_bytes += self._size(item)
            self._arrived.set()
            while len(self._ready) >= _AHEAD_MAX or self._ready_bytes >= _AHEAD_BYTES_MAX:
                self._room.clear()
                await self._room.wait()

    async def take(self, number: int) -> _Taken[T]:
        """Return what was read ahead, at least one item, or none at the end. Raises the error that the reading raised;
        the next call goes on reading. `number` is that of the last take that the reading thread received: if it was
        interrupted while it waited for a later one, the same items are returned again."""
        if self._handed.number > number:
            return self._handed
        if not self._ready and self._error is None:
            self._room.set()
        while not self._ready and self._error is None and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._ready and self._error is not None:  # only once what was read before the error is handed over
            error, self._error = self._error, None
            raise error
        self._handed = _Taken(number + 1, self._ready)
        self._ready, self._ready_bytes = [], 0
        self._room.set()
        return self._handed

    def stop(self) -> None:
        self._task.cancel()
