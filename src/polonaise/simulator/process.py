"""A simulated process: one life of a node, which can be killed, paused and stopped at any moment.

Death first cuts the process off from its ports and then closes its coroutines, so that what their `finally` blocks do
reaches nothing. A restart is a new `Process` on the same machine.
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
    """The clocks of one process: the port `host.Clock`."""

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
    """The ports of one process: `host.Host`."""

    def __init__(self, process: Process, source: random.Random) -> None:
        self._process = process
        self.random = source
        # Each process's monotonic clock begins elsewhere: code that compares those of two processes fails at once.
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
        """The error that ended the process; None if it did not fail."""
        self.calls = 0
        """The number of calls so far to the disk, the network or a connection."""
        self.crash_on_call: int | None = None
        """The number of the call that the process crashes at and does not make; a sweep over them tries every gap."""
        self.left_open: list[str] = []
        """The files and locks that it had still open when `main` returned, which it ought to have closed."""
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
        # Outside of the process's context: this ends the process, and must not be unwound by `Killed` for that.
        self._main.add_done_callback(self._main_done, context=Context())

    # -------------------------------------------------------------- for scenarios

    @property
    def handles(self) -> list[str]:
        """The paths of the files that it has open or locked."""
        return list(self.host.files.handles.values())

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
            self.world.faults.count("crash")
            self.end(trace.CRASH)
            leave_if_dead()

    def pause(self, seconds: float | None = None) -> None:
        """Stop running, as by SIGSTOP or a long garbage collection, for `seconds` (None: until `resume`)."""
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
        task = self.world.loop.create_task(coroutine, name=name, context=context)
        self._supervised[task] = None
        task.add_done_callback(self._supervised_done)
        return task

    def failed(self, error: BaseException) -> None:
        """End the process because of an error; end the schedule, too, unless the scenario allows this error."""
        self.check_alive()
        self.failure = error
        if not isinstance(error, self._may_fail):
            self.world.failed(self, error)
        self.end(trace.CRASH)
        leave_if_dead()

    def end(self, kind: int) -> None:
        """Cut the process off from its machine, then close its coroutines."""
        if self.dead:
            return
        self.dead = self.blocked = True
        self.world.trace.add(kind, self.subject)
        self.machine.process_ended(self, powerless=kind == trace.POWER_LOSS)
        # A coroutine that runs can't be closed. If this was called from one of the process's own, wait until the stack
        # is unwound.
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
        if error is None:  # returned, or was cancelled by `terminate`
            self.left_open = self.handles
            self.end(trace.END)
        else:
            self.failed(error)

    def _supervised_done(self, task: asyncio.Task[None]) -> None:
        self._supervised.pop(task, None)  # type: ignore[call-overload]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)
