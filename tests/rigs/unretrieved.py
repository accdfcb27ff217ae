"""What an event loop tells of errors that nobody took: asyncio reports them when the garbage collector comes by."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def errors_nobody_took() -> Iterator[list[BaseException]]:
    """Collect what the running loop is told of errors in the block, and of those that are left at its end."""
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []

    def tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append(context["exception"])

    gc.collect()  # what earlier tests left is not of this one
    before = loop.get_exception_handler()
    loop.set_exception_handler(tell)
    try:
        yield told
        gc.collect()
    finally:
        loop.set_exception_handler(before)
