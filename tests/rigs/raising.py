"""Raises exceptions again and again, and counts the exceptions chained to them in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

TIMES = 10_000


def length(traceback: TracebackType | None) -> int:
    found = 0
    while traceback is not None:
        found, traceback = found + 1, traceback.tb_next
    return found


def chain(error: BaseException | None) -> int:
    """Return the number of exceptions chained to this one."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            waiting += [each.__cause__, each.__context__]
    return len(seen)


async def raised(make: Callable[[], Awaitable[Any]], times: int = TIMES) -> BaseException:
    """Call `make` repeatedly, each time while another exception is handled, as in a retry loop. Return the last one."""
    last: BaseException | None = None
    for _ in range(times):
        try:
            raise KeyError("something else")
        except KeyError:
            try:
                await make()
            except Exception as error:  # noqa: BLE001 - that is what is looked at
                last = error
    assert last is not None
    return last


def check_small(error: BaseException) -> None:
    assert length(error.__traceback__) <= 25
    assert chain(error) <= 4
    assert len(getattr(error, "__notes__", ())) <= 1
