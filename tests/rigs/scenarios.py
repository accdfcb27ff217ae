"""Tests that are coroutines and run somewhere else than in pytest's event loop: in a simulated world, mostly."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from polonaise.host import Host
from polonaise_proving.stages.simulated import Configuration, World


async def idle(host: Host) -> None:
    """What a process runs that does nothing by itself."""
    await asyncio.Event().wait()


def run_alone(world: World, main: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
    """Run `main` as the one process of a world, until it has ended."""

    async def scenario() -> None:
        await world.machine("a").start(main).ended()

    world.run(scenario())


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

        running.__signature__ = _for_pytest(test)  # type: ignore[attr-defined]
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


def runs_tests_on(*places: Any) -> Callable[..., Any]:
    """Make a decorator for tests that each of these runs in turn, which gets the test and a directory."""

    def decorator(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("place", places)
        @functools.wraps(test)
        def running(place: Callable[..., None], tmp_path: Path, **fixtures: Any) -> None:
            place(functools.partial(test, **fixtures), tmp_path)

        running.__signature__ = _for_pytest(test, "place", "tmp_path")  # type: ignore[attr-defined]
        return running

    return decorator


def runs_tests_on_loops(made: Callable[[Path], Any]) -> Callable[..., Any]:
    """Make a decorator for tests that get what `made` makes of a directory, on asyncio's loop and on uvloop."""

    def on_asyncio(test: Callable[..., Coroutine[Any, Any, None]], directory: Path) -> None:
        asyncio.run(test(made(directory)))

    def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]], directory: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(made(directory)))

    return runs_tests_on(on_asyncio, on_uvloop)


def _for_pytest(test: Callable[..., Any], *more: str) -> inspect.Signature:
    """The parameters that pytest fills: those of the decorator, and what stands behind the `*` of the test."""
    parameters = inspect.signature(test).parameters.values()
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more]
    return inspect.Signature([*added, *(each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)])
