"""What is required of topics, as values: the stronger of cluster and topic counts, and numbers only rise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.requirement import Demand, Requirement
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import CoordinatorDamaged, UnknownTopic

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
