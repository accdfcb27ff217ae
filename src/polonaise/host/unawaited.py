"""Futures whose failure may come when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a future's failure as retrieved, which avoids "exception was never retrieved" when nobody awaits it.

    That also hides a mistake of our own in it, so it is for futures that fail with faults only, or whose mistakes are
    told elsewhere.
    """
    if not future.cancelled():
        future.exception()


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Have a future fail, unless it is done: whoever waits for it is told, and nobody has to."""
    if not future.done():
        future.set_exception(error)
        retrieve(future)
