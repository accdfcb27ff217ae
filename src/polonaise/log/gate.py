"""The gate between the readers of a log and the task that changes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from polonaise.errors import invariant


class Gate:
    """A lock for many readers, or for the one task that changes what they read.

    The task waits for readers under way; readers that come later wait for the task.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()
        self._unchanged = asyncio.Event()
        self._unchanged.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold the gate open to read, once no change is under way."""
        # A loop: between the event and this task's turn another change may have begun.
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
        """Hold the gate closed to change the log, once no reader is under way."""
        invariant(self._unchanged.is_set(), "one task changes a log")
        self._unchanged.clear()
        try:
            await self._unread.wait()
            yield
        finally:
            self._unchanged.set()
