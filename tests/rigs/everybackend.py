"""Every backend of the coordinator under one scenario: in a directory, simulated, and in a real ZooKeeper.

`Cluster` is all that a scenario knows: processes that can be killed, and an operator who can do damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.backend import Backend
from polonaise.coordination.file import FileBackend, coordinator_in
from polonaise.coordination.values import (
    ClusterDescription,
    PartitionValue,
)
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.host import Clock, DirectoryLock, Disk, Host
from polonaise.host.real import RealClock, RealHost
from polonaise_proving.stages.simulated.coordinator import SimulatedBackend, SimulatedCoordinator
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import World
from rigs import zookeeper
from rigs.scenarios import idle, runs_tests_on

DESCRIPTION = ClusterDescription(bytes(range(16)), 3, ("a:1", "b:1", "c:1"))
INITIAL = PartitionValue.initial(DESCRIPTION.storage)


class Cluster(Protocol):
    """Where a scenario runs."""

    async def process(self) -> Coordinator:
        """The coordinator as a new process sees it."""

    async def backend(self) -> Backend:
        """The port as a new process sees it, without the coordinator's rules."""

    async def pass_s(self, seconds: float) -> None:
        """So much time passes for every process."""

    async def kill(self, coordinator: Coordinator) -> None:
        """The process of this coordinator dies, without a chance to say so."""

    async def damage(self, name: str) -> None: ...

    async def backup(self) -> object: ...

    async def restore(self, backup: object | None) -> None:
        """Put a backup back under the running processes; None leaves nothing at all."""


Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
Sleep = Callable[[float], Awaitable[None]]


# ------------------------------------------------------------------ the backends


class FileCluster:
    """A directory; every process has a host of its own."""

    def __init__(
        self, directory: str, start: Callable[[], Awaitable[tuple[Host, Callable[[], None]]]], pass_s: Sleep
    ) -> None:
        self._directory = directory
        self._start = start
        self.pass_s = pass_s
        self._kills: dict[int, Callable[[], None]] = {}

    async def process(self) -> Coordinator:
        host, kill = await self._start()
        coordinator = coordinator_in(host, self._directory)
        self._kills[id(coordinator)] = kill
        return coordinator

    async def backend(self) -> Backend:
        return FileBackend((await self._start())[0], self._directory)

    async def kill(self, coordinator: Coordinator) -> None:
        self._kills[id(coordinator)]()

    async def damage(self, name: str) -> None:
        host, _ = await self._start()
        file = await host.disk.open(f"{self._directory}/{name}")
        await file.truncate(await file.size() - 1)
        await file.close()

    async def backup(self) -> dict[str, bytes]:
        disk = (await self._start())[0].disk
        return {name: await disk.load(f"{self._directory}/{name}") for name in await self._names(disk)}

    async def restore(self, backup: object | None) -> None:
        disk = (await self._start())[0].disk
        for name in await self._names(disk):
            await disk.remove(f"{self._directory}/{name}")
        assert backup is None or isinstance(backup, dict)
        for name, contents in (backup or {}).items():
            file = await disk.open(f"{self._directory}/{name}", create=True)
            await file.write(0, [contents], sync=True)
            await file.close()

    async def _names(self, disk: Disk) -> list[str]:
        return [name for name in await disk.list(self._directory) if name != "members"]


def on_a_simulated_disk(scenario: Scenario, _: Path) -> None:
    world = World(seed=7)

    async def start() -> tuple[Host, Callable[[], None]]:
        process = world.machine("m").start(idle)
        return process.host, process.crash

    world.run(scenario(FileCluster("cluster/coordinator", start, asyncio.sleep)))


class LocksOfAProcess:
    """The machine's disk, with a process's locks set free together: what the kernel does at its death."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._held: list[DirectoryLock] = []
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def lock(self, path: str) -> DirectoryLock:
        assert not self._dead
        lock = await self._disk.lock(path)
        self._held.append(lock)
        return lock

    def die(self) -> None:
        self._dead = True
        for lock in self._held:
            lock.release()


class MovedClock:
    """The machine's clock, and more time that has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self.ahead_s

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def slept_s(self) -> float:
        return self._clock.slept_s()


def on_this_machine(scenario: Scenario, directory: Path) -> None:
    hosts: list[RealHost] = []
    clock = MovedClock(RealClock())

    async def start() -> tuple[Host, Callable[[], None]]:
        host = RealHost(disk_threads=2)
        hosts.append(host)
        locks = LocksOfAProcess(host.disk)
        host.disk = locks
        host.clock = clock
        return host, locks.die

    async def pass_s(seconds: float) -> None:
        clock.ahead_s += seconds

    try:
        asyncio.run(scenario(FileCluster(str(directory / "coordinator"), start, pass_s)))
    finally:
        for host in hosts:
            host.close()


class SimulatedCluster:
    """The simulated service; every process is one of the simulated world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._service = SimulatedCoordinator(world.random("coordinator"), world.faults, leases=True)
        self._processes: dict[int, Process] = {}

    async def process(self) -> Coordinator:
        backend, process = self._start()
        coordinator = Coordinator(backend, process.host.clock)
        self._processes[id(coordinator)] = process
        return coordinator

    async def backend(self) -> Backend:
        return self._start()[0]

    def _start(self) -> tuple[SimulatedBackend, Process]:
        process = self._world.machine("m").start(idle)
        return SimulatedBackend(self._service, lambda: process.alive, lambda: True), process

    async def pass_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def kill(self, coordinator: Coordinator) -> None:
        self._processes[id(coordinator)].crash()

    async def damage(self, name: str) -> None:
        self._service.damage(name)

    async def backup(self) -> object:
        return self._service.snapshot()

    async def restore(self, backup: object | None) -> None:
        assert backup is None or isinstance(backup, dict)
        self._service.restore(backup or {})


def at_the_simulated_service(scenario: Scenario, _: Path) -> None:
    world = World(seed=7)
    world.run(scenario(SimulatedCluster(world)))


class ZooKeeperCluster:
    """A root of its own in a real ZooKeeper; every process has a session of its own."""

    def __init__(self) -> None:
        self._root = zookeeper.new_root()
        self._clock = MovedClock(RealClock())
        self._backends: list[ZooKeeperBackend] = []
        self._own: dict[int, ZooKeeperBackend] = {}

    async def process(self) -> Coordinator:
        backend = await self.backend()
        coordinator = Coordinator(backend, self._clock)
        self._own[id(coordinator)] = backend
        return coordinator

    async def backend(self) -> ZooKeeperBackend:
        backend = zookeeper.backend_at(self._root)
        self._backends.append(backend)
        return backend

    async def pass_s(self, seconds: float) -> None:
        self._clock.ahead_s += seconds

    async def kill(self, coordinator: Coordinator) -> None:
        await zookeeper.die(self._own[id(coordinator)])

    async def damage(self, name: str) -> None:
        with zookeeper.operator() as client:
            data, _ = client.get(f"{self._root}/{name}")
            client.set(f"{self._root}/{name}", data[:-1])

    async def backup(self) -> dict[str, bytes]:
        """Nodes as they are made again: a node's version counts from 0, and its data say what it counts from."""
        with zookeeper.operator() as client:
            found: dict[str, bytes] = {}
            for name in client.get_children(self._root):
                data, stat = client.get(f"{self._root}/{name}")
                magic, number, key, first = data.partition(b"\n")[0].split(b" ") if b" " in data else [b""] * 4
                head = b" ".join([magic, number, key, b"%d" % (int(first or 0) + stat.version)])
                found[name] = head + b"\n" + data.partition(b"\n")[2] if magic else data
        return found

    async def restore(self, backup: object | None) -> None:
        assert backup is None or isinstance(backup, dict)
        with zookeeper.operator() as client:
            client.delete(self._root, recursive=True)
            for name, data in (backup or {}).items():
                client.create(f"{self._root}/{name}", data, makepath=True)

    async def close(self) -> None:
        for backend in self._backends:
            await backend.close()


def in_zookeeper(scenario: Scenario, _: Path) -> None:
    async def run() -> None:
        cluster = ZooKeeperCluster()
        try:
            await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(run())


on_every_backend = runs_tests_on(
    on_a_simulated_disk,
    on_this_machine,
    at_the_simulated_service,
    pytest.param(in_zookeeper, marks=pytest.mark.slow),
)
