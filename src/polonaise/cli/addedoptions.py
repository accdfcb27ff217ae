"""Options that several commands share: a decorator adds them to a command, which so needs not name each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def adding(
    command: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[[dict[str, Any], functools.partial[Any]], T],
    *,
    instead_of: str = "",
    first: bool = False,
) -> Callable[..., T]:
    """Return the command with these options: annotation and default, by the names of parameters.

    When it is called, `run` gets the values of these options, and the command with all its other arguments. The
    parameter `instead_of` of the command is for `run` to give. The options are shown behind the command's own ones or,
    with `first`, before them.
    """
    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [each.replace(kind=keyword) for each in signature.parameters.values() if each.name != instead_of]
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> T:
        values = {name: given.pop(name, default) for name, (_, default) in options.items()}
        return run(values, functools.partial(command, **given))

    called.__signature__ = signature.replace(parameters=added + own if first else own + added)  # type: ignore[attr-defined]
    return called
