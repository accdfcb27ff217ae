"""The world of one schedule: machines, the network between them, one virtual time, one seed.

    world = World(seed, Configuration())
    process = world.machine("storage-1").start(main)     # main(host) is a coroutine function
    world.run(scenario())                                # returns the scenario's result; raises what went wrong

Everything random comes from the seed, through one generator per component: one draw more in one component leaves all
others as they were.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Coroutine
from hashlib import blake2b
from typing import Any, TypeVar

from polonaise.simulator import trace
from polonaise.simulator.configuration import Configuration
from polonaise.simulator.disk import SimulatedDisk
from polonaise.simulator.faultcounts import FaultCounts
from polonaise.simulator.loop import LIFE, START_S, Life, ScheduleFailed, VirtualLoop, leave_if_dead
from polonaise.simulator.network import SimulatedNetwork
from polonaise.simulator.process import Main, Process
from polonaise.simulator.trace import Trace

T = TypeVar("T")

_EPOCH_US = 1_750_000_000_000_000
"""Wall-clock time at the start of every schedule, in microseconds UTC."""


class ProcessFailed(ScheduleFailed):
    """A process died of an error that the scenario did not allow. The error is `error` and the exception's cause."""

    def __init__(self, seed: int, name: str, error: BaseException) -> None:
        super().__init__(f"seed {seed}: {name} failed: {type(error).__name__}: {error}")
        self.process = name
        self.error = error


class Machine:
    """A simulated computer: a disk and a wall clock, which outlive the processes that run on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.powered = True
        """Whether the machine has power. Without power it is silent: it does not even refuse connections."""
        self.processes: list[Process] = []
        """The living processes, eldest first."""
        self.subject = world.trace.subject(name)
        source = world.random(f"disk/{name}")
        self.disk = SimulatedDisk(world, name, source)
        clock = world.configuration.clock
        source = world.random(f"clock/{name}")
        self._wall_offset_us = source.uniform(-1.0, 1.0) * clock.offset_s_max * 1e6
        self._drift = source.uniform(-1.0, 1.0) * clock.drift_max
        self._drift_since = START_S
        self._starts = 0

    def start(self, main: Main, *, may_fail: tuple[type[BaseException], ...] = ()) -> Process:
        """Start a process, and the machine if it had lost power. The process ends when `main(host)` returns.

        An exception of the kinds `may_fail` ends the process only; any other ends the schedule.
        """
        if not self.powered:
            self.powered = True
            self.world.network.powered_on(self)
        self._starts += 1
        process = Process(self.world, self, f"{self.name}/{self._starts}", may_fail)
        self.processes.append(process)
        self.world.trace.add(trace.START, process.subject)
        process.begin(main)
        return process

    def power_loss(self) -> None:
        """Stop everything at once: unsynced bytes and names are lost, kept or torn, and peers hear nothing.

        The machine has power again at its next `start`. Called from a process of the machine, it raises `Killed`.
        """
        if not self.powered:
            return
        self.powered = False
        self.world.faults.count("power_loss")
        self.world.trace.add(trace.POWER_LOSS, self.subject)
        # Processes first: the calls that they had under way must be dropped before the disk decides what is left.
        for process in list(self.processes):
            process.end(trace.POWER_LOSS)
        self.disk.lose_power()
        leave_if_dead()  # last: it does not return if a process of this machine has asked for this

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        if seconds:
            self._wall_offset_us += seconds * 1e6
            self.world.faults.count("clock_jump")

    def set_drift(self, drift: float) -> None:
        """Let the wall clock gain `drift` seconds in each second from now on; negative to lose them."""
        # What the old drift has gained so far becomes part of the offset: the clock does not jump.
        now = self.world.loop.now
        self._wall_offset_us += (now - self._drift_since) * self._drift * 1e6
        self._drift_since = now
        self._drift = drift

    def wall_us(self) -> int:
        now = self.world.loop.now
        drifted_us = (now - self._drift_since) * self._drift * 1e6
        return _EPOCH_US + int((now - START_S) * 1e6 + drifted_us + self._wall_offset_us)

    def process_ended(self, process: Process, *, powerless: bool) -> None:
        self.processes.remove(process)
        self.world.network.process_ended(process, powerless=powerless)
        self.disk.process_ended(process, powerless=powerless)


class World:
    """The machines, network, time and randomness of one schedule."""

    def __init__(self, seed: int, configuration: Configuration | None = None) -> None:
        self.seed = seed
        self.configuration = configuration or Configuration()
        self.loop = VirtualLoop(self.configuration.steps_max, self.failed)
        self.faults = FaultCounts()
        self.trace = Trace(self.loop.time, record=self.configuration.record)
        self.machines: dict[str, Machine] = {}
        self.network = SimulatedNetwork(self)
        self._failure: ProcessFailed | None = None

    @property
    def now(self) -> float:
        """The virtual time in seconds; `loop.START_S` at the start of the schedule."""
        return self.loop.now

    def random(self, name: str) -> random.Random:
        """Return a new generator for the component `name`, which draws the same for the same seed and name."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def machine(self, name: str) -> Machine:
        """Return the machine of this name, which is made at its first use. Its addresses are `name:port`."""
        machine = self.machines.get(name)
        if machine is None:
            machine = self.machines[name] = Machine(self, name)
        return machine

    def power_loss_all(self) -> None:
        """Take the power from all machines, as when a data centre loses it."""
        machines = list(self.machines.values())
        own = LIFE.get()
        machines.sort(key=lambda machine: own in machine.processes)  # the caller's own last: that does not return
        for machine in machines:
            machine.power_loss()

    def calm(self) -> None:
        """End all faults other than damage that is done: from now on everything that can go on must go on.

        Links carry, disks work and have room, paused processes run. A dead process stays dead, and a machine without
        power without it, until something is started there.
        """
        self.network.calm()
        for machine in self.machines.values():
            machine.disk.calm()
            for process in machine.processes:
                process.resume()

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run the schedule until the scenario returns, end every process, and return the scenario's result.

        Raises `ProcessFailed` for a process that died of an error which the scenario did not allow, `Deadlock`,
        `StepsExceeded`, or what the scenario raised. A world runs once.
        """
        collecting = gc.isenabled()
        gc.disable()  # a collection runs finalizers, and when it comes does not depend on the seed alone
        try:
            task = self.loop.create_task(scenario, name="scenario")
            task.add_done_callback(lambda _: self.loop.stop())
            self.loop.run_forever()
            # asyncio tells of a task whose exception nobody took when the task is freed: so free the tasks now, while
            # this can still fail the schedule. All of them are in the youngest generation, as nothing was collected.
            gc.collect(0)
            if self._failure is not None:
                raise self._failure
            return task.result()  # type: ignore[no-any-return]
        finally:
            self._put_away()
            if collecting:
                gc.enable()

    def failed(self, life: Life | None, error: BaseException) -> None:
        """End the schedule because of an `error` that no code handled. `run` raises the first of several."""
        if self._failure is None:
            self._failure = ProcessFailed(self.seed, life.name if life else "scenario", error)
            self._failure.__cause__ = error
        self.loop.stop()

    def _put_away(self) -> None:
        processes = [process for machine in self.machines.values() for process in machine.processes]
        # All of them first: the `finally` blocks of one must not wake another one.
        for life in processes:
            life.dead = life.blocked = True
        self.loop.bury(*processes, None)
        self.loop.clear()
        self.loop.close()
