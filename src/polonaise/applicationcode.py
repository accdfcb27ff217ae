"""What an application's code raises, made an ordinary exception: it holds up what that code is for, and no more."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from contextlib import suppress
from typing import Any


def task_here() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):  # no event loop runs in this thread
        return asyncio.current_task()
    return None


def ordinary(raised: BaseException, whose: str, began_in: asyncio.Task[Any] | None) -> Exception:
    """Return what an application's code has raised, as an exception that only tells its caller of a failure.

    A `StopIteration`, which a future can't carry, a cancellation of something that the code only waited for, an exit in
    another thread than the main one, and a `GeneratorExit` that the code raises become a `RuntimeError`, with `whose`
    in its text.

    Raises `raised` itself if it concerns more than the code's caller: a cancellation that somebody has asked for, an
    exit of the main thread, and the end of a coroutine that is closed. `began_in` is what `task_here` returned before
    the code was run.
    """
    if isinstance(raised, Exception):
        if not isinstance(raised, (StopIteration, futures.CancelledError)):
            return raised
    elif _concerns_others(raised, began_in):
        raise raised
    made = RuntimeError(f"{whose} raised {raised!r}")
    made.__cause__ = raised
    return made


class OrdinaryErrors:
    """Raises what an application's code raises within it as `ordinary` returns it: a context manager. A class, because
    those made of generators pass on a `StopIteration`."""

    __slots__ = ("_began_in", "_whose")

    def __init__(self, whose: str) -> None:
        self._whose = whose

    def __enter__(self) -> None:
        self._began_in = task_here()

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        if raised is not None and (error := ordinary(raised, self._whose, self._began_in)) is not raised:
            raise error


def is_being_cancelled() -> bool:
    """Whether somebody has asked the current task to end."""
    task = task_here()
    return task is not None and task.cancelling() > 0


def _concerns_others(raised: BaseException, began_in: asyncio.Task[Any] | None) -> bool:
    if isinstance(raised, asyncio.CancelledError):
        return is_being_cancelled()
    if isinstance(raised, GeneratorExit):
        # A coroutine is closed from outside of its task: by a loop that ends, or by whoever collects garbage.
        return task_here() is not began_in
    # In the main thread it may come from a handler of signals.
    return threading.current_thread() is threading.main_thread()
