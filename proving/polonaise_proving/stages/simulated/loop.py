"""An asyncio event loop with virtual time, which knows the simulated process that each callback belongs to, if any.

Callbacks that are ready run in the order in which they became ready. Only when none is left does time move, to the
next timer: an idle hour costs nothing, and a schedule is a function of its inputs. Tasks and futures hash by birth
number here and not by address, because `TaskGroup` and `asyncio.wait` walk over sets, and the order of a set of
addresses differs from run to run.

A callback (*handle*, in asyncio's word) of a process runs in a `contextvars` context that names the process (`Life`).
So one place, the run loop, can hold back everything that a paused process would do and drop everything that a dead one
would. Callbacks of the scenario, and of the simulator itself, belong to no process.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Final, cast

from polonaise_proving.record.failures import ScheduleFailed

START_S: Final = 10_000.0
"""Virtual seconds at the start of a schedule: not 0, so that code that mistakes 0 for "no time yet" is found out."""

_THREAD_S: Final = 0.0002
"""Virtual seconds that work in another thread takes."""
_PURGE_MIN: Final = 512
"""The heap is not swept while no more cancelled timers than this lie in it."""

_CLOSE_TRIES: Final = 32
"""How often a coroutine of a dead process may await again in its `finally` blocks before the loop gives it up."""

_graveyard: list[object] = []
"""Coroutines that would not end: kept, because freeing one would run its code again at a random moment."""


class Killed(BaseException):
    """Raised in a dead process that calls its machine, or has just ended itself. No code of a node may catch it."""


class Deadlock(ScheduleFailed):
    """Nothing is ready and no timer is set: the schedule would wait for ever."""


class StepsExceeded(ScheduleFailed):
    """More handles ran than a schedule may run: most likely a loop without a delay."""


class Life:
    """One life of one process: the owner of handles. Handles without one are of the scenario or the simulator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.blocked = False
        """Whether the process is dead or paused, so that its handles do not run."""
        self.held_back: list[asyncio.Handle] = []
        """Handles that a paused process runs when it goes on, in order."""
        # What the process schedules copies the context it is scheduled in, so everything that starts in this one
        # carries the life on. Empty otherwise: a process sees no context variables of the scenario.
        self.context = Context()
        self.context.run(LIFE.set, self)


LIFE: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("life", default=None)
"""The life that the running code belongs to; None in the scenario and in the simulator's own code."""


def leave_if_dead() -> None:
    """Raise `Killed` if the running code belongs to a dead process, as when it has just ended its own process."""
    life = LIFE.get()
    if life is not None and life.dead:
        raise Killed(life.name)


class Handle(asyncio.TimerHandle):
    """A callback that is ready and waits for its turn; lighter than asyncio's own."""

    __slots__ = ()

    _callback: Callable[..., object] | None
    """The callback; None once cancelled."""
    _args: tuple[Any, ...]
    _context: Context | None
    """The context to run in, which names the process; None for the simulator's own callbacks, which are never held back
    and outlive processes."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        # asyncio's constructor is left out on purpose: it records where the handle was made, for debugging only, and
        # a schedule makes hundreds of thousands of handles.
        self._callback = callback
        self._args = args
        self._context = context

    def cancel(self) -> None:
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def __repr__(self) -> str:
        return f"<Handle {self._callback!r}>"


class Timer(Handle):
    """A callback that waits for a moment of virtual time."""

    __slots__ = ()

    _loop: VirtualLoop

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        loop: VirtualLoop,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._when = when
        self._loop = loop

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            self._args = ()
            self._loop.timer_cancelled()


class Future(asyncio.Future[Any]):
    """A future that hashes by a number of its own, which is the same in every run of a schedule.

    It takes the number when it first gets into a set or dict: most futures never do.
    """

    _birth: int

    def __hash__(self) -> int:
        try:
            return self._birth
        except AttributeError:
            self._birth = cast(VirtualLoop, self.get_loop()).next_birth()
            return self._birth


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by its birth number and knows the process that it belongs to."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], loop: VirtualLoop, name: str | None, context: Context | None
    ) -> None:
        # Before asyncio's constructor, which puts the task into the set of all tasks and so asks for its hash.
        self.birth = loop.next_birth()
        self.life = LIFE.get() if context is None else context.get(LIFE)
        super().__init__(coroutine, loop=loop, name=name or f"task {self.birth}", context=context)

    def __hash__(self) -> int:
        return self.birth


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one schedule."""

    def __init__(self, steps_max: int, failed: Callable[[Life | None, BaseException], None]) -> None:
        """Make a loop that runs at most `steps_max` handles.

        It calls `failed(life, error)` for an exception that nobody handled, with the life of the process that raised
        it; None for the scenario. What dead processes raise is passed over (see also `call_exception_handler`).
        """
        self._in_run = False  # first: asyncio's constructor asks whether the loop is running
        super().__init__()
        self.now = START_S
        self.steps = 0
        """Handles taken from the queue so far, other than cancelled ones."""
        self._steps_max = steps_max
        self._failed = failed
        self._queue: deque[Handle] = deque()
        # A heap. Timers of one moment run in the order in which they were set: the number between time and handle
        # decides, and keeps the heap from comparing handles.
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._births = 0
        self._cancelled_timers = 0
        self._stop_asked = False

    def __del__(self) -> None:
        """Do nothing: asyncio would warn of a loop that was never closed, and this one holds nothing of the system."""

    # -------------------------------------------------------------- what asyncio and node code call

    def time(self) -> float:
        return self.now

    get_debug = staticmethod(bool)
    """False, whatever PYTHONASYNCIODEBUG says: only the seed decides what a schedule does. Nothing written in Python,
    because every future asks."""

    def is_running(self) -> bool:
        return self._in_run

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        timer = Timer(when, callback, args, copy_context() if context is None else context, self)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> Future:
        return Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> VirtualTask:
        return VirtualTask(coro, self, name, context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Future:  # type: ignore[override]
        """Run `func` at once and settle the returned future a moment later, as if another thread had worked on it.

        Only for functions that compute: one that used a file or a socket would use the real machine's.
        """
        # The delay lets other handles run before the result is there, as they do beside a real thread.
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.call_later(_THREAD_S, _tell, future, future.set_exception, error)
        else:
            self.call_later(_THREAD_S, _tell, future, future.set_result, result)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the schedule with what asyncio would only log, if a living process or the scenario caused it.

        A plain future whose exception was never retrieved is passed over: it does not say which process made it, so
        it may be of a dead one.
        """
        subject = context.get("task") or context.get("future")
        if isinstance(subject, VirtualTask):
            life = subject.life
        elif subject is not None:
            return
        else:
            life = LIFE.get()
        if life is None or not life.dead:
            self._failed(life, context.get("exception") or RuntimeError(context["message"]))

    # -------------------------------------------------------------- what the simulated machine calls

    def soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` soon, as the simulator's own: no pause holds it back, and no death of a process drops it."""
        self._queue.append(Handle(callback, args, None))

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Run `callback` at the virtual time `when`, as the simulator's own (see `soon`)."""
        timer = Timer(when, callback, args, None, self)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, timer))
        return timer

    def requeue(self, handles: Iterable[asyncio.Handle]) -> None:
        """Make handles ready that were held back from a paused process."""
        self._queue.extend(cast("Iterable[Handle]", handles))

    def enter(self, life: Life, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` now as part of a process: if that is paused, when it goes on; if it is dead, never."""
        if life.blocked:
            if not life.dead:
                life.held_back.append(Handle(callback, args, life.context.copy()))
            return
        # A copy each time: a context can't be entered while it is entered already. Who calls is the machine, which
        # must go on whatever the process raises, `Killed` and `CancelledError` included.
        try:
            life.context.copy().run(callback, *args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001
            self._report(life, error)

    def next_birth(self) -> int:
        self._births += 1
        return self._births

    def timer_cancelled(self) -> None:
        """Count a cancelled timer, and sweep the heap once most of it is cancelled.

        Every deadline that was met leaves a cancelled timer, due long after: the heap would hold little else.
        """
        # Cancelled timers that time has passed stay in the count. So a sweep may come too early, which is harmless.
        self._cancelled_timers += 1
        if self._cancelled_timers > _PURGE_MIN and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2]._callback is not None]
            heapify(self._timers)
            self._cancelled_timers = 0

    def run_forever(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("a schedule cannot run inside another event loop")
        # asyncio's own hook schedules the closing of an abandoned generator. What a dead process schedules is dropped,
        # so its generators would end whenever Python frees them, and not at a moment that the seed decides.
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finish_generator)
        asyncio._set_running_loop(self)
        self._in_run = True
        try:
            self._run()
        finally:
            self._in_run = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def stop(self) -> None:
        self._stop_asked = True

    def grant(self, steps: int) -> None:
        """Allow the schedule `steps` more handles, for work that needs many and that few schedules do."""
        self._steps_max += steps

    def _run(self) -> None:
        queue = self._queue
        self._stop_asked = False
        while not self._stop_asked:
            if not queue:
                self._advance()
            handle = queue.popleft()
            callback = handle._callback
            if callback is None:
                continue
            # Held handles count too: a loop that floods a paused process has to end as well.
            self.steps += 1
            if self.steps > self._steps_max:
                raise StepsExceeded(f"more than {self._steps_max} steps by {self.now:.6f} s\n{self.describe_tasks()}")
            context = handle._context
            if context is None:
                # The simulator's own. An exception here is a mistake of the simulator and not of a process: it leaves
                # `run_forever`.
                callback(*handle._args)
                continue
            life = context.get(LIFE)
            # Here, and in `enter`, is all there is to pauses and deaths: node code takes no part in them.
            if life is not None and life.blocked:
                if not life.dead:
                    life.held_back.append(handle)
                continue
            # A task keeps what its coroutine raises: what gets here was raised by a plain callback.
            try:
                context.run(callback, *handle._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001
                self._report(life, error)

    def _advance(self) -> None:
        """Move time to the next timer and make every timer ready that is due then. Raises `Deadlock` if none is set."""
        timers = self._timers
        # First, or time would move to a deadline that was met long ago.
        while timers and timers[0][2]._callback is None:
            heappop(timers)
        if not timers:
            raise Deadlock(f"nothing left to do at {self.now:.6f} s\n{self.describe_tasks()}")
        if timers[0][0] > self.now:  # one set for a moment that has passed is due now: time does not go back
            self.now = timers[0][0]
        while timers and timers[0][0] <= self.now:
            self._queue.append(heappop(timers)[2])

    def _report(self, life: Life | None, error: BaseException) -> None:
        # What a dead process raises comes of its death, because its ports fail: it shows no mistake in its code.
        if not isinstance(error, Killed) and (life is None or not life.dead):
            self._failed(life, error)

    # -------------------------------------------------------------- the end of a life

    def describe_tasks(self) -> str:
        """Describe every unfinished task, one a line: its process, its name and where it waits."""
        return "\n".join(
            f"{task.life.name if task.life else 'scenario'}: {_place(task)}" for task in self._unfinished(0)
        )

    def bury(self, *lives: Life | None) -> None:
        """Drop the handles of dead processes and close their coroutines, eldest first. None stands for the scenario.

        Their `finally` blocks run, because Python runs them when a coroutine is closed or freed, but they reach
        nothing: the host's ports raise `Killed`, and what they schedule is dropped.
        """
        # Closed here, in an order that only the seed decides. Left alone, they would be closed when the garbage
        # collector comes to them.
        self._drop(lives)
        last = 0
        for _ in range(_CLOSE_TRIES):
            unseen, last = last, self._births
            for task in self._unfinished(unseen):
                if task.life in lives:
                    _silence(task)
                    # In its own context, so that what it calls and schedules is known to be of the dead.
                    context = copy_context() if task.life is None else task.life.context.copy()
                    context.run(_close, task.get_coro())
            if self._births == last:  # else a `finally` block may have made a task, which must be closed too
                break
        self._drop(lives)  # what the `finally` blocks have scheduled
        for life in lives:
            if life is not None:
                life.held_back.clear()

    def unburied(self) -> list[Life]:
        """Return the dead processes whose coroutines were not closed yet."""
        return [task.life for task in self._unfinished(0) if task.life is not None and task.life.dead]

    def _unfinished(self, birth: int) -> list[VirtualTask]:
        """Return all tasks that are not done and were born after `birth`, eldest first."""
        tasks = [cast(VirtualTask, task) for task in asyncio.all_tasks(self)]
        return sorted((task for task in tasks if task.birth > birth), key=lambda task: task.birth)

    def _drop(self, lives: tuple[Life | None, ...]) -> None:
        def kept(handle: Handle) -> bool:
            return handle._context is None or handle._context.get(LIFE) not in lives

        queue = [handle for handle in self._queue if kept(handle)]
        self._queue.clear()
        self._queue.extend(queue)
        self._timers[:] = [entry for entry in self._timers if kept(entry[2])]
        heapify(self._timers)

    def clear(self) -> None:
        """Drop every handle and timer: the schedule is over."""
        self._queue.clear()
        self._timers.clear()

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an abandoned asynchronous generator as part of the process that abandoned it."""
        life = LIFE.get()
        closing = generator.aclose()
        if self._in_run and not (life is not None and life.dead):
            self.create_task(closing)
        else:
            _close_generator(closing)


def _tell(future: Future, settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():  # else it was cancelled meanwhile
        settle(outcome)


def _close(coroutine: Any) -> None:
    """Close a coroutine, even one that awaits again in its `finally` blocks."""
    for _ in range(_CLOSE_TRIES):
        try:
            coroutine.close()
            return
        except RuntimeError:
            # "coroutine ignored GeneratorExit", and it now waits in a `finally` block; or that block raised, and the
            # coroutine has ended. The next try tells: closing one that has ended does nothing.
            continue
        except BaseException:  # noqa: BLE001
            continue
    _graveyard.append(coroutine)


def _close_generator(closing: Any) -> None:
    """Run the `aclose()` of a dead process's generator to its end, ending with `Killed` each wait that it begins."""
    try:
        closing.send(None)
        for _ in range(_CLOSE_TRIES):
            closing.throw(Killed())
    except BaseException:  # noqa: BLE001
        return
    _graveyard.append(closing)


def _silence(task: VirtualTask) -> None:
    # Else asyncio says "Task was destroyed but it is pending!" of every task of the dead.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _place(task: VirtualTask) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[0].f_code.co_qualname} line {frames[0].f_lineno}" if frames else "not started"
    return f"{task.get_name()} in {place}"
