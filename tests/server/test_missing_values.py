"""A value of the coordinator that is missing or damaged, whichever it is, is told while what is owned goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.admin.cluster import ClusterObserver, ClusterStatus, Wellness
from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ASSIGNMENT, DESCRIPTION, EXPECTED, UNIQUE_ID, partition_key
from polonaise.errors import CoordinatorUnavailable, PolonaiseError
from polonaise.host import Host
from polonaise.node.monitoring.face import ObservedServer
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.wire.messages import GetUniqueId
from rigs.town import Town
from rigs.waiting import wait_until

TOLD_S = 10.0
"""Virtual seconds within which it is told that a value is missing, and that it is back."""
VALUES = (DESCRIPTION, ASSIGNMENT, UNIQUE_ID, EXPECTED, partition_key(0))


def missing(town: Town, key: str) -> None:
    values = town.cluster.service.snapshot()
    del values[key]
    town.cluster.service.restore(values)


def damaged(town: Town, key: str) -> None:
    town.cluster.service.damage(key)


def named(status: ClusterStatus, key: str) -> bool:
    # Without its description a cluster is none.
    words = (key, "holds no cluster") if key == DESCRIPTION else (key,)
    return any(word in line for line in (status.coordinator_trouble, *status.troubles) for word in words)


async def status_of(town: Town) -> ClusterStatus:
    async def look(host: Host, coordinator: Coordinator) -> ClusterStatus:
        return await ClusterObserver(host, coordinator, "the coordinator", 2.0).look()

    return await town.operator(look)


async def becomes(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(TOLD_S):
        await wait_until(holds, what)


def in_a_noting_town(story: Callable[[Town, Log], Awaitable[None]]) -> None:
    """Run a story in an application of a cluster whose server has a name, and notes the coordinator's values."""
    town = Town(1, server=ServerSettings(name="first"), notes_s=1.0)

    async def tell(_: Town) -> None:
        await town.application("client", lambda log: story(town, log))

    town.run(tell)


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("lose", [missing, damaged])
def test_whichever_value_is_lost_is_told_and_what_is_owned_goes_on(
    key: str, lose: Callable[[Town, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(town: Town, log: Log) -> None:
        assert (await log.append(b"before", 0)).committed
        face = ObservedServer(lambda: town.server, town.world.machine("look").start(nobody).host.clock)
        await becomes(lambda: EXPECTED in town.cluster.service.snapshot(), "the server has noted itself")
        await asyncio.sleep(TOLD_S)
        assert (await status_of(town)).wellness is Wellness.WELL
        values = town.cluster.service.snapshot()
        caplog.clear()
        lose(town, key)
        await becomes(lambda: key in town.server.health()["coordinator"], "health names the value")
        assert "cluster recover" in town.server.health()["coordinator"]
        document = await face.health()
        assert (document["status"], document["reasons"]) == ("degraded", ["coordinator"])
        assert face.not_ready() == "", "what it owns goes on, and no other server does better"
        assert (await log.append(b"meanwhile", 0)).committed
        status = await status_of(town)
        assert status.wellness is not Wellness.WELL
        assert named(status, key)
        assert len([each for each in caplog.messages if key in each]) == 1, "once, and not at each look"
        town.cluster.service.restore(values)
        await becomes(lambda: not town.server.health()["coordinator"], "nothing is told any more")
        assert caplog.messages[-1].startswith("the coordinator answers again")
        assert (await status_of(town)).wellness is Wellness.WELL

    with caplog.at_level(logging.WARNING):
        in_a_noting_town(story)


async def nobody(_: Host) -> None:
    await asyncio.Event().wait()


async def refused(server: Server) -> PolonaiseError:
    """Return what a new client is told, which asks for a unique id and has not named the cluster key."""
    answering = server.parts.shared.cluster.answering(GetUniqueId(), stranger=True)
    assert answering is not None
    answer, wait = answering
    answer.close()
    assert wait is not None
    with pytest.raises(PolonaiseError) as told:
        await wait
    return told.value


def test_unique_ids_that_can_be_read_and_not_given_out_are_told_until_they_can_be() -> None:
    async def story(town: Town, log: Log) -> None:
        await town.has_a_server()
        coordinator: Any = town.server.parts.shared.coordinator
        gives, asked = coordinator.unique_id, 0

        async def full() -> int:
            nonlocal asked
            asked += 1
            raise CoordinatorUnavailable("the disk is full")

        coordinator.unique_id = full
        await asyncio.sleep(TOLD_S)
        assert asked == 0, "no id is used up while nothing is wrong"
        assert isinstance(await refused(town.server), CoordinatorUnavailable)
        assert "the disk is full" in town.server.health()["coordinator"]
        await asyncio.sleep(TOLD_S)
        assert "the disk is full" in town.server.health()["coordinator"], "that they can be read proves nothing"
        coordinator.unique_id = gives
        await becomes(lambda: not town.server.health()["coordinator"], "nothing is told any more, without a new client")

    in_a_noting_town(story)
