"""The world of one schedule: machines, the network between them, one virtual time, one seed.

    world = World(seed, Configuration())
    process = world.machine("storage-1").start(main)     # main(host) is a coroutine function
    world.run(scenario())                                # returns the scenario's result; raises what went wrong

A world owns machines and the network, a machine its disk and its processes. Disks, processes and the network do not
know the world: what they share is their `environment`.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from polonaise.host import Clock, Disk, Network
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.disk_port import DiskPort
from polonaise_proving.stages.simulated.environment import Configuration, Environment
from polonaise_proving.stages.simulated.loop import LIFE, START_S, leave_if_dead
from polonaise_proving.stages.simulated.network import NetworkPort, SimulatedNetwork
from polonaise_proving.stages.simulated.process import Main, Process

T = TypeVar("T")

_EPOCH_US = 1_750_000_000_000_000
"""The true time at the start of every schedule, in microseconds UTC, from which each machine's wall clock is off."""


class SimulatedClock:
    """The clocks of one process: the port `host.Clock`."""

    def __init__(self, process: Process, offset_s: float, wall_us: Callable[[], int]) -> None:
        self._process = process
        self._loop = process.environment.loop
        self._offset_s = offset_s
        self._wall_us = wall_us

    def monotonic_s(self) -> float:
        if self._process.dead:  # not by `check_alive`: this is called more often than anything else
            self._process.check_alive()
        return self._loop.now + self._offset_s

    def wall_us(self) -> int:
        self._process.check_alive()
        return self._wall_us()

    def slept_s(self) -> float:
        return 0.0


class SimulatedHost:
    """The ports of one process: `host.Host`."""

    def __init__(
        self,
        process: Process,
        source: random.Random,
        wall_us: Callable[[], int],
        disk: SimulatedDisk,
        network: SimulatedNetwork,
        machine: str,
    ) -> None:
        self._process = process
        self.random = source
        # Each process's monotonic clock begins elsewhere: code that compares those of two processes fails at once.
        self.clock: Clock = SimulatedClock(process, source.uniform(1.0, 100_000.0), wall_us)
        # In this order: when the process ends, its peers hear of it before its calls to the disk are broken off.
        self.network: Network = NetworkPort(process, network, machine)
        self.disk: Disk = DiskPort(process, disk)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._process.supervise(coroutine, name)

    def fail(self, error: BaseException) -> None:
        self._process.failed(error)


class Machine:
    """A simulated computer: a disk and a wall clock, which outlive the processes that run on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        world.network.machines.add(name)
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
        world.tellers.append(self._in_force)

    def _in_force(self) -> Iterator[str]:
        for process in self.processes:
            if process.paused:
                yield f"{process.name} is paused"
            if process.crash_on_call is not None:
                yield f"{process.name} is to crash at its call {process.crash_on_call}"

    def start(self, main: Main, *, may_fail: tuple[type[BaseException], ...] = ()) -> Process:
        """Start a process, and the machine if it had lost power. The process ends when `main(host)` returns.

        An exception of the kinds `may_fail` ends the process only; any other ends the schedule.
        """
        if not self.powered:
            self.world.network.powered_on(self.name)
        self._starts += 1
        process = Process(self.world, f"{self.name}/{self._starts}", may_fail)
        self.processes.append(process)
        process.at_end.append(lambda _: self.processes.remove(process))
        source = self.world.random(f"process/{process.name}")
        host = SimulatedHost(process, source, self.wall_us, self.disk, self.world.network, self.name)
        self.world.trace.add(Event.START, process.subject)
        process.begin(main, host)
        return process

    @property
    def powered(self) -> bool:
        """Whether the machine has power. Without power, it does not even refuse connections."""
        return self.name not in self.world.network.connections.powerless

    def power_loss(self) -> None:
        """Stop everything at once: unsynced bytes and names are lost, kept or torn, and peers hear nothing.

        The machine has power again at its next `start`. Called from a process of the machine, it raises `Killed`.
        """
        if not self.powered:
            return
        self.world.network.powered_off(self.name)
        self.world.faults.count("power_loss")
        self.world.trace.add(Event.POWER_LOSS, self.subject)
        # Processes first: the calls that they had under way must be dropped before the disk decides what is left.
        for process in list(self.processes):
            process.end(Event.POWER_LOSS)
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

    def set_clock_right(self) -> None:
        """Set the wall clock to the true time, and let it keep it."""
        self._wall_offset_us = self._drift = 0.0
        self._drift_since = self.world.loop.now

    def wall_us(self) -> int:
        now = self.world.loop.now
        drifted_us = (now - self._drift_since) * self._drift * 1e6
        return _EPOCH_US + int((now - START_S) * 1e6 + drifted_us + self._wall_offset_us)


class World(Environment):
    """The machines of one schedule and the network between them, in their environment."""

    def __init__(self, seed: int, configuration: Configuration | None = None) -> None:
        super().__init__(seed, configuration)
        self.machines: dict[str, Machine] = {}
        self.network = SimulatedNetwork(self)

    @property
    def true_us(self) -> int:
        """The true time, in microseconds UTC, which no machine knows."""
        return _EPOCH_US + int((self.loop.now - START_S) * 1e6)

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
            if self.failure is not None:
                raise self.failure
            return task.result()  # type: ignore[no-any-return]
        finally:
            self._put_away()
            if collecting:
                gc.enable()

    def _put_away(self) -> None:
        processes = [process for machine in self.machines.values() for process in machine.processes]
        # All of them first: the `finally` blocks of one must not wake another one.
        for life in processes:
            life.dead = life.blocked = True
        # With these, those that died as the schedule ended, such as the one whose error ended it.
        self.loop.bury(*processes, *self.loop.unburied(), None)
        self.loop.clear()
        self.loop.close()
