"""An asyncio event loop with virtual time, whose handles belong to processes.

Ready handles run in order of arrival and time moves only when none is left, to the next timer: an idle hour costs
nothing, and a schedule is a function of its inputs. Whatever has a hash in asyncio (tasks, futures) hashes by birth
number here, because `TaskGroup` and `asyncio.wait` walk over sets.

Each handle runs in a `contextvars` context, and the context says whose it is (`Life`). So one place, the run loop, can
hold back everything a paused process would do and drop everything a dead one would.
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

START_S: Final = 10_000.0
"""Virtual time at the start: not 0, so that nobody takes "no time yet" for a time."""

_THREAD_S: Final = 0.0002
"""What work in another thread takes."""
_PURGE_MIN: Final = 512
"""So many cancelled timers are left lying before the heap is swept."""

_CLOSE_TRIES: Final = 32
"""How often a dead coroutine may go on awaiting in its `finally` blocks before it is left alone."""

_graveyard: list[object] = []
"""Coroutines that would not end: kept, because freeing one would run its code again at a random moment."""


class Killed(BaseException):
    """Raised into code of a dead process that reaches for its machine. Nobody is meant to catch it."""


class ScheduleFailed(Exception):
    """The schedule ended as none may."""


class Deadlock(ScheduleFailed):
    """Nothing is ready and no timer is set: the schedule would wait for ever."""


class StepsExceeded(ScheduleFailed):
    """More handles ran than a schedule may have: most likely a loop without a delay."""


class Life:
    """Whose a handle is: one life of one process. Handles without a life are the scenario's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.blocked = False
        """Dead or paused: its handles do not run."""
        self.held: list[asyncio.Handle] = []
        """What a paused life has to do when it goes on, in order."""
        self.context = Context()
        self.context.run(LIFE.set, self)


LIFE: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("life", default=None)


def leave_if_dead() -> None:
    """Unwind the code that has just ended its own process."""
    life = LIFE.get()
    if life is not None and life.dead:
        raise Killed(life.name)


class Handle(asyncio.TimerHandle):
    """A callback that waits for its turn; lighter than asyncio's own."""

    __slots__ = ()

    _callback: Callable[..., object] | None
    _args: tuple[Any, ...]
    _context: Context | None

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
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
    """A callback that waits for its time."""

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
    """A future that hashes by the order in which it first got into a set."""

    _birth: int

    def __hash__(self) -> int:
        try:
            return self._birth
        except AttributeError:
            self._birth = cast(VirtualLoop, self.get_loop()).next_birth()
            return self._birth


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by birth number and knows whose it is."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], loop: VirtualLoop, name: str | None, context: Context | None
    ) -> None:
        self.birth = loop.next_birth()
        self.life = LIFE.get() if context is None else context.get(LIFE)
        super().__init__(coroutine, loop=loop, name=name or f"task {self.birth}", context=context)

    def __hash__(self) -> int:
        return self.birth


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one schedule."""

    def __init__(self, steps_max: int, failed: Callable[[Life | None, BaseException], None]) -> None:
        """`failed` learns of every exception that nobody in the process `Life` handled."""
        self._in_run = False
        super().__init__()
        self.now = START_S
        self.steps = 0
        """Handles run so far."""
        self._steps_max = steps_max
        self._failed = failed
        self._queue: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._births = 0
        self._cancelled_timers = 0
        self._stop_asked = False

    def __del__(self) -> None:
        """A loop that never ran has nothing to close."""

    # -------------------------------------------------------------- what asyncio and node code call

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._in_run

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

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
        """Computing in another thread, as `asyncio.to_thread` asks for it: done at once, and told a moment later.

        For what only computes: a thread that reaches the machine would reach the real one.
        """
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.call_later(_THREAD_S, _tell, future, future.set_exception, error)
        else:
            self.call_later(_THREAD_S, _tell, future, future.set_result, result)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio would log is a failure of the schedule, if a living process did it.

        A plain future with an exception that nobody asked for is none: it does not tell whose it is.
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
        """Run `callback` as part of the machinery: it outlives any process."""
        self._queue.append(Handle(callback, args, None))

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """As `soon`, at a time."""
        timer = Timer(when, callback, args, None, self)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, timer))
        return timer

    def requeue(self, handles: Iterable[asyncio.Handle]) -> None:
        """Let held handles run after all."""
        self._queue.extend(cast("Iterable[Handle]", handles))

    def enter(self, life: Life, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` in the life now; when it is paused, as soon as it goes on; when it is dead, never."""
        if life.blocked:
            if not life.dead:
                life.held.append(Handle(callback, args, life.context.copy()))
            return
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
        """Sweep the heap once most of it is cancelled: every deadline that was met leaves one."""
        self._cancelled_timers += 1
        if self._cancelled_timers > _PURGE_MIN and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2]._callback is not None]
            heapify(self._timers)
            self._cancelled_timers = 0

    def run_forever(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("a schedule cannot run inside another event loop")
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
        """Let the schedule take so many steps more, for something that needs them and not every schedule has."""
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
            self.steps += 1
            if self.steps > self._steps_max:
                raise StepsExceeded(f"{self._steps_max} steps at {self.now:.6f} s\n{self.describe_tasks()}")
            context = handle._context
            if context is None:
                callback(*handle._args)
                continue
            life = context.get(LIFE)
            if life is not None and life.blocked:
                if not life.dead:
                    life.held.append(handle)
                continue
            try:
                context.run(callback, *handle._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001
                self._report(life, error)

    def _advance(self) -> None:
        """Move time to the next timer and make ready all that is due then."""
        timers = self._timers
        while timers and timers[0][2]._callback is None:
            heappop(timers)
        if not timers:
            raise Deadlock(f"nothing left to do at {self.now:.6f} s\n{self.describe_tasks()}")
        if timers[0][0] > self.now:
            self.now = timers[0][0]
        while timers and timers[0][0] <= self.now:
            self._queue.append(heappop(timers)[2])

    def _report(self, life: Life | None, error: BaseException) -> None:
        if not isinstance(error, Killed) and (life is None or not life.dead):
            self._failed(life, error)

    # -------------------------------------------------------------- the end of a life

    def describe_tasks(self) -> str:
        """Every unfinished task and where it waits, by process."""
        return "\n".join(
            f"{task.life.name if task.life else 'scenario'}: {_place(task)}" for task in self._unfinished(0)
        )

    def bury(self, *lives: Life | None) -> None:
        """Drop what dead lives still had to do and close their coroutines, eldest first.

        Their `finally` blocks run, because Python runs them, but into nothing: the host's ports raise `Killed`, and
        what they schedule is dropped. None stands for the scenario.
        """
        self._drop(lives)
        last = 0
        for _ in range(_CLOSE_TRIES):
            unseen, last = last, self._births
            for task in self._unfinished(unseen):
                if task.life in lives:
                    _silence(task)
                    context = copy_context() if task.life is None else task.life.context.copy()
                    context.run(_close, task.get_coro())
            if self._births == last:  # else some `finally` block has made a task
                break
        self._drop(lives)
        for life in lives:
            if life is not None:
                life.held.clear()

    def _unfinished(self, birth: int) -> list[VirtualTask]:
        """All tasks that are not done and born after `birth`, eldest first."""
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
        """Forget everything that was to happen: the schedule is over."""
        self._queue.clear()
        self._timers.clear()

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An abandoned asynchronous generator ends in the life that abandoned it."""
        life = LIFE.get()
        closing = generator.aclose()
        if self._in_run and not (life is not None and life.dead):
            self.create_task(closing)
        else:
            _close_generator(closing)


def _tell(future: Future, settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():  # cancelled meanwhile
        settle(outcome)


def _close(coroutine: Any) -> None:
    """Close a coroutine whatever it does: it may await anew in each of its `finally` blocks."""
    for _ in range(_CLOSE_TRIES):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue  # "coroutine ignored GeneratorExit", or a finally block that failed: the next try tells
        except BaseException:  # noqa: BLE001
            continue
    _graveyard.append(coroutine)


def _close_generator(closing: Any) -> None:
    """Run the `aclose()` of a dead process's generator as far as it goes without waiting."""
    try:
        closing.send(None)
        for _ in range(_CLOSE_TRIES):
            closing.throw(Killed())
    except BaseException:  # noqa: BLE001
        return
    _graveyard.append(closing)


def _silence(task: VirtualTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _place(task: VirtualTask) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[0].f_code.co_qualname} line {frames[0].f_lineno}" if frames else "not started"
    return f"{task.get_name()} in {place}"
