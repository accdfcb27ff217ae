"""A simulated machine with the directory of a file coordinator on its disk."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.values import ClusterDescription, PartitionValue
from polonaise.errors import CoordinatorUnavailable
from polonaise.host import Host
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import World
from rigs.scenarios import idle, runs_tests, runs_tests_in
from rigs.waiting import wait_until

T = TypeVar("T")
DESCRIPTION = ClusterDescription(bytes(range(16)), 2, ("a:1", "b:1", "c:1"))
INITIAL = PartitionValue.initial(DESCRIPTION.storage)
NEXT = replace(INITIAL, generation=1, session=4)
DIRECTORY = "data/coordinator"
Work = Callable[[Coordinator], Awaitable[object]]


class Scene:
    """One machine of a simulated world, with the coordinator's directory on its disk."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.machine = self.world.machine("m")

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        return self.world.run(scenario)

    async def process(self, *, lock_wait_s: float = 10.0) -> tuple[Process, Coordinator]:
        """Start a process that only holds the directory open."""
        process = self.machine.start(idle)
        return process, coordinator_in(process.host, DIRECTORY, lock_wait_s=lock_wait_s)

    async def open(self) -> Coordinator:
        return (await self.process())[1]

    async def made(self) -> Coordinator:
        """Start a process that has just made the cluster."""
        coordinator = await self.open()
        await coordinator.initialize(DESCRIPTION)
        return coordinator

    async def crash_at(self, call: int, work: Work) -> bool:
        """Do `work` in a process that is killed before this call. Returns False if `work` needs fewer calls."""

        async def main(host: Host) -> None:
            with contextlib.suppress(CoordinatorUnavailable):
                await work(coordinator_in(host, DIRECTORY))

        process = self.machine.start(main)
        process.crash_on_call = call
        await process.ended()
        return process.calls == call

    async def until(self, happens: Callable[[], bool]) -> None:
        """Wait until `happens()`, looking so often that little else can happen between that moment and the return."""
        await wait_until(happens, every_s=0.00001)

    def put(self, name: str, contents: bytes) -> None:
        path = f"{DIRECTORY}/{name}"
        self.machine.disk.truncate(path, 0)
        self.machine.disk.overwrite(path, 0, contents)

    def contents(self, name: str) -> bytes:
        return self.machine.disk.contents(f"{DIRECTORY}/{name}")

    def names(self) -> list[str]:
        return [path.removeprefix(f"{DIRECTORY}/") for path in self.machine.disk.paths()]


in_a_scene = runs_tests_in(Scene)


@runs_tests
def in_scenes(test: Callable[[Scene], Coroutine[Any, Any, None]], count: int) -> None:
    """Run a test in so many scenes, each with a seed of its own."""
    for seed in range(count):
        scene = Scene(seed)
        scene.run(test(scene))
