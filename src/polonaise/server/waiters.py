"""Waiting for the same thing to change."""

from __future__ import annotations

import asyncio


class Waiters:
    """The tasks that wait for the next change, in one event loop after the other: an `asyncio.Event` has only one."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    async def woken(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)
