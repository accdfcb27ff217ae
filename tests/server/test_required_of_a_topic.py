"""Commits to a topic need the copies and zones that are required of it; those of other partitions do not."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.requiring import RequirementChange, require, set_zone
from polonaise.admin.topics import add_partitions, create_topic, describe_topic
from polonaise.client.log import Log
from polonaise.coordination.values import PartitionValue
from polonaise.errors import BadOption, CopyNeeded, InsufficientReplicas, UnknownTopic
from polonaise.server.serverhealth import ServerHealth
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import wait_until

TOPIC = "payments"


async def created(town: Town, partitions: int = 1) -> None:
    await town.operator(lambda _, coordinator: create_topic(coordinator, TOPIC, partitions, 20.0))


async def required(town: Town, copies: int, zones: int = 0, topic: str = TOPIC) -> RequirementChange:
    return await town.operator(lambda host, coordinator: require(host, coordinator, copies, zones, 20.0, topic or None))


def needs(town: Town, partition: int) -> tuple[int, int, int] | None:
    """What the last session of a partition acts by."""
    each = town.cluster.partition_value(partition).required
    return None if each is None else (each.version, each.copies, each.zones)


def session(town: Town, partition: int) -> int:
    return town.cluster.partition_value(partition).session


def health(town: Town) -> dict[str, Any]:
    return town.server.health()


@in_a_town
async def test_appends_to_the_topic_are_refused_while_others_go_on(town: Town) -> None:
    await town.append(b"own")
    await created(town)
    before = session(town, 0)
    change = await required(town, 3)
    assert (change.topic, change.copies, change.waiting) == (TOPIC, 3, {})
    assert (needs(town, 0), needs(town, 1)) == (None, (1, 3, 0))
    assert session(town, 0) == before, "the session of another partition goes on"
    assert health(town)["topics_required"] == {TOPIC: "3 copies"}
    assert health(town)["required"] == ""
    assert health(town)["partitions"]["1"]["required"] == "3 copies"
    assert "required" not in health(town)["partitions"]["0"]

    async def main(log: Log) -> None:
        await log.append(b"1", 0)
        held_down(town.cluster.storage[0])
        await wait_until(lambda: "3 copies are required, and 2" in health(town)["partitions"]["1"]["waits_for"])
        await wait_until(lambda: town.server.partitions[1].owner._lacking != "")
        with pytest.raises(InsufficientReplicas, match="nothing was written"):
            await log.append(b"2", 0)

    await town.application("client", main, topic=TOPIC)
    await town.append(b"goes on")
    assert not (await required(town, 0)).waiting
    assert needs(town, 1) == (2, 0, 0)
    await town.append(b"3", topic=TOPIC)


@in_a_town
async def test_the_stronger_of_the_topics_and_the_clusters_requirement_counts(town: Town) -> None:
    await created(town)
    assert not (await required(town, 2, topic="")).waiting
    assert not (await required(town, 3)).waiting
    assert (needs(town, 0), needs(town, 1)) == ((1, 2, 0), (2, 3, 0))
    assert not (await required(town, 3, topic="")).waiting
    assert not (await required(town, 0)).waiting
    assert (needs(town, 0), needs(town, 1)) == ((3, 3, 0), (4, 3, 0))


@in_a_town
async def test_a_topic_that_grows_carries_its_requirement_and_a_node_that_commits_need_stays(town: Town) -> None:
    await town.append(b"own")
    await created(town)
    assert not (await required(town, 3)).waiting

    async def grow(_: Any, coordinator: Any) -> None:
        assert (await add_partitions(coordinator, TOPIC, 1, 20.0)).required == "3 copies"
        assert (await describe_topic(coordinator, TOPIC, 20.0)).document()["required"] == "3 copies"

    async def remove(_: Any, coordinator: Any) -> None:
        edits = MemberEdits(coordinator, 20.0)
        name = town.name(0)
        with pytest.raises(CopyNeeded, match="commits would lack what they need: 3 copies are required"):
            await edits.remove_copy(2, name, force=True)
        assert (await edits.remove_copy(0, name, force=True)).next is not None

    await town.operator(grow)
    await town.append(b"1", partition=1, topic=TOPIC)
    assert needs(town, 2) == (1, 3, 0)
    await town.operator(remove)


@in_a_town
async def test_zones_are_required_of_a_topic(town: Town) -> None:
    await created(town)
    names = [town.name(number) for number in range(3)]
    with pytest.raises(BadOption, match="copies in 2 zones are required, and 0 can be had"):
        await required(town, 2, 2)

    async def operate(host: Any, coordinator: Any) -> None:
        for name, zone in zip(names, ("north", "north", "south"), strict=True):
            assert await set_zone(host, coordinator, name, zone, 20.0) is None
        assert not (await require(host, coordinator, 2, 2, 20.0, TOPIC)).waiting
        with pytest.raises(BadOption, match="require less first, with `polonaise topic require payments`"):
            await set_zone(host, coordinator, names[2], "north", 20.0)
        change = await set_zone(host, coordinator, names[1], "south", 20.0)
        assert change is not None
        assert not change.waiting

    await town.operator(operate)
    assert needs(town, 1) == (2, 2, 2)
    await town.append(b"1", topic=TOPIC)


@in_a_town
async def test_a_requirement_that_cant_be_met_or_that_a_server_does_not_know_is_refused(town: Town) -> None:
    await created(town)
    before = town.cluster.partition_value(1)
    with pytest.raises(UnknownTopic, match="no topic 'orders'"):
        await required(town, 3, topic="orders")
    with pytest.raises(BadOption, match="partition 1: 4 copies are required, and 3 can be had"):
        await required(town, 4)
    told = ServerHealth.document

    def of_a_version_before(health: ServerHealth) -> dict[str, Any]:
        return {key: value for key, value in told(health).items() if key != "topics_required"}

    with patch.object(ServerHealth, "document", of_a_version_before):
        with pytest.raises(InsufficientReplicas, match="knows no copies required of a topic: upgrade it"):
            await required(town, 3)
        assert not (await required(town, 2, topic="")).waiting, "what that version knows may be required"
    held_down(town.cluster.storage[0])
    with pytest.raises(InsufficientReplicas, match="no answer from"):
        await required(town, 3)
    assert _copies(before) == 0
    assert _copies(town.cluster.partition_value(1)) == 2


def _copies(value: PartitionValue) -> int:
    return 0 if value.required is None else value.required.copies
