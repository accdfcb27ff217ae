"""Runs a context in the calling thread, while the background thread does the rest of the transaction's work."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from polonaise.blocking.background import Background, Call
from polonaise.client.protocol.arguments import wrong
from polonaise.errors import BadOption

T = TypeVar("T")

PlainContext: TypeAlias = Callable[..., Any]
"""A transaction context: `context(tx, *args)` builds one transaction on `tx`. It may run several times."""


class _ContextRequest(NamedTuple):
    """Asks the calling thread to run the context, with the future for its result."""

    arguments: tuple[Any, ...]
    result: asyncio.Future[Any]


_OTHERS: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
"""What tells functions whose call runs nothing of their code."""


def check_plain(function: object, name: str, call: str) -> None:
    """Raise `BadOption` for what can't be called, or runs nothing of its code when it is. `name` says what the function
    is to the application, and `call` how it is passed."""
    if not callable(function):
        raise wrong(name, function, f"a plain function, not called: {call}")
    if any(is_other(each) for is_other in _OTHERS for each in (function, type(function).__call__)):
        raise BadOption(
            f"a {name} of the blocking face is a plain function, without yield; coroutines go with polonaise.connect"
        )


def returned_plainly(returned: T, name: str) -> T:
    """Return what a plain function has returned. Raises `BadOption` for what runs only once it is awaited or asked."""
    if inspect.iscoroutine(returned):
        returned.close()
    elif not inspect.isgenerator(returned) and not inspect.isasyncgen(returned):
        return returned
    what = type(returned).__name__.replace("_", " ")
    raise BadOption(f"the {name} returned a {what}: the {name} of the blocking face is a plain function")


def run_here(background: Background, context: PlainContext, run: Callable[[Any], Awaitable[T]]) -> T:
    """Await `run(context)` in the background thread, with each run of the context in the calling thread. Returns the
    result of `run`, or raises its error; `BadOption` for a coroutine function as context. If waiting ends early, as by
    `KeyboardInterrupt`, `run` is cancelled."""
    check_plain(context, "context", "run(context, *args)")
    call: Call[T] = Call(background)

    async def request_run(*arguments: Any) -> Any:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call.inbox.put(_ContextRequest(arguments, result))
        return await result

    try:
        background.begin(call, lambda: run(request_run))
        while isinstance(told := call.inbox.get(), _ContextRequest):
            background.post(_settling(told.result, *_ran(context, told.arguments)))
        if told.error is not None:
            raise told.error
        return told.result  # type: ignore[no-any-return]
    except BaseException:
        call.give_up()
        raise


def _ran(context: PlainContext, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Run the context; return its value and None, or None and the exception that it raised."""
    try:
        return returned_plainly(context(*arguments), "context"), None
    except StopIteration as error:  # a future can't carry it
        return None, RuntimeError(f"the context raised {error!r}")
    except Exception as error:  # noqa: BLE001 - the application's own code; raised by `run`
        return None, error


def _settling(result: asyncio.Future[Any], value: Any, error: Exception | None) -> Callable[[], None]:
    """Return a function that settles the future, in its loop's thread."""

    def settle() -> None:
        if result.done():
            return  # the deadline passed meanwhile
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    return settle
