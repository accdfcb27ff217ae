"""A background thread with an event loop, in which other threads run functions and coroutines."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from polonaise.client.waiting import forked_log, retrieve
from polonaise.errors import Closed, WrongThread
from polonaise.redaction import redacted

T = TypeVar("T")

_log = logging.getLogger("polonaise.client")

CLOSE_S_MAX: Final = 10.0
"""Seconds for which `close` waits for the background thread, which application code may be holding up."""
_EXIT_S_MAX: Final = 1.0
"""Seconds for which a program that ends without `close` waits for the background thread."""
_CANCEL_S_MAX: Final = 1.0
"""Seconds for which the thread's last tasks may clean up behind themselves."""


class Background:
    """A background thread with an event loop, until `close`.

    `call` and `now` may be used from any number of threads. They run what they are given in the background thread, and
    return its result, or raise its error. `close` releases every thread that waits, whatever the background thread is
    doing. Nothing here keeps the interpreter from exiting.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._guard = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._closed = False
        self._ended_by: BaseException | None = None
        """What ended the thread before `close` did; None if nothing has."""
        self._failure: Exception | None = None
        """The error that the function given to `close` raised; None if it raised none."""
        # A daemon, because a program that forgot to close must be able to exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - told to whoever uses the log
            # Such as an exit in a view: the thread ends, and all who wait for it have to learn that.
            self._ended_by = error
            _log.error("%s has ended: code of the application raised %r in it", self._thread.name, error)
        finally:
            with self._guard:
                self._closed = True
            self._loop.run_until_complete(self._cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            for waiting in list(self._waiting):
                _settle(waiting, error=self._closed_error())

    async def _cancel_all(self) -> None:
        """Cancel the tasks that the loop still runs, and mark their errors as seen.

        A thread that waits for one of these tasks learns of its end through `_hand_over`.
        """
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=_CANCEL_S_MAX)
            for task in done:
                retrieve(task)

    def _at_exit(self) -> None:
        """Stop the loop when a program ends without `close`.

        A loop that goes on while the interpreter is torn down would print errors.
        """
        if self._pid == os.getpid():
            with self._guard:
                self._closed = True
            self.post(self._loop.stop)
            self._thread.join(_EXIT_S_MAX)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the background thread."""
        return threading.current_thread() is self._thread

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call `make` in the background thread, await what it returns, and return the result.

        If the wait is broken off, as by `KeyboardInterrupt`, the awaitable is cancelled. Raises what the awaitable
        raises, `asyncio.CancelledError`, too; `WrongThread` if called in the background thread, which would wait for
        itself; `Forked` in a child process; and `Closed` once `close` was called.
        """
        return self.begin(make).result()

    def begin(self, make: Callable[[], Awaitable[T]]) -> Call[T]:
        """Begin what `call` does, without waiting; return the call, whose `result` waits. Raises as `call`."""
        if self.is_current:
            raise WrongThread(
                "a method that waits was called in the background thread, for which it would wait: views (but for "
                "`apply` and `apply_many` of a SqlView), submitted contexts, partitioners and `wants` run there; call "
                "it in another thread"
            )
        call: Call[T] = Call(self)

        def start() -> None:
            call.task = self._loop.create_task(_awaited(make))
            call.task.add_done_callback(lambda done: self._hand_over(done, call.waiting))

        self._ask(call.waiting, start)
        return call

    def now(self, do: Callable[[], T]) -> T:
        """Run a function that does not wait in the background thread, and return its result.

        Runs the function at once if the calling thread is the background thread. Raises what the function raises,
        `Forked` and `Closed`.
        """
        if self.is_current:
            return do()

        waiting: Future[T] = Future()

        def start() -> None:
            try:
                result = do()
            except Exception as error:  # noqa: BLE001 - handed to the thread that asked
                _settle(waiting, error=error)
            else:
                _settle(waiting, result)

        self._ask(waiting, start)
        return waiting.result()

    def post(self, do: Callable[[], object]) -> None:
        """Run a function in the background thread without waiting for it.

        Does nothing once the thread's loop is closed, or in a child process.
        """
        if self._pid != os.getpid():
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(do)

    def _ask(self, waiting: Future[Any], start: Callable[[], None]) -> None:
        """Have the background thread run `start`, and register the future that the calling thread waits for."""
        if self._pid != os.getpid():
            raise forked_log()
        with self._guard:
            if self._closed:
                raise self._closed_error()
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
            # Under the guard: `close` ends the loop after whatever was asked before it.
            self._loop.call_soon_threadsafe(start)

    def _closed_error(self) -> Closed:
        """Return the error for a call of a log that this process has closed, or whose thread has ended."""
        if self._ended_by is None:
            return Closed("this log was closed: connect a new one")
        error = f"{type(self._ended_by).__name__}: {redacted(self._ended_by)}"
        what = f"the background thread of this log was ended by code of the application, which raised {error}"
        return Closed(f"{what}: connect a new one")

    def _hand_over(self, task: asyncio.Task[T], waiting: Future[T]) -> None:
        """Give the task's result or error to the thread that waits for it."""
        if task.cancelled():
            # By `close`, or else by itself: what the application's code awaited was cancelled.
            _settle(waiting, error=self._closed_error() if self._closed else asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            _settle(waiting, error=error)
        else:
            _settle(waiting, task.result())

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Await what `last` returns in the background thread, and end the thread. A second call only waits.

        Waits for at most `CLOSE_S_MAX` seconds: a thread that application code does not let go is left behind. Raises
        what `last` raises, once the thread has ended, and `WrongThread` in the background thread. Does nothing in a
        child process.
        """
        if self._pid != os.getpid():
            return
        if self.is_current:
            raise WrongThread("the background thread can't wait for its own end: close the log from another thread")
        with self._guard:
            first, self._closed = not self._closed, True
        if first:
            atexit.unregister(self._at_exit)
            self.post(lambda: self._loop.create_task(self._end(last)))
        self._thread.join(CLOSE_S_MAX)
        if self._thread.is_alive() and first:
            _log.error("%s does not end: application code holds it up; it is left behind", self._thread.name)
        # After the end of the thread, which has handed over all results that it could by then.
        for waiting in list(self._waiting):
            _settle(waiting, error=self._closed_error())
        if first and self._failure is not None:
            raise self._failure

    async def _end(self, last: Callable[[], Awaitable[None]]) -> None:
        try:
            await last()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread has to end
            self._failure = error
        finally:
            self._loop.stop()


class Call(Generic[T]):
    """The calling thread's handle on an awaitable that runs in the background thread."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self.waiting: Future[T] = Future()
        self.task: asyncio.Task[T] | None = None

    def result(self) -> T:
        """Wait for the awaitable; return its result or raise its error.

        If the wait is broken off, as by `KeyboardInterrupt`, the awaitable is cancelled.
        """
        try:
            return self.waiting.result()
        except BaseException:
            if not self.waiting.done():
                self.give_up()
            raise

    def give_up(self) -> None:
        """Cancel the awaitable, without waiting for its end."""
        self._background.post(lambda: self.task.cancel() if self.task is not None else None)


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    """Call `make` within the task, so that what it raises at once is the task's error, too."""
    return await make()


def _settle(waiting: Future[T], result: T | None = None, *, error: BaseException | None = None) -> None:
    """Settle a future, unless `close` has done so before."""
    with suppress(InvalidStateError):
        if error is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(result)  # type: ignore[arg-type]
