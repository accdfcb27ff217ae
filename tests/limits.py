"""A time limit for every test: one that exceeds it fails, with the stacks of all threads and tasks in its report.

pytest-timeout knows how long each may take: `timeout` in pyproject.toml, the marker of that name, `--timeout`. How one
is ended is here, because what a test waits for may swallow the failure: a task that raises takes it along into its
result. So it is raised again and again until the test is over, the teardown has a limit too, and when nothing helps,
because the main thread runs no Python any more, the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import pytest
import pytest_timeout

SLOW_S: Final = 900.0
"""The limit of tests that are marked as slow and say nothing themselves."""
AGAIN_S: Final = 20.0
LAST_S: Final = 120.0
"""After the limit: then the process is ended."""

_limits = pytest.StashKey[float]()
_exceeded = pytest.StashKey[bool]()
_under_way = pytest.StashKey[bool]()
_real_stderr = pytest.StashKey[int]()


class TookTooLong(BaseException):
    """The test has exceeded its limit. No `Exception`: neither what is tried nor Hypothesis may deal with it."""


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_real_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    _tell_of_exits(config.stash[_real_stderr])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell without job control starts what runs in the background. Tests that send it would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _tell_of_exits(stderr: int) -> None:
    """Have it told, on the real standard error, why a test has this process end at once: as a failed host does."""
    real, process = os._exit, os.getpid()

    def told(status: int) -> NoReturn:
        if status and os.getpid() == process:
            error = sys._getframe(1).f_locals.get("error")
            raised = traceback.format_exception(error) if isinstance(error, BaseException) else []
            why = "".join([*traceback.format_stack(), *raised])
            test = os.environ.get("PYTEST_CURRENT_TEST", "")
            with contextlib.suppress(OSError):  # it is closed by now: the process has to end all the same
                os.write(stderr, f"{test} ends the process with the status {status}:\n{why}".encode())
        real(status)

    os._exit = told


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_real_stderr])


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    item.stash[_limits] = settings.timeout
    _begin(item)
    return True


@pytest.hookimpl
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    with _interruptible(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with _interruptible(item):
        result = yield
    if item.stash.get(_exceeded, False):
        raise TookTooLong(f"{_told(item)}; what it waited for kept the failure to itself")
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    if _limits in item.stash and not item.config.getoption("usepdb"):
        _begin(item)  # a failure has cancelled it, for the debugger's sake
    with _interruptible(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Garbage is not collected meanwhile: a failed task that nobody asked tells of its failure then, with source lines.

    A report parses source as well, and CPython 3.11 can't do one within the other: the whole run would end.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _interruptible(item: pytest.Item) -> Iterator[None]:
    """Between the phases of a test, pytest itself is at work, and makes the report."""
    item.stash[_under_way] = True
    try:
        yield
    finally:
        item.stash[_under_way] = False


def _begin(item: pytest.Item) -> None:
    """Called in the main thread, where tests run; its signals are handled in no other."""
    limit_s = item.stash[_limits]

    def exceeded(number: int, frame: FrameType | None) -> None:
        if pytest_timeout.is_debugging():
            pytest_timeout_cancel_timer(item)
            return
        if not item.stash.get(_under_way, False):
            return
        first = not item.stash.get(_exceeded, False)
        item.stash[_exceeded] = True
        if first:
            with contextlib.suppress(Exception):  # what is looked at changes meanwhile; the failure matters more
                item.add_report_section("call", "stacks", stacks())
        raise TookTooLong(_told(item))

    signal.signal(signal.SIGALRM, exceeded)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    faulthandler.dump_traceback_later(limit_s + LAST_S, exit=True, file=item.config.stash[_real_stderr])


def _told(item: pytest.Item) -> str:
    return f"{item.name} took more than {item.stash[_limits]:g} s: where all threads and tasks were is below"


def stacks() -> str:
    """Where every thread is, and every task of every event loop with all that it awaits."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        print(f"--- thread {names.get(ident, ident)}", file=out)
        traceback.print_stack(frame, file=out)
    for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]:
        if not task.done():
            print(f"--- task {task.get_name()}", file=out)
            print("".join(_awaited(task.get_coro())), end="", file=out)
    return out.getvalue()


def _awaited(coroutine: Any) -> list[str]:
    """The lines at which a coroutine and those that it awaits stand, outermost first, and what the last one awaits."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < 100:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        frame = frame or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return [*lines, f"  awaits {coroutine!r}\n"]
        lines += traceback.format_list(traceback.StackSummary.extract([(frame, frame.f_lineno)]))
        coroutine = next(
            (getattr(coroutine, name) for name in ("cr_await", "ag_await", "gi_yieldfrom") if hasattr(coroutine, name)),
            None,
        )
    return lines
