"""A background thread with an event loop, in which other threads run functions and coroutines.

A handler of signals may break off a waiting thread between any two steps. So threads share no lock with each other or
with the background thread: each call has a queue of its own, and what is broken off leaves nothing behind that others
wait for.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from polonaise.client.waiting import end, forked
from polonaise.errors import Closed, PolonaiseError, fault
from polonaise.host.forks import keep_apart
from polonaise.host.patching import check_patches
from polonaise.host.unawaited import retrieve
from polonaise.redaction import redacted

T = TypeVar("T")

_log = logging.getLogger("polonaise.client")

CLOSE_S_MAX: Final = 10.0
"""Seconds for which `close` waits for the background thread, which application code may be holding up."""
_EXIT_S_MAX: Final = 1.0
"""Seconds for which a program that ends without `close` waits for it."""
_CANCEL_S_MAX: Final = 1.0
"""Seconds for which the thread's last tasks may clean up behind themselves."""


class CallOutcome(NamedTuple, Generic[T]):
    """What a call comes to: a result, or an error."""

    result: T | None
    error: BaseException | None = None


class Call(Generic[T]):
    """The calling thread's handle on what it asked of the background thread."""

    __slots__ = ("_background", "_come_to", "_undo", "given_up", "inbox", "task")

    def __init__(self, background: Background, undo: Callable[[T], object] | None = None) -> None:
        """`undo` is called, in the background thread, with a result that the calling thread did not get."""
        self._background = background
        self._undo = undo
        self._come_to: CallOutcome[T] | None = None
        """What the call has come to, as only the background thread knows; None before."""
        # By the name in its module: gevent may have put another one there.
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What the background thread tells the calling one: last of all the `CallOutcome`."""
        self.task: asyncio.Task[T] | None = None
        """The task of the awaitable; None before it has begun, and for a function that does not wait."""
        self.given_up = False
        """Whether the calling thread was broken off: what has not begun by then does not begin."""

    def settle(self, outcome: CallOutcome[T]) -> None:
        self._background.calls.discard(self)
        self._come_to = outcome
        self.inbox.put(outcome)
        if self.given_up:
            self._take_back()

    def result(self) -> T:
        outcome = self.inbox.get()
        if outcome.error is not None:
            raise outcome.error
        return outcome.result  # type: ignore[no-any-return]

    def give_up(self) -> None:
        """Cancel the awaitable, or undo what it has done, without waiting, for a thread that was broken off."""
        self.given_up = True
        self._background.calls.discard(self)
        self._background.post(self._take_back)

    def _take_back(self) -> None:
        """Cancel the awaitable if it has not ended; undo it, once, if it has succeeded."""
        if self._come_to is None:
            if self.task is not None:
                self.task.cancel()
        elif self._come_to.error is None:
            undo, self._undo = self._undo, None
            if undo is not None:
                undo(self._come_to.result)  # type: ignore[arg-type]


class Background:
    """A background thread with an event loop, until `close`. `call` and `now`, from any number of threads, run what
    they are given in the background thread. `close` releases every thread that waits, whatever the background thread is
    doing. Nothing here keeps the interpreter from exiting."""

    def __init__(self, name: str) -> None:
        """Start the thread. Raises `half_patched`, where no thread would tell another one anything."""
        check_patches()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        keep_apart(self._loop)
        self._loop.set_task_factory(self._new_task)  # type: ignore[arg-type]
        self._tasks: set[asyncio.Task[Any]] = set()
        """Those that have not ended. A forked child must never let go of them: it would run their last steps, on
        connections that are the parent's."""
        self.calls: set[Call[Any]] = set()
        """The calls whose threads are to be told an outcome."""
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        """The task that ends the thread; None before `close`. Only the background thread looks at it."""
        self._stopped = False
        """Whether the thread has begun its last steps. Only the background thread looks at it."""
        self._ended_by: BaseException | None = None
        """What ended the thread before `close` did."""
        self._failure: Exception | None = None
        """The error of the function given to `close`, for the first that waits for it."""
        # A daemon, because a program that forgot to close must be able to exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
            atexit.register(self._at_exit)
        except BaseException:
            self.post(self._loop.stop)
            raise

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **how: Any) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=loop, **how)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - told to whoever uses the log
            # Such as an exit in a view: the thread ends, and all who wait for it have to learn that.
            self._ended_by = error
            _log.error(
                "%s has ended: code of the application raised %s in it", self._thread.name, redacted(repr(error))
            )
        finally:
            self._closed = self._stopped = True
            self._complete(self._cancel_all())
            self._complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            # Last: a call that was registered too late to be begun is found here, or finds that the loop is closed.
            self._release_all()

    def _complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the loop until the work is done, whoever stops the loop meanwhile: `close`, the end of the program or
        application code."""
        task = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._loop.stop())
        while not task.done():
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the thread is ending, which is all that it could ask for
                _log.error("code of the application raised %s as it was ended", redacted(repr(error)))
        retrieve(task)  # whatever it has failed with, the thread goes on to tell all who wait

    async def _cancel_all(self) -> None:
        """End the tasks that the loop still runs, as the library's own act, and mark their errors as seen."""
        until_s = self._loop.time() + _CANCEL_S_MAX
        # Again and again: what other threads have asked for may begin only now.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                end(task)  # else each client would say, at the end of the program, that the application has cancelled
            done, _ = await asyncio.wait(tasks, timeout=until_s - self._loop.time())
            for task in done:
                retrieve(task)
            if not done:
                return

    def _release_all(self) -> None:
        while self.calls:
            with suppress(KeyError):  # it was settled just now
                self.calls.pop().settle(CallOutcome(None, self._closed_error()))

    def _at_exit(self) -> None:
        """Stop the loop when a program ends without `close`: it would print errors while the interpreter is torn
        down."""
        if self._pid == os.getpid():
            self._closed = True
            self.post(self._loop.stop)
            self._thread.join(_EXIT_S_MAX)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, make: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None = None) -> T:
        """Call `make` in the background thread, await what it returns, and return the result.

        If the wait is broken off, as by `KeyboardInterrupt`, the awaitable is cancelled, or not begun; if it has ended
        by then, `undo` is called with its result in the background thread. Raises what the awaitable raises;
        `wrong_thread` in the background thread, which would wait for itself; `Forked` in a child process; and `Closed`
        once `close` was called.
        """
        call: Call[T] = Call(self, undo)
        try:
            self.begin(call, make)
            return call.result()
        except BaseException:
            call.give_up()
            raise

    def begin(self, call: Call[T], make: Callable[[], Awaitable[T]]) -> None:
        """Begin what `call` does, without waiting, with a new call, whose `result` waits. Raises as `call`. Whoever
        calls it gives the call up in the end, unless it has its result."""
        if self.is_current:
            raise fault(
                "wrong_thread",
                "a method that waits was called in the background thread, for which it would wait: views (but for "
                "`apply` and `apply_many` of a SqlView), submitted contexts, partitioners and `wants` run there; call "
                "it in another thread",
            )

        def start() -> None:
            if not call.given_up:
                call.task = self._loop.create_task(_awaited(make))
                call.task.add_done_callback(lambda done: self._hand_over(done, call))

        self._ask(call, start)

    def now(self, do: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Run a function that does not wait in the background thread, and return its result. At once, if the calling
        thread is the background thread. `undo` as for `call`. Raises what the function raises, `Forked` and
        `Closed`."""
        if self.is_current:
            return do()
        call: Call[T] = Call(self, undo)

        def start() -> None:
            if call.given_up:
                return
            try:
                result = do()
            except Exception as error:  # noqa: BLE001 - handed to the thread that asked
                call.settle(CallOutcome(None, error))
            else:
                call.settle(CallOutcome(result))

        try:
            self._ask(call, start)
            return call.result()
        except BaseException:
            call.give_up()
            raise

    def call_to_end(self, make: Callable[[], Awaitable[T]]) -> T:
        """Do what `call` does, for an awaitable that goes on to its end if the wait for it is broken off."""
        begun: list[asyncio.Task[T]] = []

        def begin() -> asyncio.Task[T]:
            if not begun:
                begun.append(self._loop.create_task(_awaited(make)))
                begun[0].add_done_callback(retrieve)
            return begun[0]

        try:
            return self.call(lambda: asyncio.shield(begin()))
        except PolonaiseError:
            raise
        except BaseException:
            self.post(begin)
            raise

    def begin_here(self, make: Callable[[], Awaitable[object]]) -> None:
        """Await what `make` returns, in a task that nobody waits for. To be called in the background thread."""
        self._loop.create_task(_awaited(make)).add_done_callback(retrieve)

    def post(self, do: Callable[[], object]) -> None:
        """Run a function in the background thread without waiting for it; do nothing once its loop is closed, or in a
        child process."""
        if self._pid != os.getpid():
            return
        try:
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            if not self._loop.is_closed():  # then a handler of signals has raised it
                raise

    def _ask(self, call: Call[Any], start: Callable[[], None]) -> None:
        """Have the background thread run `start`, and register the call whose outcome the calling thread waits for."""
        if self._pid != os.getpid():
            raise forked()
        # In this order: `close` closes first and then releases all calls, so it releases this one, or this one is
        # refused here.
        self.calls.add(call)
        if self._closed:
            self.calls.discard(call)
            raise self._closed_error()
        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:
            if not self._loop.is_closed():  # then a handler of signals has raised it
                raise
            raise self._closed_error() from None

    def _closed_error(self) -> Closed:
        if self._ended_by is None:
            return Closed("this log was closed: connect a new one")
        error = f"{type(self._ended_by).__name__}: {redacted(self._ended_by)}"
        what = f"the background thread of this log was ended by code of the application, which raised {error}"
        return Closed(f"{what}: connect a new one")

    def _hand_over(self, task: asyncio.Task[T], call: Call[T]) -> None:
        if task.cancelled():
            # By `close`, or else by itself: what the application's code awaited was cancelled.
            call.settle(CallOutcome(None, self._closed_error() if self._closed else asyncio.CancelledError()))
        elif (error := task.exception()) is not None:
            call.settle(CallOutcome(None, error))
        else:
            call.settle(CallOutcome(task.result()))

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Await what `last` returns in the background thread, and end the thread. Waits for at most `CLOSE_S_MAX`
        seconds: a thread that application code does not let go is left behind. Raises what `last` raises, once the
        thread has ended, and `wrong_thread` in the background thread. Does nothing in a child process. A call that is
        broken off closes all the same, or the next call does."""
        if self._pid != os.getpid():
            return
        if self.is_current:
            raise fault(
                "wrong_thread", "the background thread can't wait for its own end: close the log from another thread"
            )
        first, self._closed = not self._closed, True
        ended: Call[None] = Call(self)
        self.calls.add(ended)  # whose outcome says that the thread releases all that wait, which is the last it does
        self.post(lambda: self._begin_end(last))
        if self._thread.is_alive():
            with suppress(queue.Empty):
                ended.inbox.get(timeout=CLOSE_S_MAX)
                self._thread.join(_EXIT_S_MAX)  # which takes no time by now
        atexit.unregister(self._at_exit)
        if self._thread.is_alive() and first:
            _log.error("%s does not end: application code holds it up; it is left behind", self._thread.name)
        # After the end of the thread, which has handed over all results that it could by then.
        self._release_all()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin_end(self, last: Callable[[], Awaitable[None]]) -> None:
        if self._ending is None and not self._stopped:
            self._ending = self._loop.create_task(self._end(last))

    async def _end(self, last: Callable[[], Awaitable[None]]) -> None:
        try:
            await last()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread has to end
            self._failure = error
        finally:
            self._loop.stop()


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    """Call `make` within the task, so that what it raises at once is the task's error, too."""
    return await make()
