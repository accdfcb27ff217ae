"""The simulated coordinator and object store: what goes wrong there, and that the census of faults tells the truth."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.coordination.values import Assignment, ClusterDescription, PartitionValue, Registration, Versioned
from polonaise.errors import CoordinatorUnavailable, NotFound, StoreUnavailable
from polonaise.host import Host
from polonaise_proving.stages.simulated import World
from polonaise_proving.stages.simulated.coordinator import (
    CoordinatorConfiguration,
    SimulatedBackend,
    SimulatedCoordinator,
)
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from polonaise_proving.stages.simulated.process import Process
from rigs.scenarios import idle, in_a_world, runs_tests_in

DESCRIPTION = ClusterDescription(bytes(16), 2, ("a:1", "b:1", "c:1"))
INITIAL = PartitionValue.initial(DESCRIPTION.storage)


class Scene:
    """A world with a service in it that has a cluster; what is cut off from the service is in the set `cut_off`."""

    def __init__(self, seed: int = 1, **configuration: float) -> None:
        self.world = World(seed)
        self.faults = self.world.faults
        self.service = SimulatedCoordinator(
            self.world.random("coordinator"), self.faults, CoordinatorConfiguration(**configuration)
        )
        self.service.initialize(DESCRIPTION)
        self.cut_off: set[str] = set()

    def process(self, name: str) -> tuple[Process, Coordinator]:
        process = self.world.machine(name).start(idle)
        backend = SimulatedBackend(self.service, lambda: process.alive, lambda: name not in self.cut_off)
        return process, Coordinator(backend, process.host.clock)

    def client(self, name: str = "m") -> Coordinator:
        return self.process(name)[1]


in_a_scene = runs_tests_in(Scene)


@in_a_scene
async def test_a_lost_result_is_unavailable_to_the_caller_and_made_all_the_same(scene: Scene) -> None:
    scene.service.restore({})
    scene.service.configuration = CoordinatorConfiguration(lost_result_chance=1.0)
    client = scene.client()
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
    assert scene.faults["coordinator_lost_result"] == 4
    assert scene.faults["coordinator_unavailable"] == 0


@in_a_scene(unavailable_chance=1.0)
async def test_an_unavailable_coordinator_changes_nothing(scene: Scene) -> None:
    client = scene.client()
    with pytest.raises(CoordinatorUnavailable):
        await client.unique_id()
    assert scene.service.snapshot()["unique-id"].version == 0
    assert scene.faults.injected() == {"coordinator_unavailable": 1}


@in_a_scene
async def test_a_partition_cuts_off_one_process_and_not_the_other(scene: Scene) -> None:
    client, other = scene.client("m"), scene.client("n")
    scene.cut_off.add("m")
    with pytest.raises(CoordinatorUnavailable):
        await client.unique_id()
    assert await other.unique_id() == 1
    scene.cut_off.clear()
    assert await client.unique_id() == 2
    assert scene.faults["coordinator_unreachable"] == 1


@in_a_scene(latency_s=0.01, jitter_s=0.0)
async def test_a_partition_between_request_and_answer_loses_the_result(scene: Scene) -> None:
    client = scene.client()
    await client.describe()
    asking = asyncio.ensure_future(client.unique_id())
    await asyncio.sleep(0.015)
    scene.cut_off.add("m")
    with pytest.raises(CoordinatorUnavailable):
        await asking
    assert scene.service.snapshot()["unique-id"].version == 1
    assert scene.faults["coordinator_lost_result"] == 1


@in_a_scene(latency_s=0.01)
async def test_a_request_outlives_the_process_that_sent_it_and_its_registration_does_not(scene: Scene) -> None:
    observer = scene.client("n")
    process, client = scene.process("m")
    await client.register(Registration(1, "s:1"))
    await client.partition(0)
    process.supervise(client.set_partition(0, replace(INITIAL, session=9), 0), "change")  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    process.crash()
    assert await observer.members() == []
    await asyncio.sleep(0.1)
    assert (await observer.partition(0)).value.session == 9
    assert scene.faults["coordinator_orphaned"] == 1


@in_a_scene
async def test_a_paused_process_keeps_its_registration(scene: Scene) -> None:
    process, client = scene.process("m")
    await client.register(Registration(1, "s:1"))
    process.pause()
    await asyncio.sleep(60)
    assert await scene.client("n").members() == [Registration(1, "s:1")]


@in_a_scene
async def test_a_watch_that_is_cut_off_ends_with_unavailable(scene: Scene) -> None:
    client, other = scene.client("m"), scene.client("n")
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
        await asyncio.gather(*[count(scene.client(f"m{number}")) for number in range(3)])
        return scene.service.snapshot()["partition-0"].version

    version = scene.world.run(scenario())
    return scene.faults, version, scene.world.now


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert troubled_counting(1) == troubled_counting(1)
    assert troubled_counting(1) != troubled_counting(2)


def test_every_change_is_an_answered_or_a_lost_one() -> None:
    faults, version, _ = troubled_counting(3)
    assert faults["coordinator_lost_result"] > 0
    assert faults["coordinator_unavailable"] > 0
    assert version == 30 + faults["coordinator_lost_result"]


@in_a_scene
async def test_without_leases_a_member_that_renews_nothing_stays_a_member(scene: Scene) -> None:
    works, looks = scene.client("works"), scene.client("looks")
    await works.register(Registration(1, "a:1"))
    for _ in range(int(2 * LEASE_S / RENEW_S)):
        assert len(await looks.members()) == 1
        await asyncio.sleep(RENEW_S)


@in_a_scene
async def test_a_cancelled_wait_leaves_nothing_at_the_service(scene: Scene) -> None:
    client = scene.client()
    waiting = asyncio.ensure_future(client.assignment_after(0))
    await asyncio.sleep(1)
    assert len(scene.service._watching) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not scene.service._watching


@in_a_scene(jitter_s=0.05)
async def test_answers_that_overtake_each_other_are_no_value_that_went_back(scene: Scene) -> None:
    reader, writer = scene.client("m"), scene.client("n")
    overtaken = 0
    for version in range(30):
        reads = [asyncio.ensure_future(reader.assignment()) for _ in range(8)]
        assert await writer.set_assignment(Assignment(), version) is not None
        done = []
        for read in asyncio.as_completed(reads):
            done.append((await read).version)
        overtaken += done != sorted(done)
    assert overtaken


@in_a_world
async def test_an_object_is_put_once_listed_and_read(world: World) -> None:
    store = SimulatedStore(world)
    assert await store.put_if_absent("0/b", b"first")
    assert not await store.put_if_absent("0/b", b"second")
    assert await store.put_if_absent("1/a", b"other")
    assert await store.get("0/b") == b"first"
    assert await store.get_range("0/b", 1, 3) == b"irs"
    assert await store.list() == [("0/b", 5), ("1/a", 5)]
    assert await store.list("0/") == [("0/b", 5)]
    with pytest.raises(NotFound):
        await store.get("0/c")
    await store.make_durable("0/b")
    with pytest.raises(NotFound):
        await store.make_durable("0/c")
    await store.delete("0/b")
    await store.delete("0/b")
    assert await store.list("0/") == []


@in_a_world
async def test_while_it_is_away_it_answers_nobody(world: World) -> None:
    store = SimulatedStore(world)
    await store.put_if_absent("a", b"x")
    store.away = True
    with pytest.raises(StoreUnavailable):
        await store.get("a")
    store.away = False
    assert await store.get("a") == b"x"
    assert world.faults["store_away"] == 1


@in_a_world
async def test_while_it_is_not_mounted_another_directory_is_in_its_place(world: World) -> None:
    store = SimulatedStore(world)
    await store.put_if_absent("0/a", b"x")
    store.unmounted = True
    assert await store.list("0/") == []
    with pytest.raises(NotFound):
        await store.get("0/a")
    await store.put_if_absent("0/b", b"y")
    store.unmounted = False
    assert [each.path for each in await store.list("0/")] == ["0/a"]
    store.unmounted = True
    assert await store.get("0/b") == b"y"
    assert world.faults["store_unmounted"] > 0


@in_a_world
async def test_what_is_mended_while_it_is_not_mounted_stays_damaged(world: World) -> None:
    store = SimulatedStore(world)
    await store.put_if_absent("a", bytes(100))
    store.damage()
    store.unmounted = True
    await store.replace("a", bytes(100))
    store.unmounted = False
    assert store.damaged == ("a",)
    assert await store.get("a") != bytes(100)
    assert world.faults["fragment_mended"] == 0
    await store.replace("a", bytes(100))
    assert store.damaged == ()
    assert await store.get("a") == bytes(100)
    assert world.faults["fragment_mended"] == 1


@in_a_world
async def test_damage_is_one_bit_until_it_is_restored(world: World) -> None:
    store = SimulatedStore(world)
    await store.put_if_absent("a", bytes(100))
    store.damage()
    damaged = await store.get("a")
    assert sum(byte.bit_count() for byte in damaged) == 1
    store.restore()
    assert await store.get("a") == bytes(100)
    assert world.faults["damaged_object"] == 1


def test_what_a_process_was_putting_when_it_died_is_there_or_not() -> None:
    there: set[bool] = set()
    for call in (1, 2, 3):
        world = World(call)
        store = SimulatedStore(world)

        async def put(host: Host, store: SimulatedStore = store) -> None:
            await store.put_if_absent("a", b"x")
            await asyncio.get_running_loop().create_future()

        async def scenario(world: World = world, call: int = call, store: SimulatedStore = store) -> bool:
            process = world.machine("one").start(put)
            process.crash_on_call = call
            await asyncio.sleep(1.0)
            return [each.path for each in await store.list()] == ["a"]

        there.add(world.run(scenario()))
    assert there == {True, False}
