"""Do what has to be done to its end, also in a task that is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, in a task of its own that no cancellation reaches; raise the cancellation after that."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
