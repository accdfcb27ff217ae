"""What goes wrong on the way to the simulated coordinator, and that the census tells the truth of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.coordination.values import Assignment, ClusterDescription, PartitionValue, Registration, Versioned
from polonaise.errors import CoordinatorUnavailable
from polonaise.host import Host
from polonaise.simulator.coordinator import (
    LOST_RESULT,
    ORPHANED,
    UNAVAILABLE,
    UNREACHABLE,
    CoordinatorConfiguration,
    SimulatedCoordinator,
)
from polonaise.simulator.process import Process
from polonaise.simulator.world import World
from rigs.scenarios import runs_tests_in

T = TypeVar("T")

DESCRIPTION = ClusterDescription(bytes(16), 2, ("a:1", "b:1", "c:1"))
INITIAL = PartitionValue.initial(DESCRIPTION.storage)


class Scene:
    """A world with a service in it; partitions between processes and service are the set `cut_off`."""

    def __init__(self, seed: int = 1, **configuration: float) -> None:
        self.world = World(seed)
        self.service = SimulatedCoordinator(self.world.random("coordinator"), CoordinatorConfiguration(**configuration))
        self.cut_off: set[str] = set()

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        return self.world.run(scenario)

    async def process(self, name: str) -> tuple[Process, Coordinator]:
        ready: asyncio.Future[Coordinator] = asyncio.get_running_loop().create_future()

        async def main(host: Host) -> None:
            ready.set_result(self.service.client(host, is_reachable=lambda: name not in self.cut_off))
            await asyncio.Event().wait()

        process = self.world.machine(name).start(main)
        return process, await ready

    async def client(self, name: str = "m") -> Coordinator:
        return (await self.process(name))[1]


in_a_scene = runs_tests_in(Scene)


@in_a_scene
async def test_a_lost_result_is_unavailable_to_the_caller_and_made_all_the_same(scene: Scene) -> None:
    scene.service.configuration = CoordinatorConfiguration(lost_result_chance=1.0)
    client = await scene.client()
    with pytest.raises(CoordinatorUnavailable):
        await client.initialize(DESCRIPTION)
    scene.service.configuration = CoordinatorConfiguration()
    await client.describe()
    scene.service.configuration = CoordinatorConfiguration(lost_result_chance=1.0)
    for change in (
        client.unique_id,
        lambda: client.register(Registration(1, "s:1")),
    ):
        with pytest.raises(CoordinatorUnavailable):
            await change()
    assert scene.service.snapshot()["unique-id"].version == 1
    assert list(scene.service.registered("members")) == ["1"]
    with pytest.raises(CoordinatorUnavailable):
        await client.unique_id()
    assert scene.service.snapshot()["unique-id"].version == 2
    assert scene.service.census[LOST_RESULT] == 4
    assert scene.service.census[UNAVAILABLE] == 0


@in_a_scene(unavailable_chance=1.0)
async def test_an_unavailable_coordinator_changes_nothing(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    client = await scene.client()
    with pytest.raises(CoordinatorUnavailable):
        await client.unique_id()
    assert scene.service.snapshot()["unique-id"].version == 0
    assert scene.service.census == {UNAVAILABLE: 1, UNREACHABLE: 0, LOST_RESULT: 0, ORPHANED: 0}


@in_a_scene
async def test_a_partition_cuts_off_one_process_and_not_the_other(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    client, other = await scene.client("m"), await scene.client("n")
    scene.cut_off.add("m")
    with pytest.raises(CoordinatorUnavailable):
        await client.unique_id()
    assert await other.unique_id() == 1
    scene.cut_off.clear()
    assert await client.unique_id() == 2
    assert scene.service.census[UNREACHABLE] == 1


@in_a_scene(latency_s=0.01, jitter_s=0.0)
async def test_a_partition_between_request_and_answer_loses_the_result(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    client = await scene.client()
    await client.describe()
    asking = asyncio.ensure_future(client.unique_id())
    await asyncio.sleep(0.015)
    scene.cut_off.add("m")
    with pytest.raises(CoordinatorUnavailable):
        await asking
    assert scene.service.snapshot()["unique-id"].version == 1
    assert scene.service.census[LOST_RESULT] == 1


@in_a_scene(latency_s=0.01)
async def test_a_request_outlives_the_process_that_sent_it_and_its_registration_does_not(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    observer = await scene.client("n")
    process, client = await scene.process("m")
    await client.register(Registration(1, "s:1"))
    change = functools.partial(client.set_partition, 0, replace(INITIAL, session=9), 0)
    await client.partition(0)
    process.supervise(_ignoring(change()), "change")
    await asyncio.sleep(0.005)
    process.crash()
    assert await observer.members() == []
    await asyncio.sleep(0.1)
    assert (await observer.partition(0)).value.session == 9
    assert scene.service.census[ORPHANED] == 1


async def _ignoring(change: Coroutine[Any, Any, object]) -> None:
    await change


@in_a_scene
async def test_a_paused_process_keeps_its_registration(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    process, client = await scene.process("m")
    await client.register(Registration(1, "s:1"))
    process.pause()
    await asyncio.sleep(60)
    assert await (await scene.client("n")).members() == [Registration(1, "s:1")]


@in_a_scene
async def test_a_watch_that_is_cut_off_ends_with_unavailable(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    client, other = await scene.client("m"), await scene.client("n")
    waiting = asyncio.ensure_future(client.assignment_after(0))
    await asyncio.sleep(1)
    scene.cut_off.add("m")
    assert await other.set_assignment(Assignment(), 0) == Versioned(1, Assignment())
    with pytest.raises(CoordinatorUnavailable):
        await waiting


def troubled_counting(seed: int) -> tuple[dict[str, int], int, float]:
    scene = Scene(seed, unavailable_chance=0.2, lost_result_chance=0.2)

    async def count(client: Coordinator) -> None:
        raised = 0
        while raised < 10:
            try:
                found = await client.partition(0)
                wish = replace(found.value, session=found.value.session + 1)
                raised += await client.set_partition(0, wish, found.version) is not None
            except CoordinatorUnavailable:
                continue

    async def scenario() -> int:
        scene.service.initialize(DESCRIPTION)
        await asyncio.gather(*[count(await scene.client(f"m{number}")) for number in range(3)])
        return scene.service.snapshot()["partition-0"].version

    version = scene.run(scenario())
    return scene.service.census, version, scene.world.now


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert troubled_counting(1) == troubled_counting(1)
    assert troubled_counting(1) != troubled_counting(2)


def test_every_change_is_an_answered_or_a_lost_one() -> None:
    census, version, _ = troubled_counting(3)
    assert census[LOST_RESULT] > 0
    assert census[UNAVAILABLE] > 0
    assert version == 30 + census[LOST_RESULT]


@in_a_scene
async def test_without_leases_a_member_that_renews_nothing_stays_a_member(scene: Scene) -> None:
    works, looks = await scene.client("works"), await scene.client("looks")
    scene.service.initialize(DESCRIPTION)
    await works.register(Registration(1, "a:1"))
    for _ in range(int(2 * LEASE_S / RENEW_S)):
        assert len(await looks.members()) == 1
        await asyncio.sleep(RENEW_S)


@in_a_scene
async def test_a_cancelled_wait_leaves_nothing_at_the_service(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    client = await scene.client()
    waiting = asyncio.ensure_future(client.assignment_after(0))
    await asyncio.sleep(1)
    assert len(scene.service._watching) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not scene.service._watching


@in_a_scene(jitter_s=0.05)
async def test_answers_that_overtake_each_other_are_no_value_that_went_back(scene: Scene) -> None:
    scene.service.initialize(DESCRIPTION)
    reader, writer = await scene.client("m"), await scene.client("n")
    overtaken = 0
    for version in range(30):
        reads = [asyncio.ensure_future(reader.assignment()) for _ in range(8)]
        assert await writer.set_assignment(Assignment(), version) is not None
        done = []
        for read in asyncio.as_completed(reads):
            done.append((await read).version)
        overtaken += done != sorted(done)
    assert overtaken
