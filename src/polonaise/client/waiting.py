"""Waits with deadlines, for marks, for room and for turns: cheap enough for every append."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from polonaise.client.protocol.arguments import checked_seconds
from polonaise.client.protocol.turns import Turn, Turns
from polonaise.errors import Closed, ConnectionLost, Forked, PolonaiseError, fault, fresh
from polonaise.host.forks import keep_apart
from polonaise.host.unawaited import retrieve
from polonaise.terms import ClientId, TransactionId

K = TypeVar("K")
T = TypeVar("T")

_processes: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, int]] = WeakKeyDictionary()
"""The process that each client's event loop runs in: after a fork the child has the loops, which do not run there."""

process = object()
"""Stands for this process: a forked child has another one. Compared faster than process ids."""


def _new_process() -> None:
    global process
    process = object()


os.register_at_fork(after_in_child=_new_process)


def own_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop, for a client to use."""
    loop = asyncio.get_running_loop()
    _processes[loop] = os.getpid()
    keep_apart(loop)
    return loop


def is_inherited(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a client's loop is one of the parent process: this is a forked child."""
    return _processes.get(loop, os.getpid()) != os.getpid()


def check_loop(loop: asyncio.AbstractEventLoop, what: str = "log was opened") -> None:
    """Raise `wrong_event_loop` unless called within that loop: waiters of another loop would never be woken. Raises
    `Forked` if that loop is the parent process's; `what` is as for `forked`."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        if is_inherited(loop):
            raise forked(what)
        raise fault(
            "wrong_event_loop",
            "a client belongs to the event loop, and the thread, that it was connected in: call it there "
            "(asyncio.run_coroutine_threadsafe does from elsewhere), or connect another one here",
        )


def deadline_in(timeout: float | None, loop: asyncio.AbstractEventLoop) -> float | None:
    """Return the time of the client's loop in `timeout` seconds, if any. Raises `BadOption`, and as `check_loop`."""
    seconds = checked_seconds("timeout", timeout)
    check_loop(loop)
    return None if seconds is None else loop.time() + seconds


def forked(what: str = "log was opened") -> Forked:
    """Return the error for use in a child process of something; `what` names it, and how it began."""
    return Forked(
        f"this {what} before the process forked, and its connections belong to the parent: "
        "open one in each process, after the fork"
    )


def until(future: asyncio.Future[T], deadline_s: float | None) -> Awaitable[T]:
    """Return an awaitable for the result of `future`, which must belong to this waiter alone. Raises `TimeoutError`
    when the loop's time passes `deadline_s`. Costs one timer of the loop, or nothing."""
    return future if deadline_s is None else _until(future, deadline_s)


async def _until(future: asyncio.Future[T], deadline_s: float) -> T:
    """Await a future with a deadline. Not `asyncio.timeout`, which costs more, and cancels the task."""
    timer = asyncio.get_running_loop().call_at(deadline_s, _expire, future)
    try:
        return await future
    except TimeoutError as error:
        # Another one for the caller: the future, which may be kept for long, has this one, and the traceback that grows
        # on the way to where it is caught would keep what those functions work on.
        error.__traceback__ = None
        raise TimeoutError from None
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def fail_all(futures: Iterable[asyncio.Future[Any]], error: PolonaiseError) -> None:
    """End the waits for these futures with a copy each of this error."""
    for future in futures:
        if not future.done():
            future.set_exception(fresh(error))


_ended: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()


def end(task: asyncio.Task[Any]) -> None:
    """Cancel one of the client's own tasks. Cancelled by anything else, it ends the client (`ApplicationHost`)."""
    _ended.add(task)
    task.cancel()


def ended_here(task: asyncio.Task[Any]) -> bool:
    return task in _ended


def cancelled_elsewhere(task: asyncio.Task[Any]) -> Closed:
    """Return why nothing goes on after the application has cancelled one of the library's own tasks."""
    what = f"the application has cancelled {task.get_name()!r}, a task of the library's"
    return Closed(f"{what} (as by cancelling all tasks of its event loop), so this has stopped: open it anew")


def result_of(task: asyncio.Future[T]) -> T:
    """Return the result of a task of the library's that has ended, or raise its error. Raises `ConnectionLost` if
    somebody else has cancelled it: that is no cancellation of the caller."""
    if task.cancelled():
        raise ConnectionLost("the application has cancelled a request, as by cancelling all tasks of its event loop")
    return task.result()


async def results_of(doing: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of this at the same time, and return the results in order. Raises the first failure, and ends the rest."""
    tasks = [asyncio.ensure_future(each) for each in doing]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and (task.cancelled() or task.exception() is not None)]
        return [result_of(task) for task in (failed or tasks)]
    finally:
        _give_up(tasks)


async def first_results_of(doing: Mapping[K, Coroutine[Any, Any, T]]) -> dict[K, T]:
    """Do all of this at the same time until some of it is done; return the results of that, and end the rest."""
    tasks = {asyncio.ensure_future(each): key for key, each in doing.items()}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return {tasks[task]: result_of(task) for task in done}
    finally:
        _give_up(tasks)


def _give_up(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks; mark the errors of those that are done as seen."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(retrieve)


class Applying(NamedTuple):
    """What the application's view is applying, since a time of the loop."""

    first: TransactionId
    last: TransactionId
    since_s: float

    def describe(self, now_s: float) -> str:
        which = f"transaction {self.first}" if self.first == self.last else f"transactions {self.first} to {self.last}"
        return f"the view has been applying {which} for {round(now_s - self.since_s, 2):g} s"


class Asking(NamedTuple):
    """A request for its high-water mark that the application's view has not answered, since a time of the loop."""

    since_s: float

    def describe(self, now_s: float) -> str:
        return f"the view has not told its high-water mark for {round(now_s - self.since_s, 2):g} s"


class AppliedMark:
    """The client high-water mark of a partition, and the waits for it to rise."""

    __slots__ = ("_stopped", "_sweep_at", "_wait_count", "_waiting", "applying", "trouble", "value")

    def __init__(self, value: TransactionId) -> None:
        self.value = value
        """Everything up to this id is applied by this client."""
        self.trouble: PolonaiseError | None = None
        """Why the application's view does not advance; None while nothing is known to be wrong. `Applier` writes it."""
        self.applying: Applying | Asking | None = None
        """What a coroutine of the view is doing. `Applier` writes it."""
        self._waiting: list[tuple[TransactionId, int, asyncio.Future[None]]] = []
        """A heap of (id, number, future): the number keeps futures from being compared."""
        self._wait_count = 0
        self._sweep_at = 1024
        self._stopped: PolonaiseError | None = None

    def reach(self, value: TransactionId) -> None:
        self.value = value
        waiting = self._waiting
        while waiting and waiting[0][0] <= value:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    async def wait(self, value: TransactionId, deadline_s: float | None = None) -> None:
        """Wait until transaction `value` is applied. Raises `TimeoutError` after the deadline, a time of the loop, and
        the error that stopped the partition."""
        if self.value < value:
            await until(self.reached(value), deadline_s)

    def reached(self, value: TransactionId) -> asyncio.Future[None]:
        """Return a future that is done when `value` is applied, or fails when the partition stops."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.value >= value:
            future.set_result(None)
            return future
        if self._stopped:
            future.set_exception(fresh(self._stopped))
            return future
        self._wait_count += 1
        # Waits that were given up stay in the heap until the mark reaches them, which may be never: swept out before
        # they are most of it.
        if len(self._waiting) >= self._sweep_at:
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapify(self._waiting)
            self._sweep_at = max(1024, 2 * len(self._waiting))
        heappush(self._waiting, (value, self._wait_count, future))
        return future

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        waiting, self._waiting = self._waiting, []
        fail_all((future for _, _, future in waiting), error)


class Admission:
    """Lets contexts in while the partition is mounted and its outstanding appends are within bounds. The one that waits
    longest is first. A slot is taken before a context runs, so that what it builds can surely be appended, and given
    back when the append counts by itself, or there is none."""

    __slots__ = ("_is_open", "_stopped", "_waiting", "taken")

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        """Whether one more slot may be taken, given the number of those that are."""
        # An `OrderedDict`, because a wait may be given up anywhere in the row, and a dict finds its first only slowly
        # after many removals in front.
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._stopped: PolonaiseError | None = None
        self.taken = 0

    def take_now(self) -> bool:
        """Take a slot if there is one that no context waits for; return whether. Raises why the partition has
        stopped."""
        if self._stopped:
            raise fresh(self._stopped)
        if self._waiting or not self._is_open(self.taken):
            return False
        self.taken += 1
        return True

    async def take(self, deadline_s: float | None) -> None:
        """Wait for a slot, and take it. Raises `TimeoutError` after the deadline, a time of the loop, and the error
        that stopped the partition."""
        if self.take_now():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await until(future, deadline_s)
        except BaseException:
            self._waiting.pop(future, None)
            # Let in and cancelled in the same turn of the loop: the slot is taken, and would never be used.
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back()
            raise

    async def wait(self, deadline_s: float | None) -> None:
        """Wait until there is a slot, and leave it to others. Raises as `take`."""
        await self.take(deadline_s)
        self.give_back()

    def give_back(self) -> None:
        self.taken -= 1
        if self._waiting:
            self.admit()

    def admit(self) -> None:
        """Let waiting contexts in, as far as there is room. To be called whenever there may be more: after a mount,
        when fates are settled, after a withdrawal."""
        waiting = self._waiting
        while waiting:
            first = next(iter(waiting))
            if not first.done():  # else it was given up just now
                if not self._is_open(self.taken):
                    return
                self.taken += 1
                first.set_result(None)
            del waiting[first]

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        waiting, self._waiting = self._waiting, OrderedDict()
        fail_all(waiting, error)


class TurnTaking:
    """Wakes the contexts of one partition that want the same locks when it is their turn, as `Turns` decides."""

    def __init__(self, client_id: ClientId, mark: AppliedMark) -> None:
        self.turns = Turns(client_id)
        self._mark = mark
        # Dicts for their order: with sets, who is woken first would depend on where in memory the futures are.
        self._courteous: dict[asyncio.Future[None], None] = {}
        """Contexts that let rivals go first."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Contexts that wait for others of this client."""
        self._stopped: PolonaiseError | None = None

    async def wait(self, turn: Turn, chance: Callable[[], float], deadline_s: float | None) -> None:
        """Wait until the context with this turn may run. `chance` returns a random number from 0 to 1. Raises
        `TimeoutError` after the deadline, a time of the loop, and the error that stopped the partition."""
        if not turn.granted:
            turn.waiter = asyncio.get_running_loop().create_future()
            await self._until(turn.waiter, self._waiting, deadline_s)
        await self._let_rivals_go(turn, chance(), deadline_s)
        # On a state without the rivals' last commits the context would only be refused.
        await self._mark.wait(self.turns.newest(turn), deadline_s)

    async def _let_rivals_go(self, turn: Turn, chance: float, deadline_s: float | None) -> None:
        """Wait until the rivals that go first have committed, or `Turns.patience_s` is over. Raises as `wait`."""
        turns, loop = self.turns, asyncio.get_running_loop()
        if not turns.owed(turn):
            return
        patience_s = loop.time() + turns.patience_s(turn, chance)
        while turns.owed(turn):
            future: asyncio.Future[None] = loop.create_future()
            try:
                await self._until(future, self._courteous, min(patience_s, deadline_s or patience_s))
            except TimeoutError:
                if deadline_s is not None and loop.time() >= deadline_s:
                    raise
                turns.given_up(turn)

    async def _until(
        self, future: asyncio.Future[None], waiting: dict[asyncio.Future[None], None], deadline_s: float | None
    ) -> None:
        if self._stopped is not None:
            raise fresh(self._stopped)
        waiting[future] = None
        try:
            await until(future, deadline_s)
        finally:
            waiting.pop(future, None)

    def leave(self, turn: Turn) -> None:
        wake(ready.waiter for ready in self.turns.leave(turn) if ready.waiter is not None)

    def leave_once_applied(self, turn: Turn, transaction: TransactionId, began_s: float) -> None:
        """Give up a turn once this client has applied its append, which is committed: only then does the next context
        see it. `began_s` is the loop's time at which the run began."""
        loop = asyncio.get_running_loop()

        def applied(reached: asyncio.Future[None]) -> None:
            if not reached.cancelled() and reached.exception() is None:
                self.turns.took(loop.time() - began_s)
            self.leave(turn)  # also when the mark rises no more: the others must not wait for ever

        self._mark.reached(transaction).add_done_callback(applied)

    def fed(self, first: TransactionId, clients: Sequence[ClientId]) -> None:
        """Note who wrote each transaction of a fed batch; if a rival did, wake the contexts in `_courteous`."""
        if self.turns.watching and self.turns.fed(first, clients):
            wake(self._courteous)

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        fail_all([*self._waiting, *self._courteous], error)
