"""Reading as a plain iterator: filled in the background, a little ahead of whoever takes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from polonaise.blocking.background import Background

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_AHEAD_MAX: Final = 1_024
_AHEAD_BYTES_MAX: Final = 1024 * 1024
"""What has been read and not been taken: at most so much, or one."""


class ResumableReader(Protocol[T_co]):
    """What can be read on after it raised something: it goes on from there, raises again, or is at its end."""

    def __aiter__(self) -> ResumableReader[T_co]: ...

    async def __anext__(self) -> T_co: ...

    async def aclose(self) -> None: ...


class _Taken(NamedTuple, Generic[T]):
    """What a thread took at once."""

    number: int
    """Counts these, from 1."""
    items: deque[T]


class Reading(Generic[T]):
    """What a log was asked to read, one after the other: `for tx in log.read(0)`.

    For one thread at a time. It ends where the reading ends, and nowhere else: after `DeadlineExceeded`, or a wait that
    was interrupted, the next one goes on from there; another error is raised again. `close` it if it is left before its
    end, use it as a context manager, or leave it to the garbage collector.
    """

    def __init__(self, background: Background, source: Callable[[], ResumableReader[T]], size: Callable[[T], int]):
        self._background = background
        self._taken: _Taken[T] = _Taken(0, deque())
        self._pump = background.now(lambda: _Pump(source(), size))
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._taken.items:
            if self._closed:
                raise StopIteration
            number = self._taken.number
            self._taken = self._background.call(lambda: self._pump.take(number))
            if not self._taken.items:
                self.close()
                raise StopIteration
        return self._taken.items.popleft()

    def close(self) -> None:
        """Stop reading: what is on its way is not waited for."""
        self._closed = True
        self._taken.items.clear()
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
    """Lives in the background thread: reads ahead within its bounds."""

    def __init__(self, source: ResumableReader[T], size: Callable[[T], int]) -> None:
        self._size = size
        self._ready: deque[T] = deque()
        self._ready_bytes = 0
        self._handed: _Taken[T] = _Taken(0, deque())
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
                while self._error is not None:  # and not before somebody asks for more than that
                    self._room.clear()
                    await self._room.wait()
        finally:
            await source.aclose()
            self._ended = True
            self._arrived.set()

    async def _read_to_end(self, source: ResumableReader[T]) -> None:
        async for each in source:
            self._ready.append(each)
            self._ready_bytes += self._size(each)
            self._arrived.set()
            while len(self._ready) >= _AHEAD_MAX or self._ready_bytes >= _AHEAD_BYTES_MAX:
                self._room.clear()
                await self._room.wait()

    async def take(self, number: int) -> _Taken[T]:
        """What there is, at least one; nothing at the end. Raises what the reading raised, and goes on if asked again.

        `number` is that of what was taken before. If there is a later one, it has not arrived: its thread was
        interrupted when it waited for it. So that is what it is given now.
        """
        if self._handed.number > number:
            return self._handed
        if not self._ready and self._error is None:
            self._room.set()
        while not self._ready and self._error is None and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._ready and self._error is not None:
            error, self._error = self._error, None
            raise error
        self._handed = _Taken(number + 1, self._ready)
        self._ready, self._ready_bytes = deque(), 0
        self._room.set()
        return self._handed

    def stop(self) -> None:
        self._task.cancel()
