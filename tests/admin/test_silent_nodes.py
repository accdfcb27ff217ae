"""Nodes that take a connection and say nothing cost an operator a bounded wait, and are not told as something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.asking import answered, ask_noted, ask_servers
from polonaise.admin.headresets import HeadState, ask_reset
from polonaise.admin.opening import _Belief
from polonaise.admin.requiring import require, set_zone
from polonaise.admin.servers import move_owner, remove_server
from polonaise.admin.topics import create_topic
from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, ExpectedServer, HeadReset, Owner, Registration
from polonaise.errors import CoordinatorUnavailable, DeadlineExceeded
from polonaise.host import Host
from polonaise.wire.messages import NOTES_VERSION
from polonaise_proving.stages.simulated import World
from rigs.coordinator import Scene, in_a_scene
from rigs.observing import well
from rigs.scenarios import idle, in_a_world
from rigs.town import Town, in_a_town

LIMIT_S = 3.0
"""The default of `--timeout`."""


@in_a_town
async def test_a_change_goes_on_within_its_time_limit_where_storage_nodes_are_silent(town: Town) -> None:
    await well(town)
    nodes = [*town.cluster.storage, *town.cluster.servers]
    town.world.network.partition(["operator"], [each.machine.name for each in nodes])

    async def remove(host: Host, coordinator: Coordinator) -> float:
        await coordinator.expect_server("gone", ExpectedServer(4711, "nobody:1"))
        coordinator.ask_before_changes(_Belief(host, coordinator, "the coordinator").check)
        began_s = host.clock.monotonic_s()
        await remove_server(coordinator, "gone", LIMIT_S)
        assert "gone" not in (await coordinator.expected_servers()).value.servers
        return host.clock.monotonic_s() - began_s

    assert 1.0 < await town.operator(remove) < LIMIT_S


@in_a_town
async def test_nodes_that_are_asked_within_a_time_limit_of_the_coordinator_are_told_beside_it(town: Town) -> None:
    await well(town)
    nodes = [*town.cluster.storage, *town.cluster.servers]
    town.world.network.partition(["operator"], [each.machine.name for each in nodes])

    async def change(host: Host, coordinator: Coordinator) -> None:
        coordinator.ask_before_changes(_Belief(host, coordinator, "the coordinator").check)
        with pytest.raises(CoordinatorUnavailable, match="the cluster's nodes have not all answered whether it holds"):
            await answered(coordinator, coordinator.may_change(), 1.0)

    await town.operator(change)


async def move(host: Host, coordinator: Coordinator) -> None:
    for server in (7, 8):
        await coordinator.register(Registration(server, f"nobody:{server}"))
    current = await coordinator.assignment()
    owned = Assignment({partition: Owner(7, "nobody:7", 1) for partition in (0, 1)})
    assert await coordinator.set_assignment(owned, current.version) is not None
    await silent_first(coordinator)
    with pytest.raises(DeadlineExceeded, match="belongs to server 8 now"):
        await move_owner(host, coordinator, 0, "8", 1.0)


async def remove(_: Host, coordinator: Coordinator) -> None:
    await coordinator.expect_server("gone", ExpectedServer(4711, "nobody:1"))
    await silent_first(coordinator)
    await remove_server(coordinator, "gone", 1.0)


async def demand(host: Host, coordinator: Coordinator) -> None:
    await silent_first(coordinator)
    await require(host, coordinator, 0, 0, 1.0)


async def zone(host: Host, coordinator: Coordinator) -> None:
    await silent_first(coordinator)
    await set_zone(host, coordinator, (await coordinator.describe()).storage[0], "north", 1.0)


async def topic(_: Host, coordinator: Coordinator) -> None:
    await silent_first(coordinator)
    await create_topic(coordinator, "payments", 1, 1.0)


async def reset(_: Host, coordinator: Coordinator) -> None:
    current = await coordinator.partition(0)
    await silent_first(coordinator)
    state = HeadState(0, "", [], [], -1, current.value, current.version)
    await ask_reset(coordinator, state, HeadReset(-1, current.value.members[0], -1, 1), 1.0)


async def silent_first(coordinator: Coordinator) -> None:
    """Have the nodes take longer than any of the changes here has, before their answers count for the rest."""
    asked = False

    async def ask() -> None:
        nonlocal asked
        if not asked:
            await asyncio.sleep(5.0)
        asked = True

    coordinator.ask_before_changes(ask)


@pytest.mark.parametrize("change", [move, remove, demand, zone, topic, reset])
@in_a_scene
async def test_the_time_that_nodes_take_is_none_of_the_coordinators(
    scene: Scene, *, change: Callable[[Host, Coordinator], Awaitable[None]]
) -> None:
    await change(scene.machine.start(idle).host, await scene.made())


@in_a_town(servers=1)
async def test_servers_that_are_silent_are_asked_at_the_same_time(town: Town) -> None:
    await well(town)
    network, servers = town.world.network, [each.machine.name for each in town.cluster.servers]
    silent = [f"{name}:{port}" for name in servers for port in range(1, 5)]

    async def ask(host: Host, coordinator: Coordinator) -> tuple[float, bool]:
        (server,) = await coordinator.members()
        began_s = host.clock.monotonic_s()
        found = await ask_servers(host, [*silent, server.address], 0.5)
        return host.clock.monotonic_s() - began_s, found is not None

    assert (await town.operator(ask))[1], "the one that answers is the last"
    network.partition(["operator"], servers)
    took_s, found = await town.operator(ask)
    assert not found
    assert 0.5 <= took_s < 0.6


@in_a_world
async def test_a_storage_node_has_one_time_limit_to_connect_and_to_tell(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[Any]:
        async def request(_: object, deadline_s: float) -> None:
            await asyncio.sleep(deadline_s)
            raise DeadlineExceeded("it is silent")

        await asyncio.sleep(0.6)
        yield SimpleNamespace(peer=SimpleNamespace(version_max=NOTES_VERSION), request=request)

    monkeypatch.setattr("polonaise.admin.asking.connected", connected)
    host = world.machine("m").start(idle).host
    began_s = host.clock.monotonic_s()
    with pytest.raises(DeadlineExceeded):
        await ask_noted(host, "a:1", 1.0)
    assert host.clock.monotonic_s() - began_s == pytest.approx(1.0)
