"""Reading as a plain iterator: filled in the background, a little ahead of whoever takes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from polonaise.blocking.background import Background

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

_AHEAD_MAX: Final = 1_024
_AHEAD_BYTES_MAX: Final = 1024 * 1024
"""What has been read and not been taken: at most so much, or one."""


class Reading(Generic[T]):
    """What a log was asked to read, one after the other: `for tx in log.read(0)`.

    For one thread at a time. It ends where the reading ends, and raises what that raises. `close` it if it is left
    before its end, use it as a context manager, or leave it to the garbage collector.
    """

    def __init__(self, background: Background, source: Callable[[], AsyncIterator[T]], size: Callable[[T], int]):
        self._background = background
        self._ahead: deque[T] = deque()
        self._pump = background.now(lambda: _Pump(source(), size))
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._ahead:
            if self._closed:
                raise StopIteration
            self._ahead.extend(self._background.call(self._pump.take))
            if not self._ahead:
                self.close()
                raise StopIteration
        return self._ahead.popleft()

    def close(self) -> None:
        """Stop reading: what is on its way is not waited for."""
        self._closed = True
        self._ahead.clear()
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

    def __init__(self, source: AsyncIterator[T], size: Callable[[T], int]) -> None:
        self._size = size
        self._ready: deque[T] = deque()
        self._ready_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False
        self._task = asyncio.get_running_loop().create_task(self._read(source))

    async def _read(self, source: AsyncIterator[T]) -> None:
        try:
            async for each in source:
                self._ready.append(each)
                self._ready_bytes += self._size(each)
                self._arrived.set()
                while len(self._ready) >= _AHEAD_MAX or self._ready_bytes >= _AHEAD_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # noqa: BLE001 - raised where it is read
            self._error = error
        finally:
            aclose: Any = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()
            self._ended = True
            self._arrived.set()

    async def take(self) -> deque[T]:
        """What there is, at least one; nothing at the end. Raises what ended the reading."""
        while not self._ready and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._ready and self._error is not None:
            error, self._error = self._error, None
            raise error
        ready, self._ready = self._ready, deque()
        self._ready_bytes = 0
        self._room.set()
        return ready

    def stop(self) -> None:
        self._task.cancel()
