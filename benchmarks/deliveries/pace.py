"""An open loop: work that begins at a rate, whether or not what began before has ended. Needs no Polonaise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def at_rate(work: Callable[[int], object], rate: float, first: int, count: int) -> None:
    """Call `work` with each of `count` numbers from `first` on, `rate` times a second. What came late comes at once."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for place in range(count):
        due_s = began_s + place / rate
        if (pause_s := due_s - loop.time()) > 0:
            await asyncio.sleep(pause_s)
        work(first + place)
