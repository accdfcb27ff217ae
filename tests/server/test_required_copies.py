"""Commits need the copies and zones that the cluster requires: with fewer, appends are refused at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from polonaise.admin.requiring import RequirementChange, require, set_zone
from polonaise.client.log import Log
from polonaise.coordination.values import ClusterDescription, Versioned
from polonaise.errors import BadOption, InsufficientReplicas, UnknownStorageNode
from polonaise.server.requirements import Requirements
from polonaise.server.serverhealth import ServerHealth
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import wait_until


async def required(town: Town, copies: int, zones: int = 0) -> RequirementChange:
    return await town.operator(lambda host, coordinator: require(host, coordinator, copies, zones, 20.0))


async def zoned(town: Town, number: int, zone: str) -> RequirementChange | None:
    return await town.operator(lambda host, coordinator: set_zone(host, coordinator, town.name(number), zone, 20.0))


def waits_for(town: Town) -> str:
    return str(town.server.health()["partitions"].get("0", {}).get("waits_for", ""))


@in_a_town
async def test_appends_are_refused_at_once_while_too_few_copies_can_be_had_and_nothing_is_written(town: Town) -> None:
    await town.append(b"1")
    assert not (await required(town, 3)).waiting
    value = town.cluster.partition_value(0)
    assert value.required is not None
    assert (value.required.copies, value.required.zones) == (3, 0)
    node = town.cluster.storage[0]

    async def main(log: Log) -> None:
        await log.append(b"2", 0)
        assert town.lasts() == [1, 1, 1]
        held_down(node)
        await wait_until(lambda: "3 copies are required, and 2 can be had" in waits_for(town))
        await wait_until(lambda: town.server.partitions[0].owner._lacking != "")
        began_s = town.cluster.world.now
        with pytest.raises(InsufficientReplicas, match="nothing was written"):
            await log.append(b"3", 0)
        assert town.cluster.world.now - began_s < 1.0
        assert town.lasts()[1:] == [1, 1]
        node.let_up()
        await wait_until(lambda: not waits_for(town))
        await log.append(b"4", 0)
        assert town.lasts() == [2, 2, 2]

    await town.application("client", main)
    assert await town.log() == [b"1", b"2", b"4"]


@in_a_town
async def test_the_requirement_is_taken_back(town: Town) -> None:
    await required(town, 3)
    held_down(town.cluster.storage[0])
    await wait_until(lambda: "copies are required" in waits_for(town))
    assert not (await required(town, 0)).waiting
    await town.append(b"1")
    assert await town.log() == [b"1"]


@in_a_town
async def test_a_change_that_is_not_followed_in_time_says_what_is_lacking(town: Town) -> None:
    await required(town, 3)
    held_down(town.cluster.storage[0])
    await wait_until(lambda: "copies are required" in waits_for(town))
    change = await zoned(town, 1, "north")
    assert change is not None
    assert "3 copies are required, and 2 can be had" in change.waiting[0]
    held_down(town.cluster.servers[0])
    await wait_until(lambda: not town.cluster.running_servers)
    change = await zoned(town, 1, "south")
    assert change is not None
    assert "does not answer" in change.waiting[0]


@in_a_town
async def test_a_requirement_that_the_nodes_cant_meet_is_refused_and_nothing_is_changed(town: Town) -> None:
    await town.append(b"1")
    with pytest.raises(BadOption, match="4 copies are required, and 3 can be had"):
        await required(town, 4)
    with pytest.raises(BadOption, match="copies in 2 zones are required, and 0 can be had"):
        await required(town, 2, 2)
    held_down(town.cluster.storage[0])
    with pytest.raises(InsufficientReplicas, match="no answer from"):
        await required(town, 3)
    assert (await town.description()).required is None


@in_a_town
async def test_copies_are_required_in_zones(town: Town) -> None:
    for number, zone in enumerate(("north", "north", "south")):
        assert await zoned(town, number, zone) is None
    assert not (await required(town, 2, 2)).waiting
    await town.append(b"1")
    held_down(town.cluster.storage[2])
    await wait_until(lambda: "copies in 2 zones are required, and 1 can be had" in waits_for(town))
    with pytest.raises(BadOption, match="require less first"):
        await zoned(town, 2, "north")
    with pytest.raises(BadOption, match="invalid zone"):
        await zoned(town, 2, "no/rth")
    town.cluster.storage[2].let_up()
    await town.append(b"2")
    assert await town.log() == [b"1", b"2"]


@in_a_town
async def test_an_unknown_node_is_put_into_no_zone(town: Town) -> None:
    with pytest.raises(UnknownStorageNode, match="no storage node 'x'"):
        await town.operator(lambda host, coordinator: set_zone(host, coordinator, "x", "north", 2.0))


@in_a_town(servers=2)
async def test_a_server_that_takes_over_acts_by_the_requirement(town: Town) -> None:
    await town.append(b"1")
    assert not (await required(town, 3)).waiting
    for server in town.cluster.servers:
        if town.cluster.owns(server):
            server.crash()
    await town.append(b"2")
    assert town.lasts() == [1, 1, 1]
    value = town.cluster.partition_value(0)
    assert value.required is not None
    assert value.required.copies == 3


@in_a_town
async def test_a_server_of_a_version_that_knows_no_requirement_is_named_and_nothing_is_changed(town: Town) -> None:
    await town.append(b"1")
    told = ServerHealth.document

    def of_0_1(health: ServerHealth) -> dict[str, Any]:
        return {key: value for key, value in told(health).items() if key != "required"}

    with patch.object(ServerHealth, "document", of_0_1):
        with pytest.raises(InsufficientReplicas, match="of a version that knows no required copies: upgrade it"):
            await required(town, 3)
        assert (await town.description()).required is None
        # To take it back, nobody has to know of it.
        assert (await town.operator(lambda host, coordinator: require(host, coordinator, 0, 0, 20.0))).copies == 0


@pytest.mark.parametrize(
    ("copies", "zones", "told"),
    [(0, 0, ""), (2, 0, "2 copies"), (2, 2, "2 copies in 2 zones"), (0, 2, "copies in 2 zones")],
)
def test_what_is_required_is_told_in_words(copies: int, zones: int, told: str) -> None:
    description = ClusterDescription.new(b"k" * 16, 1, {"a": "a:1"}).requiring(copies, zones)
    requirements = Requirements(SimpleNamespace(), Versioned(1, description))  # type: ignore[arg-type]
    assert requirements.told == told
