"""Imports what settings name of an application's code: `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from polonaise.errors import BadOption
from polonaise.redaction import redacted

_PATH: Final = re.compile(r"(?!\d)\w+(\.(?!\d)\w+)*:(?!\d)\w+(\.(?!\d)\w+)*")


def look_in(directories: Iterable[str]) -> None:
    """Let modules be imported from these directories, before all others.

    Raises `BadOption` for one that is none: a misspelt one would show as a module that is missing.
    """
    for directory in directories:
        if not os.path.isdir(directory):
            raise BadOption(f"python_path has {redacted(directory)!r}, and that is no directory: correct it")
    added = [os.path.abspath(directory) for directory in directories]
    sys.path[:] = [*added, *(each for each in sys.path if each not in added)]


def imported(what: str, path: str) -> Any:
    """Return what `path` names; raises `BadOption`, which begins with `what`."""
    if _PATH.fullmatch(path) is None:
        raise BadOption(f"{what} = {redacted(path)!r}: write package.module:name, such as shop.routing:route")
    name, _, attributes = path.partition(":")
    found = _module(what, name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            there = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(attribute, there, n=1)
            advice = f", did you mean {near[0]}?" if near else ""
            where = getattr(found, "__file__", None) or name
            raise BadOption(f"{what} = {path!r}: there is no {attribute!r} in {where}{advice}")
        found = getattr(found, attribute)
    return found


def _module(what: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Not found is the module itself or a package that it is in; or one that it imports, which is another mistake.
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            looked = ", ".join(each for each in sys.path[:3] if each)
            raise BadOption(
                f"{what}: there is no module {missing!r}. It was looked for in {looked} and where packages are "
                "installed: correct the name, or name its directory in python_path"
            ) from error
        raise BadOption(f"{what}: module {name!r} imports {missing!r}, which is not installed") from error
    # Whatever the application's code does when it is imported, also `sys.exit` in a script.
    except (Exception, SystemExit) as error:
        raise BadOption(
            f"{what}: module {name!r} can't be imported: {type(error).__name__}: {redacted(error)}"
        ) from error


def imported_function(what: str, path: str) -> Callable[[Any], Any]:
    """Return the plain function of one argument that `path` names; raises `BadOption`."""
    found = imported(what, path)
    if not callable(found):
        raise BadOption(f"{what} = {path!r} is no function, but of type {type(found).__name__}")
    if inspect.isclass(found):
        raise BadOption(f"{what} = {path!r} is a class, and not a function")
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise BadOption(f"{what} = {path!r} is a coroutine function: write a plain one (def, not async def)")
    try:
        inspect.signature(found).bind(object())
    except TypeError as error:
        raise BadOption(f"{what} = {path!r} can't be called with a transaction alone: {error}") from error
    except ValueError:
        pass  # a function in C may not tell
    return found  # type: ignore[no-any-return]
