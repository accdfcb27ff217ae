"""Commits that need copies and zones, by what is required of the cluster or a topic, or by what an append asks for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.requiring import RequirementChange, require, set_zone
from polonaise.admin.topics import add_partitions, create_topic, describe_topic
from polonaise.client.log import Log
from polonaise.coordination.values import ClusterDescription, PartitionValue, Versioned
from polonaise.errors import (
    BadOption,
    CopiesUnproved,
    CopyNeeded,
    InsufficientReplicas,
    UnknownStorageNode,
    UnknownTopic,
)
from polonaise.server.requirements import Requirements
from polonaise.server.serverhealth import ServerHealth
from rigs.town import Town, held_down, in_a_town, in_an_application
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


TOPIC = "payments"


async def created(town: Town, partitions: int = 1) -> None:
    await town.operator(lambda _, coordinator: create_topic(coordinator, TOPIC, partitions, 20.0))


async def required_of_a_topic(town: Town, copies: int, zones: int = 0, topic: str = TOPIC) -> RequirementChange:
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
    change = await required_of_a_topic(town, 3)
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
    assert not (await required_of_a_topic(town, 0)).waiting
    assert needs(town, 1) == (2, 0, 0)
    await town.append(b"3", topic=TOPIC)


@in_a_town
async def test_the_stronger_of_the_topics_and_the_clusters_requirement_counts(town: Town) -> None:
    await created(town)
    assert not (await required_of_a_topic(town, 2, topic="")).waiting
    assert not (await required_of_a_topic(town, 3)).waiting
    assert (needs(town, 0), needs(town, 1)) == ((1, 2, 0), (2, 3, 0))
    assert not (await required_of_a_topic(town, 3, topic="")).waiting
    assert not (await required_of_a_topic(town, 0)).waiting
    assert (needs(town, 0), needs(town, 1)) == ((3, 3, 0), (4, 3, 0))


@in_a_town
async def test_a_topic_that_grows_carries_its_requirement_and_a_node_that_commits_need_stays(town: Town) -> None:
    await town.append(b"own")
    await created(town)
    assert not (await required_of_a_topic(town, 3)).waiting

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
        await required_of_a_topic(town, 2, 2)

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
        await required_of_a_topic(town, 3, topic="orders")
    with pytest.raises(BadOption, match="partition 1: 4 copies are required, and 3 can be had"):
        await required_of_a_topic(town, 4)
    told = ServerHealth.document

    def of_a_version_before(health: ServerHealth) -> dict[str, Any]:
        return {key: value for key, value in told(health).items() if key != "topics_required"}

    with patch.object(ServerHealth, "document", of_a_version_before):
        with pytest.raises(InsufficientReplicas, match="knows no copies required of a topic: upgrade it"):
            await required_of_a_topic(town, 3)
        assert not (await required_of_a_topic(town, 2, topic="")).waiting, "what that version knows may be required"
    held_down(town.cluster.storage[0])
    with pytest.raises(InsufficientReplicas, match="no answer from"):
        await required_of_a_topic(town, 3)
    assert _copies(before) == 0
    assert _copies(town.cluster.partition_value(1)) == 2


def _copies(value: PartitionValue) -> int:
    return 0 if value.required is None else value.required.copies


def engaged(town: Town) -> int:
    value = town.cluster.partition_value(0)
    return sum(each.unresolved for each in value.engagements.values())


def zones_known(town: Town) -> int:
    """Of how many storage nodes the present session knows the zone."""
    session = town.server.partitions[0].owner.session
    return 0 if session is None else len(session.zones)


@in_an_application
async def test_success_means_that_the_copies_are_on_disks(town: Town, log: Log) -> None:
    for number in range(20):
        receipt = await log.append(b"%d" % number, 0, copies=3)
        assert min(town.lasts()) >= receipt.id


@in_a_town
async def test_with_fewer_engaged_an_append_is_refused_at_once_and_others_go_on(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0, copies=3)
        held_down(town.cluster.storage[0])
        await log.append(b"2", 0)
        await wait_until(lambda: engaged(town) == 2)
        before, began_s = max(town.lasts()), town.cluster.world.now
        with pytest.raises(InsufficientReplicas, match="nothing was written"):
            await log.append(b"refused", 0, copies=3)
        assert town.cluster.world.now - began_s < 1.0
        assert max(town.lasts()) == before
        await log.append(b"3", 0, copies=2)
        town.cluster.storage[0].let_up()
        await wait_until(lambda: engaged(town) == 3)
        await log.append(b"4", 0, copies=3)

    await town.application("client", main)
    assert await town.log() == [b"1", b"2", b"3", b"4"]


@in_an_application
async def test_a_node_that_goes_before_the_proof_leaves_a_committed_append_that_is_proved_when_it_is_back(
    town: Town,
    log: Log,
) -> None:
    await log.append(b"1", 0, copies=3)
    # Ordered while three are engaged, and one of them hangs: nobody knows yet.
    process = town.cluster.storage[0].process
    assert process is not None
    process.pause()
    receipt = log.append(b"2", 0, copies=3)
    await wait_until(lambda: receipt.committed)
    with pytest.raises(CopiesUnproved, match=r"in the log as 1, for good, and is not proved to be on 3 copies"):
        await receipt.applied(timeout=0.2)
    await wait_until(lambda: engaged(town) == 2)
    with pytest.raises(CopiesUnproved):
        await receipt.applied(timeout=2.0)
    assert not receipt.done
    process.resume()
    await receipt
    assert min(town.lasts()) >= receipt.id


@in_a_town
async def test_a_context_that_needs_copies_runs_until_they_can_be_had(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0)
        held_down(town.cluster.storage[0])
        await log.append(b"2", 0)
        await wait_until(lambda: engaged(town) == 2)

        def build(tx: object) -> None:
            tx.append(b"3")  # type: ignore[attr-defined]
            tx.need(copies=3)  # type: ignore[attr-defined]

        running = asyncio.ensure_future(log.run(build, partition=0))
        await asyncio.sleep(2.0)
        assert not running.done()
        town.cluster.storage[0].let_up()
        receipt = await running
        assert min(town.lasts()) >= receipt.id

    await town.application("client", main)
    assert await town.log() == [b"1", b"2", b"3"]


@in_a_town
async def test_zones_count_from_when_they_are_told_though_nothing_is_required_of_the_cluster(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0)
        with pytest.raises(InsufficientReplicas):
            await log.append(b"refused", 0, zones=2)
        for number, zone in enumerate(("north", "north", "south")):
            name = town.name(number)
            await town.operator(lambda host, coordinator, n=name, z=zone: set_zone(host, coordinator, n, z, 20.0))  # type: ignore[misc]
        await wait_until(lambda: zones_known(town) == 3)
        receipt = await log.append(b"2", 0, zones=2)
        assert town.lasts()[2] >= receipt.id
        assert town.cluster.partition_value(0).required is None

    await town.application("client", main)
