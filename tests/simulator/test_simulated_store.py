"""The simulated object store: it keeps what it took, and its troubles are seen."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.errors import NotFound, StoreUnavailable
from polonaise.host import Host
from polonaise_proving.stages.simulated import World
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from rigs.scenarios import in_a_world


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
