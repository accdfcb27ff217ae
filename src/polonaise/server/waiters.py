"""Tasks that wait for the same thing to change, and are woken together."""

from __future__ import annotations

import asyncio


class Waiters:
    """The tasks that wait for the next change of something.

    Not an `asyncio.Event`, which stays bound to one event loop: a log in memory uses its partitions in one loop after
    the other.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        """Wake all that wait, so that they look again."""
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    async def woken(self) -> None:
        """Wait for the next `wake`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)
