"""A partition that has fewer copies than it is to have is told as such, with what to do."""

from __future__ import annotations

from typing import Any

from polonaise.node.condition import HealthStatus, condition_of, health_status_of


def troubles(members: list[str], *, due: int | None = 3, nodes: str = "abc", next: str = "") -> list[str]:
    """What is wrong with a partition all of whose members are engaged."""
    node = {"error": "", "connected": True}
    answer: dict[str, Any] = {"server": 1, "storage": dict.fromkeys(nodes, node)}
    if due is not None:
        answer["replication_factor"] = due
    health = {"ready": True, "engaged": members, "committed": 3, "generation": 1, "waits_for": ""}
    condition = condition_of(0, answer, {**health, "members": members, "next": list(next) or None})
    assert health_status_of([condition]) == (HealthStatus.DEGRADED if condition.troubles else HealthStatus.OK)
    return condition.troubles


def test_one_copy_of_three_is_too_few_and_one_of_one_is_enough() -> None:
    (trouble,) = troubles(["a"])
    assert trouble.startswith("the partition has 1 of the 3 copies that it is to have: ")
    assert "`polonaise storage balance`" in trouble
    assert troubles(["a"], due=1, nodes="a") == [], "as in an embedded log without other disks"


def test_enough_copies_or_one_too_many_during_a_move_are_no_trouble() -> None:
    assert troubles(["a", "b", "c"]) == []
    assert troubles(["a", "b", "c", "d"], nodes="abcd", next="bcd") == []
    assert troubles(["a", "b", "c"], nodes="abcd", next="abcd") == []


def test_a_copy_too_many_that_nobody_removes_is_told() -> None:
    (trouble,) = troubles(["a", "b", "c", "d"], nodes="abcd")
    assert "has 4 copies, and is to have 3" in trouble
    assert "polonaise storage balance" in trouble


def test_a_copy_that_is_being_added_is_told_in_place_of_what_to_do() -> None:
    assert troubles(["a"], next="ab") == [
        "the partition has 1 of the 3 copies that it is to have: one more is being added"
    ]


def test_without_as_many_storage_nodes_as_copies_a_node_is_to_be_added_first() -> None:
    (trouble,) = troubles(["a", "b"], nodes="ab")
    assert "the cluster has 2 storage nodes: add one" in trouble


def test_a_server_of_an_older_version_tells_nothing_to_judge_by() -> None:
    assert troubles(["a"], due=None) == []


def test_a_copy_that_is_being_added_and_has_nothing_yet_says_so() -> None:
    answer = {"server": 1, "storage": {name: {"error": "", "connected": True} for name in "ab"}}
    health = {"ready": True, "engaged": ["a"], "committed": 3, "generation": 1, "waits_for": "", "members": ["a"]}
    for last, reached in ((None, "nothing copied yet"), (-1, "nothing copied yet"), (0, "copied up to 0")):
        condition = condition_of(0, answer, {**health, "next": ["a", "b"], "added": {"b": (last, "")}})
        assert condition.change == f"adding b: {reached}"
