"""Waiting: until something has come about, or on purpose for a while. No other module of the tests sleeps in real time.

What is awaited runs in an event loop, a simulated one as well; what has `block` in its name is for threads and
processes.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Seconds that a wait may take: long, because a shared machine may be slow. Speed is measured elsewhere."""


async def wait_until(
    condition: Callable[[], Awaitable[T] | T], what: str = "", *, within_s: float = PATIENCE_S, every_s: float = 0.002
) -> T:
    """Look every `every_s` until the condition, which may be awaited, gives something true; return that.

    Raises AssertionError with `what` (default: the condition's source) when that took more than `within_s`.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while True:
        value = condition()
        result: T = await value if inspect.isawaitable(value) else value  # type: ignore[assignment]
        if result:
            return result
        assert loop.time() < deadline_s, _too_late(condition, what, within_s)
        await asyncio.sleep(every_s)


def block_until(
    condition: Callable[[], T], what: str = "", *, within_s: float = PATIENCE_S, every_s: float = 0.01
) -> T:
    """Do what `wait_until` does, without an event loop."""
    deadline_s = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < deadline_s, _too_late(condition, what, within_s)
        time.sleep(every_s)
    return result


def _too_late(condition: Callable[[], object], what: str, within_s: float) -> str:
    return f"not within {within_s:g} s: {what or inspect.getsource(condition).strip()}"


async def nothing_happens_for(seconds: float) -> None:
    """Wait so long that what must not happen could happen; the test asserts afterwards that it did not."""
    await asyncio.sleep(seconds)


async def time_passes(seconds: float) -> None:
    """Let time itself pass: a measurement, the pace of a load, a pause after which something is different."""
    await asyncio.sleep(seconds)


def block_for(seconds: float) -> None:
    """Do what `time_passes` and `nothing_happens_for` do, without an event loop."""
    time.sleep(seconds)
