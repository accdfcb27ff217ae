"""Who may read a log while it is changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from polonaise.errors import invariant


class Gate:
    """Many readers, or one who changes what they read."""

    def __init__(self) -> None:
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()
        self._unchanged = asyncio.Event()
        self._unchanged.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        while not self._unchanged.is_set():
            await self._unchanged.wait()
        self._readers += 1
        self._unread.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._unread.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        invariant(self._unchanged.is_set(), "one task changes a log")
        self._unchanged.clear()
        try:
            await self._unread.wait()
            yield
        finally:
            self._unchanged.set()
