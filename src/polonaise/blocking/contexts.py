"""Running a context in the thread that asked for it, while everything around it happens in the background."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

from polonaise.blocking.background import Background
from polonaise.errors import BadOption

T = TypeVar("T")

PlainContext: TypeAlias = Callable[..., Any]
"""`context(tx, *args)`: builds one transaction on `tx`. A plain function; it may run several times."""


class _ContextRequest(NamedTuple):
    """The context is to run (again)."""

    arguments: tuple[Any, ...]
    ran: asyncio.Future[Any]


def check_plain(context: PlainContext) -> None:
    """Raises `BadOption` for a coroutine function."""
    if inspect.iscoroutinefunction(context) or inspect.iscoroutinefunction(type(context).__call__):
        raise BadOption("a context of the blocking face is a plain function; coroutines go with polonaise.connect")


def run_here(background: Background, context: PlainContext, run: Callable[[Any], Awaitable[T]]) -> T:
    """What `run(context)` returns in the background thread, with the context itself run in this one."""
    check_plain(context)
    asked: SimpleQueue[_ContextRequest | None] = SimpleQueue()

    async def there(*arguments: Any) -> Any:
        ran: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked.put(_ContextRequest(arguments, ran))
        return await ran

    call = background.begin(lambda: run(there))
    call.waiting.add_done_callback(lambda _: asked.put(None))
    try:
        while (todo := asked.get()) is not None:
            background.post(_settling(todo.ran, *_ran(context, todo.arguments)))
    except BaseException:
        call.give_up()
        raise
    return call.result()


def _ran(context: PlainContext, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """What it returned, or raised."""
    try:
        return context(*arguments), None
    except StopIteration as error:  # which no future carries
        return None, RuntimeError(f"the context raised {error!r}")
    except Exception as error:  # noqa: BLE001 - the application's own code; raised by `run`
        return None, error


def _settling(ran: asyncio.Future[Any], made: Any, error: Exception | None) -> Callable[[], None]:
    def settle() -> None:
        if ran.done():
            return  # the deadline passed meanwhile
        if error is None:
            ran.set_result(made)
        else:
            ran.set_exception(error)

    return settle
