"""Futures whose failure may come when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve(future: asyncio.Future[Any]) -> None:
    """Avoid "exception was never retrieved" for a future that nobody awaits, and whose mistakes are told elsewhere."""
    if not future.cancelled():
        future.exception()


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Have a future fail, unless it is done; nobody has to wait for it."""
    if not future.done():
        future.set_exception(error)
        retrieve(future)
