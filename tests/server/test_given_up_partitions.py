"""What a server tells of partitions that it has given up: what keeps it from serving them, while nobody else does."""

from __future__ import annotations

import asyncio
import contextlib

from polonaise.client.log import Log
from polonaise.coordination.values import Assignment, Engagement, Owner, PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.node.condition import server_troubles
from polonaise.server.unservable import is_served_by_another
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until


def told(town: Town) -> list[str]:
    """What the servers tell of partitions that they have given up, one line each."""
    lines = [line for server in town.cluster.running_servers for line in server_troubles(server.own_health())]
    return [line for line in lines if "has given up" in line]


def ready(town: Town) -> bool:
    health = [server.health()["partitions"].get("0") for server in town.cluster.running_servers]
    return any(each is not None and each["ready"] for each in health)


@in_a_town(servers=2)
async def test_servers_that_reach_all_that_is_there_blame_what_keeps_the_partition_closed(town: Town) -> None:
    await town.append(b"1")
    for node in town.cluster.storage[1:]:
        held_down(node)
    await wait_until(lambda: told(town))
    assert all(f"waits for an answer from 1 of {town.name(1)}, {town.name(2)}" in line for line in told(town))


@in_a_town(servers=2)
async def test_full_disks_are_blamed_by_name_for_a_partition_that_is_given_up(town: Town) -> None:
    await town.append(b"1")
    town.fill_disks()

    async def appending(log: Log) -> None:
        while True:
            with contextlib.suppress(TimeoutError, PolonaiseError):
                async with asyncio.timeout(1.0):
                    await log.append(b"2")
            await time_passes(0.1)

    task = asyncio.create_task(town.application("writer", appending))
    await wait_until(lambda: told(town))
    assert all("no space left on the disk" in line for line in told(town))
    task.cancel()


@in_a_town(servers=2)
async def test_what_another_server_serves_again_is_not_told_as_given_up(town: Town) -> None:
    await town.append(b"1")
    await wait_until(lambda: ready(town))
    first, *_ = (node for node in town.cluster.servers if town.cluster.owns(node))
    server = town.cluster.owners[first.name]
    town.world.network.partition(first.name, [node.name for node in town.cluster.storage])
    await wait_until(lambda: told(town))
    await wait_until(lambda: ready(town) and not told(town), within_s=20.0)
    assert server.given_up == {0}, "the others are told, so that it does not come back too early"
    assert server.measures().given_up == 0


@in_a_town(servers=2)
async def test_once_the_storage_nodes_are_back_nobody_says_that_a_partition_is_given_up(town: Town) -> None:
    await town.append(b"1")
    for node in town.cluster.storage[1:]:
        held_down(node)
    await wait_until(lambda: all(server.given_up for server in town.cluster.running_servers))
    assert len(told(town)) == 2
    for node in town.cluster.storage[1:]:
        node.let_up()
    await wait_until(lambda: ready(town))
    await wait_until(lambda: not told(town), within_s=3.0)
    assert any(server.given_up for server in town.cluster.running_servers)


def test_a_partition_is_served_by_another_once_its_owner_has_begun_a_session() -> None:
    assignment = Assignment({0: Owner(2, "b:1", 5)})

    def served(value: PartitionValue, own: int = 1) -> bool:
        return is_served_by_another(0, value, assignment, own)

    engaged = {name: Engagement(8) for name in "AB"}
    begun = PartitionValue(5, 8, ("A", "B", "C"), None, engaged)
    assert served(begun)
    assert not served(begun, own=2)
    assert not served(PartitionValue(5, 9, ("A", "B", "C"), None, engaged)), "it has claimed a session only"
    assert not served(PartitionValue(4, 8, ("A", "B", "C"), None, engaged)), "that was the owner before"
    assert not is_served_by_another(1, begun, assignment, 1)
