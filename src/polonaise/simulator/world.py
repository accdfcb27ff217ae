"""The world of one schedule: machines, the network between them, one virtual time, one seed.

    world = World(seed, Configuration())
    process = world.machine("storage-1").start(main)     # main(host) is a coroutine function
    world.run(scenario())                                # returns what it returns; raises what went wrong

Everything random comes from the seed, through one generator per component, so that a draw more in one place leaves
all others as they were.
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
"""Wall-clock time at the start of every schedule."""


class ProcessFailed(ScheduleFailed):
    """A process died of an error that the scenario did not allow. The error is the cause."""

    def __init__(self, seed: int, name: str, error: BaseException) -> None:
        super().__init__(f"seed {seed}: {name} failed: {type(error).__name__}: {error}")
        self.process = name
        self.error = error


class Machine:
    """A computer: a disk and a wall clock that outlive its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.powered = True
        """Without power it answers nothing at all, as if it were not there."""
        self.processes: list[Process] = []
        """Those alive, eldest first."""
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
        """Start a process (and the machine, if it had lost power); it ends when `main(host)` returns.

        A failure of the kinds `may_fail` ends the process only; any other ends the schedule.
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
        """Everything stops at once: unsynced bytes and names are lost, kept or torn, peers hear nothing.

        The machine has power again at its next `start`.
        """
        if not self.powered:
            return
        self.powered = False
        self.world.faults.count("power_loss")
        self.world.trace.add(trace.POWER_LOSS, self.subject)
        for process in list(self.processes):
            process.end(trace.POWER_LOSS)
        self.disk.lose_power()
        leave_if_dead()

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        if seconds:
            self._wall_offset_us += seconds * 1e6
            self.world.faults.count("clock_jump")

    def set_drift(self, drift: float) -> None:
        """From now on the wall clock gains so much of each second."""
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
    """Everything that one seed makes."""

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
        """Virtual seconds; the first moment of a schedule is `loop.START_S`."""
        return self.loop.now

    def random(self, name: str) -> random.Random:
        """A generator of its own for the component `name`; the same for the same seed and name."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def machine(self, name: str) -> Machine:
        """The machine of this name, made when first asked for; `name:port` is where it listens."""
        machine = self.machines.get(name)
        if machine is None:
            machine = self.machines[name] = Machine(self, name)
        return machine

    def power_loss_all(self) -> None:
        """The data centre loses power."""
        machines = list(self.machines.values())
        own = LIFE.get()
        machines.sort(key=lambda machine: own in machine.processes)  # its own machine last: that does not return
        for machine in machines:
            machine.power_loss()

    def calm(self) -> None:
        """End all faults but the damage that is done: from now on whatever can go on must.

        Links carry, disks work and have room, paused processes go on. Who is dead stays so until it is started.
        """
        self.network.calm()
        for machine in self.machines.values():
            machine.disk.calm()
            for process in machine.processes:
                process.resume()

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run the schedule until the scenario returns; then every process is put away.

        Raises `ProcessFailed` for a process that died of itself, `Deadlock`, `StepsExceeded`, or what the scenario
        raised. A world runs once.
        """
        collecting = gc.isenabled()
        gc.disable()  # the moment of a collection is no function of the seed
        try:
            task = self.loop.create_task(scenario, name="scenario")
            task.add_done_callback(lambda _: self.loop.stop())
            self.loop.run_forever()
            gc.collect(0)  # tasks that failed unheard are heard now: everything of the schedule is of this generation
            if self._failure is not None:
                raise self._failure
            return task.result()  # type: ignore[no-any-return]
        finally:
            self._put_away()
            if collecting:
                gc.enable()

    def failed(self, life: Life | None, error: BaseException) -> None:
        """End the schedule: `error` is nobody's intent. The first failure is the one that is told."""
        if self._failure is None:
            self._failure = ProcessFailed(self.seed, life.name if life else "scenario", error)
            self._failure.__cause__ = error
        self.loop.stop()

    def _put_away(self) -> None:
        processes = [process for machine in self.machines.values() for process in machine.processes]
        for life in processes:
            life.dead = life.blocked = True
        self.loop.bury(*processes, None)
        self.loop.clear()
        self.loop.close()
