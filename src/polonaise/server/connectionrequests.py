"""The unanswered requests of one client's connection: their count, and how many are answered at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from polonaise.errors import fresh
from polonaise.link.connection import Connection

_ANSWERS_MAX: Final = 2
"""The most answers of one connection made or sent at once: one is made while the other is sent."""


@dataclass(slots=True, eq=False)
class ConnectionRequests:
    """Counts a connection's unanswered requests, and bounds how many answers are made or sent at a time."""

    waiting: int = 0
    """Not answered yet, without those that owners answer."""
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ANSWERS_MAX))
    """Held while an answer waits for its client to read, is made, and is sent."""
    waits: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    """The tasks that wait before they make their answer, cancelled when the connection closes."""

    async def wait(self, wait: Coroutine[Any, Any, object], connection: Connection) -> None:
        """Await `wait`, for as long as the connection is open."""
        if connection.closed:
            wait.close()
            raise fresh(connection.closed)
        task = asyncio.current_task()
        assert task is not None
        self.waits[task] = None
        try:
            await wait
        finally:
            del self.waits[task]
