"""Topics in the cluster's description: ids that are unique for good, and what is required of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import copies_on, remove_storage
from polonaise.admin.topics import add_partitions, create_topic, describe_topic, list_topics
from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.topics import TopicPartitions, check_topic_name
from polonaise.coordination.values import ClusterDescription, Demand, Owner, PartitionValue, Registration, Requirement
from polonaise.errors import (
    BadOption,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    CopyNeeded,
    InsufficientReplicas,
    UnknownPartition,
    UnknownTopic,
)
from polonaise.host.real import RealHost
from rigs.faults import raises_code

DESCRIPTION = ClusterDescription(bytes(range(16)), 2, ("a:1", "b:1", "c:1"))


@pytest.fixture
async def other(tmp_path: Path, host: RealHost) -> AsyncIterator[Coordinator]:
    made = coordinator_in(host, str(tmp_path / "coordinator"))
    yield made
    await made.close()


@pytest.fixture
async def coordinator(tmp_path: Path, host: RealHost) -> AsyncIterator[Coordinator]:
    made = coordinator_in(host, str(tmp_path / "coordinator"))
    await made.initialize(DESCRIPTION)
    yield made
    await made.close()


def test_ids_follow_each_other_whatever_topic_grows() -> None:
    grown = DESCRIPTION.grown("b", 2).grown("a", 1).grown("b", 1)
    assert grown.topics == {"b": (2, 3, 5), "a": (4,)}
    assert grown.total == 6
    assert [grown.shape.number_of(id) for id in range(6)] == [("", 0), ("", 1), ("b", 0), ("b", 1), ("a", 0), ("b", 2)]
    assert ClusterDescription.decode(grown.encode()) == grown
    assert grown.partitions_of("b", 7) == TopicPartitions(7, 6, (2, 3, 5), "b")
    assert grown.partitions_of("", 7).ids == (0, 1)


def test_a_description_without_topics_is_written_as_before() -> None:
    assert b"topics" not in DESCRIPTION.encode()


@pytest.mark.parametrize(
    "topics",
    [
        {}, [], {"a": []}, {"a": 2}, {"a": [1]}, {"a": [3]}, {"a": [2, 2]}, {"a": [2], "b": [2]}, {"a": [2, 4]},
        {"a": ["2"]}, {"a": [True]}, {"a/b": [2]}, {"": [2]},
    ],
)  # fmt: skip
def test_topics_that_are_none_are_refused(topics: object) -> None:
    fields = {"key": str(uuid.UUID(int=1)), "partitions": 2, "storage": ["a", "b"], "topics": topics}
    with pytest.raises(CoordinatorDamaged, match="no valid ClusterDescription"):
        ClusterDescription.decode(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a?b", "a#b", "ä", ".a", "-a", "a" * 64, "a\n", "a,b"])
def test_a_name_that_no_topic_may_have(name: str) -> None:
    with pytest.raises(BadOption, match="invalid name of a topic"):
        check_topic_name(name)


def test_numbers_and_ids_of_a_topic() -> None:
    topic = TopicPartitions(3, 9, (4, 8), "t")
    assert [topic.id_of(0), topic.id_of(1)] == [4, 8]
    for number in (2, -1):
        with pytest.raises(UnknownPartition, match="topic t has partitions 0 to 1"):
            topic.id_of(number)
    assert topic._replace(version=4, ids=(4, 8, 9)).goes_on_from(topic)
    assert not topic._replace(version=2).goes_on_from(topic)
    assert not topic._replace(version=4, ids=(8, 4)).goes_on_from(topic)
    assert not topic._replace(version=4, ids=(4,)).goes_on_from(topic)


async def test_a_topic_is_created_and_grows(coordinator: Coordinator) -> None:
    made = await create_topic(coordinator, "payments", 2, 5.0)
    assert (made.ids, made.owners) == ((2, 3), ("", ""))
    await create_topic(coordinator, "orders", 1, 5.0)
    grown = await add_partitions(coordinator, "payments", 2, 5.0)
    assert grown.ids == (2, 3, 5, 6)
    assert [(each.name, each.ids) for each in await list_topics(coordinator, 5.0)] == [
        ("orders", (4,)), ("payments", (2, 3, 5, 6)),
    ]  # fmt: skip
    assert (await describe_topic(coordinator, "orders", 5.0)).ids == (4,)
    assert (await coordinator.partition(6)).value == PartitionValue.initial(DESCRIPTION.storage)
    assert (await coordinator.topic("orders")).ids == (4,)


async def test_a_process_that_read_an_older_description_finds_new_partitions(
    coordinator: Coordinator, other: Coordinator
) -> None:
    assert (await other.describe()).total == 2
    await create_topic(coordinator, "payments", 1, 5.0)
    assert (await other.partition(2)).version == 0
    with pytest.raises(UnknownPartition, match="no partition 3"):
        await other.partition(3)


async def test_new_partitions_have_owners_at_once_and_nobody_loses_one(coordinator: Coordinator) -> None:
    first = await coordinator.assignment()
    await coordinator.set_assignment(
        replace(first.value, owners={0: Owner(7, "gone:1", 3), 1: Owner(8, "h:8", 1)}), first.version
    )
    await coordinator.register(Registration(8, "h:8"))
    made = await create_topic(coordinator, "payments", 2, 5.0)
    assert made.owners == ("h:8", "h:8")
    assert (await coordinator.assignment()).value.owners[0] == Owner(7, "gone:1", 3)


async def test_a_topic_whose_commits_would_lack_required_zones_is_refused(coordinator: Coordinator) -> None:
    """The nodes that are left cannot meet what is required, as after a drain that began before."""
    current = await coordinator.description()
    required = current.value.zoned("a:1", "north").zoned("b:1", "south").requiring(2, 2)
    written = await coordinator.set_description(required, current.version)
    assert written is not None
    made = await create_topic(coordinator, "fits", 1, 5.0)
    assert not required.requirements()[0].lack_of((await coordinator.partition(made.ids[0])).value.members)
    current = await coordinator.description()
    await coordinator.set_description(current.value.requiring(3, 3), current.version)
    with pytest.raises(InsufficientReplicas, match=r"partition 3 .*copies in 3 zones are required, and 2"):
        await create_topic(coordinator, "payments", 1, 5.0)
    assert [each.name for each in await list_topics(coordinator, 5.0)] == ["fits"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=12))
def test_numbers_and_ids_stay_what_they_are_however_topics_grow(steps: list[tuple[str, int]]) -> None:
    description, seen = DESCRIPTION, {id: ("", id) for id in range(DESCRIPTION.partitions)}
    for topic, count in steps:
        description = description.grown(topic, count)
        now = {id: description.shape.number_of(id) for id in range(description.total)}
        assert {id: now[id] for id in seen} == seen
        assert len({*now.values()}) == len(now) == description.total
        for id, (name, number) in now.items():
            assert description.partitions_of(name, 1).id_of(number) == id
        seen = now
    assert ClusterDescription.decode(description.encode()) == description


async def test_two_operators_create_topics_at_the_same_time(coordinator: Coordinator, other: Coordinator) -> None:
    made = await asyncio.gather(create_topic(coordinator, "a", 2, 5.0), create_topic(other, "b", 3, 5.0))
    assert sorted(id for topic in made for id in topic.ids) == [2, 3, 4, 5, 6]
    with raises_code("topic_exists", match="topic a exists, with 2 partitions"):
        await create_topic(coordinator, "a", 1, 5.0)


async def test_what_an_operator_left_unfinished_is_taken_up(coordinator: Coordinator) -> None:
    assert await coordinator.make_partitions(dict.fromkeys((2, 3), DESCRIPTION.storage), DESCRIPTION.storage)
    with pytest.raises(UnknownPartition):
        await coordinator.partition(2)
    assert (await create_topic(coordinator, "a", 3, 5.0)).ids == (2, 3, 4)


async def test_leftovers_with_other_storage_nodes_get_those_of_now(coordinator: Coordinator) -> None:
    assert await coordinator.make_partitions({2: ("x:1",)}, ("x:1",))
    await create_topic(coordinator, "a", 1, 5.0)
    assert (await coordinator.partition(2)).value == PartitionValue.initial(DESCRIPTION.storage)


async def test_new_partitions_get_the_cluster_s_number_of_copies_and_none_on_drained_nodes(
    coordinator: Coordinator,
) -> None:
    described = await coordinator.description()
    nodes = [f"n{number}" for number in range(3)]
    more = described.value
    for name in nodes:
        more = more.with_node(name, f"{name}:1")
    copies = more.replication_factor
    assert copies == len(DESCRIPTION.storage) < len(more.storage)
    assert await coordinator.set_description(more.drained("n0"), described.version)
    await create_topic(coordinator, "a", 6, 5.0)
    members = [(await coordinator.partition(id)).value.members for id in range(2, 8)]
    assert all(len(names) == copies and "n0" not in names for names in members)
    assert {"n1", "n2"} < {name for names in members for name in names}


async def test_a_node_is_drained_of_the_copies_of_topics(coordinator: Coordinator) -> None:
    await create_topic(coordinator, "a", 2, 5.0)
    edits = MemberEdits(coordinator, 5.0)
    name = DESCRIPTION.storage[0]
    total = (await coordinator.describe()).total
    assert await copies_on(edits, name, total) == [0, 1, 2, 3]
    described = await coordinator.description()
    assert await coordinator.set_description(described.value.with_node("n0", "n0:1"), described.version)
    for partition in range(2):  # as if the own ones had been moved: those of the topic are left
        value = await coordinator.partition(partition)
        moved = replace(value.value, members=(*DESCRIPTION.storage[1:], "n0"))
        assert await coordinator.set_partition(partition, moved, value.version)
    with pytest.raises(CopyNeeded, match="copies of partitions 2, 3: drain it first"):
        await remove_storage(edits, name)


async def test_a_description_in_which_a_topic_shrinks_is_refused(coordinator: Coordinator) -> None:
    await create_topic(coordinator, "a", 2, 5.0)
    current = await coordinator.description()
    for topics in ({}, {"a": (2,)}, {"a": (3, 2)}):
        with pytest.raises(BadOption, match="topic a would lose partitions, or their order"):
            await coordinator.set_description(replace(current.value, topics=topics), current.version)
    assert await coordinator.description() == current


async def test_what_is_no_topic(coordinator: Coordinator) -> None:
    before = await coordinator.description()
    with pytest.raises(UnknownTopic, match="no topic 'a'; it has none"):
        await add_partitions(coordinator, "a", 1, 5.0)
    with pytest.raises(UnknownTopic):
        await describe_topic(coordinator, "a", 5.0)
    with pytest.raises(BadOption, match="0 more partitions"):
        await create_topic(coordinator, "a", 0, 5.0)
    with pytest.raises(BadOption, match="over the limit of 4096"):
        await create_topic(coordinator, "a", 4095, 5.0)
    with pytest.raises(BadOption, match="invalid name of a topic"):
        await create_topic(coordinator, "a/b", 1, 5.0)
    assert await coordinator.description() == before


async def silent(*_: object) -> Any:
    await asyncio.Event().wait()


@pytest.mark.slow
async def test_a_coordinator_that_falls_silent_while_a_topic_grows_is_told_of(coordinator: Coordinator) -> None:
    async def others_were_first(*_: object) -> bool:
        coordinator.description = silent  # type: ignore[method-assign]
        return False

    coordinator.make_partitions = others_were_first  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        with pytest.raises(CoordinatorUnavailable, match=r"did not answer within 0.2 s.*polonaise topic list"):
            await create_topic(coordinator, "a", 1, 0.2)


async def test_a_topic_that_is_none_is_known_from_one_look_at_the_coordinator(coordinator: Coordinator) -> None:
    before = coordinator.describe

    async def once() -> ClusterDescription:
        coordinator.describe = silent  # type: ignore[method-assign]
        return await before()

    coordinator.describe = once  # type: ignore[method-assign]
    with pytest.raises(UnknownTopic, match="it has none"):
        await describe_topic(coordinator, "a", 2.0)


NODES = {name: f"{name}:1" for name in "ABC"}
PLAIN = ClusterDescription.new(bytes(16), 1, NODES).grown("a", 2).grown("b", 1)
"""Partition 0 is the log's own, 1 and 2 are those of topic `a`, 3 is that of `b`."""


def needs(description: ClusterDescription) -> dict[int, tuple[int, int, int]]:
    """The number, copies and zones that commits to each partition need."""
    return {id: (each.version, each.copies, each.zones) for id, each in description.requirements().items()}


def test_nothing_is_required_of_other_partitions_than_the_topics() -> None:
    required = PLAIN.requiring(3, 0, "a")
    assert needs(required) == {1: (1, 3, 0), 2: (1, 3, 0)}
    assert ClusterDescription.decode(required.encode()) == required


def test_the_stronger_requirement_counts_of_copies_and_of_zones() -> None:
    required = PLAIN.requiring(2, 2).requiring(3, 0, "a").requiring(1, 0, "b")
    assert needs(required) == {0: (1, 2, 2), 1: (2, 3, 2), 2: (2, 3, 2), 3: (3, 2, 2)}


def test_a_change_has_a_number_above_all_others_and_only_its_partitions_have_it() -> None:
    required = PLAIN.requiring(3, 0, "a").requiring(2, 0, "b").requiring(2, 0, "a")
    assert needs(required) == {1: (3, 2, 0), 2: (3, 2, 0), 3: (2, 2, 0)}
    assert needs(required.requiring(2, 0)) == dict.fromkeys(range(4), (4, 2, 0))


def test_what_is_taken_back_keeps_a_number() -> None:
    """Without it a partition's last session would seem to have acted by a requirement that nobody has read yet."""
    required = PLAIN.requiring(3, 0, "a").requiring(0, 0, "a")
    assert needs(required) == {1: (2, 0, 0), 2: (2, 0, 0)}
    assert required.newest_demand == 2
    assert required.topics_required["a"].told == ""


def test_a_zone_that_changes_gives_every_demand_another_number() -> None:
    required = PLAIN.requiring(2, 1, "a").requiring(1, 1, "b")
    zoned = required.zoned("A", "north")
    assert needs(zoned) == {1: (3, 2, 1), 2: (3, 2, 1), 3: (4, 1, 1)}
    assert zoned.requirements()[1] == Requirement(3, 2, 1, {"A": "north"})
    assert zoned.required is None
    assert zoned.zoned("A", "north") is zoned
    assert needs(zoned.without_node("A"))[3] == (6, 1, 1)


def test_a_topic_that_grows_carries_its_requirement_to_new_partitions() -> None:
    grown = PLAIN.requiring(3, 0, "a").grown("a", 1)
    assert needs(grown) == dict.fromkeys((1, 2, 4), (1, 3, 0))


def test_nothing_is_required_of_a_topic_that_there_is_not() -> None:
    with pytest.raises(UnknownTopic, match="no topic 'c'; it has a, b"):
        PLAIN.requiring(3, 0, "c")


def test_a_description_in_which_nothing_was_required_of_topics_is_written_as_before() -> None:
    assert b"topics_required" not in PLAIN.requiring(3, 0).encode()
    assert json.loads(PLAIN.requiring(3, 0, "a").encode())["topics_required"] == {"a": [1, 3, 0]}


@pytest.mark.parametrize(
    "bad", [{"c": [1, 3, 0]}, {"a": [1, 3]}, {"a": 3}, {"a": ["x", 3, 0]}, {}, [], {"a": [1, 3, 0.5]}]
)
def test_requirements_of_topics_that_are_none_are_damage(bad: object) -> None:
    document = {**json.loads(PLAIN.encode()), "topics_required": bad}
    with pytest.raises(CoordinatorDamaged, match="no valid ClusterDescription"):
        ClusterDescription.decode(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


CHANGES = st.one_of(
    st.tuples(st.just("require"), st.sampled_from(["", "a", "b"]), st.integers(0, 3)),
    st.tuples(st.just("grow"), st.sampled_from(["a", "b"]), st.just(1)),
    st.tuples(st.just("zone"), st.sampled_from("ABC"), st.integers(0, 2)),
)


@given(st.lists(CHANGES, max_size=12))
def test_a_partition_s_requirement_has_another_number_whenever_it_is_another_and_numbers_never_fall(
    changes: list[tuple[str, str, int]],
) -> None:
    """Engagements name the number alone: who has read that of the last session knows all that it went by."""
    description = PLAIN
    for what, name, number in changes:
        before = description
        if what == "require":
            description = before.requiring(number, min(number, 2), name)
        elif what == "grow":
            description = before.grown(name, number)
        else:
            description = before.zoned(name, ["", "north", "south"][number])
        after = description.requirements()
        for partition, required in before.requirements().items():
            assert after[partition].version >= required.version
            assert (after[partition].version == required.version) == (after[partition] == required)
    assert ClusterDescription.decode(description.encode()) == description


def test_two_demands_are_met_by_the_larger_of_each() -> None:
    assert Demand(4, 2, 2).with_other(Demand(7, 3, 0)) == (7, 3, 2)
    assert Demand(4, 2, 2).with_other(None) == (4, 2, 2)
