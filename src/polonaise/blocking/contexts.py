"""Runs a context in the calling thread, while the background thread does the rest of the transaction's work."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

from polonaise.blocking.background import Background
from polonaise.client.protocol.arguments import wrong
from polonaise.errors import BadOption

T = TypeVar("T")

PlainContext: TypeAlias = Callable[..., Any]
"""A transaction context: `context(tx, *args)` builds one transaction on `tx`. It may run several times."""


class _ContextRequest(NamedTuple):
    """Asks the calling thread to run the context, with the future for its result."""

    arguments: tuple[Any, ...]
    result: asyncio.Future[Any]


def check_plain(context: PlainContext) -> None:
    """Raise `BadOption` for a context that can't be called, or is a coroutine function."""
    if not callable(context):
        raise wrong("context", context, "a plain function, not called: run(context, *args)")
    if inspect.iscoroutinefunction(context) or inspect.iscoroutinefunction(type(context).__call__):
        raise BadOption("a context of the blocking face is a plain function; coroutines go with polonaise.connect")


def run_here(background: Background, context: PlainContext, run: Callable[[Any], Awaitable[T]]) -> T:
    """Await `run(context)` in the background thread, with each run of the context in the calling thread.

    Returns the result of `run`, or raises its error; `BadOption` for a coroutine function as context. If waiting ends
    early, as by `KeyboardInterrupt`, `run` is cancelled.
    """
    check_plain(context)
    requests: SimpleQueue[_ContextRequest | None] = SimpleQueue()

    async def request_run(*arguments: Any) -> Any:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        requests.put(_ContextRequest(arguments, result))
        return await result

    call = background.begin(lambda: run(request_run))
    call.waiting.add_done_callback(lambda _: requests.put(None))  # ends the loop below
    try:
        while (request := requests.get()) is not None:
            background.post(_settling(request.result, *_ran(context, request.arguments)))
    except BaseException:
        call.give_up()
        raise
    return call.result()


def _ran(context: PlainContext, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Run the context; return its value and None, or None and the exception that it raised."""
    try:
        return context(*arguments), None
    except StopIteration as error:  # a future can't carry it
        return None, RuntimeError(f"the context raised {error!r}")
    except Exception as error:  # noqa: BLE001 - the application's own code; raised by `run`
        return None, error


def _settling(result: asyncio.Future[Any], value: Any, error: Exception | None) -> Callable[[], None]:
    """Return a function that settles the future; to be called in its loop's thread, the only one that may settle it."""

    def settle() -> None:
        if result.done():
            return  # the deadline passed meanwhile
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    return settle
