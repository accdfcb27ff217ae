"""Tests that are coroutines and run somewhere else than in pytest's event loop: in a simulated world, mostly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from polonaise.simulator import Configuration, World


def runs_tests(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a decorator of `run`, which gets a coroutine function and runs it.

    ::

        simulated = runs_tests(simulate)

        @simulated(seed=3)
        async def test_something(host: Host, node: Node, *, fixture: Path) -> None: ...

    `run` fills the parameters in front, and pytest those that stand behind the `*`. `run` gets what the decorator gets.
    """

    def decorator(test: Callable[..., Awaitable[None]] | None = None, **options: Any) -> Callable[..., Any]:
        if test is None:
            return functools.partial(decorator, **options)

        @functools.wraps(test)
        def running(**fixtures: Any) -> None:
            run(functools.partial(test, **fixtures), **options)

        parameters = inspect.signature(test).parameters.values()
        pytests = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        running.__signature__ = inspect.Signature(pytests)  # type: ignore[attr-defined]
        return running

    return decorator


def runs_tests_in(made: Callable[..., Any]) -> Callable[..., Any]:
    """Make a decorator for tests that get what `made` gives, which has a simulated world."""

    def run(test: Callable[..., Awaitable[None]], **how: Any) -> None:
        scene = made(**how)
        getattr(scene, "world", scene).run(test(scene))

    return runs_tests(run)


@runs_tests_in
def in_a_world(seed: int = 1, configuration: Configuration | None = None) -> World:
    return World(seed, configuration)
