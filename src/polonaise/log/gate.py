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
        self._no_reader = asyncio.Event()
        self._no_reader.set()
        self._no_change = asyncio.Event()
        self._no_change.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold the gate open to read, once no change is under way."""
        # A loop: between the event and this task's turn another change may have begun.
        while not self._no_change.is_set():
            await self._no_change.wait()
        self._readers += 1
        self._no_reader.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._no_reader.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Hold the gate closed to change the log, once no reader is under way."""
        invariant(self._no_change.is_set(), "one task changes a log")
        self._no_change.clear()
        try:
            await self._no_reader.wait()
            yield
        finally:
            self._no_change.set()
