"""A simulated process: one life of a node, which can be killed, paused and stopped at any moment.

Death first cuts the process off from its ports and then closes its coroutines, so that what their `finally` blocks do
reaches nothing. A restart is a new `Process` on the same machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeAlias

from polonaise.host import Host
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.environment import Environment
from polonaise_proving.stages.simulated.loop import LIFE, Killed, Life, VirtualTask, leave_if_dead

Main: TypeAlias = Callable[[Host], Coroutine[Any, Any, None]]


class Process(Life):
    """One life of a process on a machine. It knows nothing of the machine: its ports there register in `at_end`."""

    host: Host

    def __init__(self, environment: Environment, name: str, may_fail: tuple[type[BaseException], ...]) -> None:
        super().__init__(name)
        self.environment = environment
        self.subject = environment.trace.subject(name)
        self.failure: BaseException | None = None
        """The error that ended the process; None if it did not fail."""
        self.calls = 0
        """The number of calls so far to the disk, the network, a connection or the object store."""
        self.crash_on_call: int | None = None
        """The number of the call before which the process crashes; None for no such crash.

        Trying all numbers hits every gap between calls.
        """
        self.left_open: list[str] = []
        """The files and locks still open when `main` ended without an error: the process ought to have closed them."""
        self.open_files: dict[object, str] = {}
        """The files and locks that the process has open, each with its path."""
        self.at_end: list[Callable[[bool], None]] = []
        """Functions that are called in this order when the process ends in any way, each with whether its machine lost
        power: the ports of the process, such as its way to the disk, cut it off by these."""
        self._may_fail = may_fail
        self._supervised: dict[VirtualTask, None] = {}
        self._ended = asyncio.Event()
        self._main: VirtualTask | None = None

    def begin(self, main: Main, host: Host) -> None:
        """Run `main(host)`; the process ends when it returns."""
        self.host = host
        context = self.context.copy()
        coroutine = context.run(main, host)
        self._main = self.environment.loop.create_task(coroutine, name="main", context=context)
        # Outside of the process's context: this ends the process, and must not be unwound by `Killed` for that.
        self._main.add_done_callback(self._main_done, context=Context())

    # -------------------------------------------------------------- for scenarios

    @property
    def handles(self) -> list[str]:
        """The paths of the files that the process has open or locked."""
        return list(self.open_files.values())

    @property
    def alive(self) -> bool:
        return not self.dead

    @property
    def paused(self) -> bool:
        return self.blocked and not self.dead

    def crash(self) -> None:
        """Die as by `kill -9`: the disk keeps what was written, synced or not, and peers see their connections end.

        Called from within the process, it raises `Killed` there.
        """
        if not self.dead:
            self.environment.faults.count("crash")
            self.end(Event.CRASH)
            leave_if_dead()

    def pause(self, seconds: float | None = None) -> None:
        """Stop running, as by SIGSTOP or a long garbage collection, for `seconds` (None: until `resume`)."""
        if self.blocked:
            return
        self.blocked = True
        self.environment.faults.count("pause")
        self.environment.trace.add(Event.PAUSE, self.subject)
        if seconds is not None:
            self.environment.loop.at(self.environment.loop.now + seconds, self.resume)

    def resume(self) -> None:
        """Go on after `pause`, with everything that came meanwhile, in its order."""
        if not self.paused:
            return
        self.blocked = False
        self.environment.trace.add(Event.RESUME, self.subject)
        held, self.held_back = self.held_back, []
        self.environment.loop.requeue(held)

    def terminate(self) -> None:
        """Ask for a clean stop, as SIGTERM does: the main coroutine is cancelled."""
        if self._main is not None and not self.dead:
            self._main.cancel()

    async def ended(self) -> None:
        """Wait until the process is dead, whatever ended it."""
        await self._ended.wait()

    # -------------------------------------------------------------- for the machinery

    def check_alive(self) -> None:
        if self.dead:
            raise Killed(self.name)

    def call(self) -> None:
        """Count a call to the machine, at its start. Raises `Killed` if the process is dead, or is to die here."""
        if self.dead:
            raise Killed(self.name)
        self.calls += 1
        if self.calls == self.crash_on_call:
            self.crash()

    def supervise(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        if self.dead:
            coroutine.close()
            raise Killed(self.name)
        context = None if LIFE.get() is self else self.context.copy()
        task = self.environment.loop.create_task(coroutine, name=name, context=context)
        self._supervised[task] = None
        task.add_done_callback(self._supervised_done)
        return task

    def failed(self, error: BaseException) -> None:
        """End the process because of an error; also end the schedule, unless the scenario allows this error."""
        self.check_alive()
        self.failure = error
        if not isinstance(error, self._may_fail):
            self.environment.failed(self, error)
        self.end(Event.CRASH)
        leave_if_dead()

    def end(self, kind: Event) -> None:
        """Cut the process off from its machine, then close its coroutines."""
        if self.dead:
            return
        self.dead = self.blocked = True
        self.environment.trace.add(kind, self.subject)
        for ended in self.at_end:
            ended(kind == Event.POWER_LOSS)
        # A coroutine that runs can't be closed. If this was called from one of the process's own, wait until the stack
        # is unwound.
        if LIFE.get() is self:
            self.environment.loop.soon(self._bury)
        else:
            self._bury()

    def _bury(self) -> None:
        self.environment.loop.bury(self)
        self._supervised.clear()
        self._ended.set()

    def _main_done(self, task: asyncio.Task[None]) -> None:
        if self.dead:
            return
        error = None if task.cancelled() else task.exception()
        if error is None:  # returned, or was cancelled by `terminate`
            self.left_open = self.handles
            self.end(Event.END)
        else:
            self.failed(error)

    def _supervised_done(self, task: asyncio.Task[None]) -> None:
        self._supervised.pop(task, None)  # type: ignore[call-overload]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)
