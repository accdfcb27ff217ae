"""A simulated process: one life, with a host of its own, that can be killed, paused and stopped at any moment.

Death cuts the ports first and closes the coroutines afterwards: what `finally` blocks of a dead process do reaches
nothing. A restart is a new `Process` on the same machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeAlias

from polonaise.host import Clock, Disk, Host, Network
from polonaise.simulator import trace
from polonaise.simulator.disk_port import DiskPort
from polonaise.simulator.loop import LIFE, Killed, Life, VirtualTask, leave_if_dead
from polonaise.simulator.network import NetworkPort

if TYPE_CHECKING:
    from polonaise.simulator.transport import SimulatedTransport
    from polonaise.simulator.world import Machine, World

Main: TypeAlias = Callable[[Host], Coroutine[Any, Any, None]]


class SimulatedClock:
    """Time as one process sees it."""

    def __init__(self, process: Process, offset_s: float) -> None:
        self._process = process
        self._offset_s = offset_s

    def monotonic_s(self) -> float:
        self._process.check_alive()
        return self._process.world.loop.now + self._offset_s

    def wall_us(self) -> int:
        self._process.check_alive()
        return self._process.machine.wall_us()


class SimulatedHost:
    """The ports of one process."""

    def __init__(self, process: Process, source: random.Random) -> None:
        self._process = process
        self.random = source
        self.clock: Clock = SimulatedClock(process, source.uniform(1.0, 100_000.0))
        self.files = DiskPort(process, process.machine.disk)
        self.disk: Disk = self.files
        self.network: Network = NetworkPort(process, process.world.network)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._process.supervise(coroutine, name)

    def fail(self, error: BaseException) -> None:
        self._process.failed(error)


class Process(Life):
    """One life of a process on a machine."""

    def __init__(self, world: World, machine: Machine, name: str, may_fail: tuple[type[BaseException], ...]) -> None:
        super().__init__(name)
        self.world = world
        self.machine = machine
        self.subject = world.trace.subject(name)
        self.failure: BaseException | None = None
        """Why it failed, when that was a failure that the scenario allows."""
        self.calls = 0
        """Calls so far that can change something outside of the process: on the disk, the network, a connection."""
        self.crash_on_call: int | None = None
        """Crash instead of making the call of this number: a sweep over all numbers tries every gap between two."""
        self.left_open: list[str] = []
        """What it still had open or locked when it ended as it should: whatever left that open has lost it."""
        self.transports: dict[SimulatedTransport, None] = {}
        self._may_fail = may_fail
        self._supervised: dict[VirtualTask, None] = {}
        self._ended = asyncio.Event()
        self._main: VirtualTask | None = None
        self.host = SimulatedHost(self, world.random(f"process/{name}"))

    def begin(self, main: Main) -> None:
        """Run `main`; the process ends when it returns."""
        context = self.context.copy()
        coroutine = context.run(main, self.host)
        self._main = self.world.loop.create_task(coroutine, name="main", context=context)
        self._main.add_done_callback(self._main_done, context=Context())

    # -------------------------------------------------------------- for scenarios

    @property
    def handles(self) -> list[str]:
        """The files that it has open or locked, by path."""
        return list(self.host.files.handles.values())

    @property
    def alive(self) -> bool:
        return not self.dead

    @property
    def paused(self) -> bool:
        return self.blocked and not self.dead

    def crash(self) -> None:
        """Die as by `kill -9`. The disk keeps what was written, synced or not; peers see their connections end.

        Called from within the process, it raises `Killed` there.
        """
        if not self.dead:
            self.world.faults.count("crash")
            self.end(trace.CRASH)
            leave_if_dead()

    def pause(self, seconds: float | None = None) -> None:
        """Stop running, as by SIGSTOP or a long garbage collection, for `seconds` or until `resume`."""
        if self.blocked:
            return
        self.blocked = True
        self.world.faults.count("pause")
        self.world.trace.add(trace.PAUSE, self.subject)
        if seconds is not None:
            self.world.loop.at(self.world.loop.now + seconds, self.resume)

    def resume(self) -> None:
        """Go on after `pause`, with everything that came meanwhile, in its order."""
        if not self.paused:
            return
        self.blocked = False
        self.world.trace.add(trace.RESUME, self.subject)
        held, self.held = self.held, []
        self.world.loop.requeue(held)

    def terminate(self) -> None:
        """Ask for a clean stop, as SIGTERM does: the main coroutine is cancelled."""
        if self._main is not None and not self.dead:
            self._main.cancel()

    async def ended(self) -> None:
        """Until it is dead, of whatever."""
        await self._ended.wait()

    # -------------------------------------------------------------- for the machinery

    def check_alive(self) -> None:
        if self.dead:
            raise Killed(self.name)

    def call(self) -> None:
        """Every port starts a call with this: the dead make none, and it may be the call to die at."""
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
        task = self.world.loop.create_task(coroutine, name=name, context=context)
        self._supervised[task] = None
        task.add_done_callback(self._supervised_done)
        return task

    def failed(self, error: BaseException) -> None:
        """It stops itself: the end of the schedule, unless the scenario allows this failure."""
        self.check_alive()
        self.failure = error
        if not isinstance(error, self._may_fail):
            self.world.failed(self, error)
        self.end(trace.CRASH)
        leave_if_dead()

    def end(self, kind: int) -> None:
        """Cut the ports, then bury what is left, when no code of it is on the stack any more."""
        if self.dead:
            return
        self.dead = self.blocked = True
        self.world.trace.add(kind, self.subject)
        self.machine.process_ended(self, powerless=kind == trace.POWER_LOSS)
        if LIFE.get() is self:
            self.world.loop.soon(self._bury)
        else:
            self._bury()

    def _bury(self) -> None:
        self.world.loop.bury(self)
        self._supervised.clear()
        self.transports.clear()
        self._ended.set()

    def _main_done(self, task: asyncio.Task[None]) -> None:
        if self.dead:
            return
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.left_open = self.handles
            self.end(trace.END)
        else:
            self.failed(error)

    def _supervised_done(self, task: asyncio.Task[None]) -> None:
        self._supervised.pop(task, None)  # type: ignore[call-overload]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)
