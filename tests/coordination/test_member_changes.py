"""What operators may ask for: one change at a time, no copy that is needed, and copies that are spread evenly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.memberchanges import (
    COPIES_MAX,
    Move,
    balance,
    cancelled,
    check_unneeded,
    with_copy,
    without_copy,
)
from polonaise.coordination.requirement import Requirement
from polonaise.coordination.values import ClusterDescription, Engagement, HeadReset, PartitionValue
from polonaise.errors import BadOption, ChangePending, CopyNeeded, PolonaiseError, UnknownStorageNode

NODES = ClusterDescription(bytes(16), 1, tuple("ABCDE"), copies=3)


def partition(members: str, in_sync: str | None = None, following: str | None = None) -> PartitionValue:
    engaged = members if in_sync is None else in_sync
    engagements = {name: Engagement(7) if name in engaged else Engagement(6, 40) for name in members}
    return PartitionValue(1, 7, tuple(members), None if following is None else tuple(following), engagements)


def test_a_copy_that_is_added_is_asked_for_and_is_no_member_yet() -> None:
    asked = with_copy(partition("ABC"), NODES, "D")
    assert (asked.members, asked.next) == (tuple("ABC"), tuple("ABCD"))
    assert cancelled(asked) == partition("ABC")


@pytest.mark.parametrize(
    ("value", "description", "name", "error", "says"),
    [
        (partition("ABC"), NODES, "F", UnknownStorageNode, "storage add"),
        (partition("ABC"), NODES, "C", BadOption, "has a copy"),
        (partition("ABC"), NODES.drained("D"), "D", BadOption, "being drained"),
        (partition("ABC", following="ABCE"), NODES, "D", ChangePending, "A, B, C, E already"),
        (
            partition("ABCDEFGHI"),
            ClusterDescription(bytes(16), 1, tuple("ABCDEFGHIJ")),
            "J",
            BadOption,
            f"{COPIES_MAX} copies",
        ),
    ],
)
def test_a_copy_that_can_not_be_added(
    value: PartitionValue, description: ClusterDescription, name: str, error: type[PolonaiseError], says: str
) -> None:
    with pytest.raises(error, match=says):
        with_copy(value, description, name)


def test_a_copy_that_may_be_needed_is_not_emptied() -> None:
    check_unneeded(partition("ABC"), "D", 3)
    with pytest.raises(CopyNeeded, match="2 are in sync"):
        check_unneeded(partition("AB"), "D", 3)
    with pytest.raises(CopyNeeded, match="0 are in sync"):  # a session that is being started, and may never be
        check_unneeded(replace(partition("ABC"), session=8), "D", 3)
    with pytest.raises(CopyNeeded, match="one of the partition's copies"):
        check_unneeded(partition("ABC"), "C", 3)
    with pytest.raises(CopyNeeded, match="2 are in sync: that on D may be needed"):
        check_unneeded(partition("ABC", in_sync="AB"), "D", 3)
    with pytest.raises(ChangePending, match="A, B, C, D already"):
        check_unneeded(partition("ABC", following="ABCD"), "D", 3)
    resetting = replace(partition("ABC"), resets=(HeadReset(4, "A", 9, 0),))
    assert resetting.resets[0].is_pending
    with pytest.raises(ChangePending, match="is being reset"):
        check_unneeded(resetting, "D", 3)


def test_removing_a_needed_copy_is_refused_and_the_refusal_says_what_would_be_lost() -> None:
    assert without_copy(partition("ABCD"), "A", 3).next == tuple("BCD")
    with pytest.raises(CopyNeeded, match="2 copies in sync"):
        without_copy(partition("ABC"), "A", 3)
    with pytest.raises(CopyNeeded, match=r"--force it would survive the loss of 0 of them without a pause, and 1"):
        without_copy(partition("ABCD", in_sync="ABC"), "A", 3, force=False)
    with pytest.raises(CopyNeeded, match=r"loss of 1 of them without a pause, and 2 without losing"):
        without_copy(partition("ABCDE"), "A", 5, force=False)  # a commit is on 3 of the 4 that are left
    with pytest.raises(CopyNeeded, match=r"in sync again$"):  # to who has no such option
        without_copy(partition("ABC"), "A", 3)
    assert without_copy(partition("ABCD", in_sync="BCD"), "A", 3).next == tuple("BCD"), "a dead one is not needed"
    assert without_copy(partition("ABC"), "A", 3, force=True).next == tuple("BC")


@pytest.mark.parametrize("value", [partition("A"), partition("AB", in_sync="A")])
def test_the_last_copy_in_sync_is_not_removed_by_force(value: PartitionValue) -> None:
    with pytest.raises(CopyNeeded, match="last copy"):
        without_copy(value, "A", 1, force=True)


def test_nothing_is_removed_while_a_change_is_pending_or_where_there_is_no_copy() -> None:
    with pytest.raises(ChangePending, match="cancel-change"):
        without_copy(partition("ABCD", following="BCD"), "B", 2)
    with pytest.raises(UnknownStorageNode, match="no copy"):
        without_copy(partition("ABC"), "D", 2)


# ------------------------------------------------------------------ balance


@st.composite
def clusters(draw: st.DrawFn, *, zoned: bool) -> tuple[ClusterDescription, dict[int, tuple[str, ...]]]:
    count = draw(st.integers(1, 8))
    names = tuple("ABCDEFGH"[:count])
    draining = draw(st.sets(st.sampled_from(names), max_size=count - 1))
    copies = draw(st.integers(1, min(5, count - len(draining))))
    zones = {name: draw(st.sampled_from("xyz")) for name in names} if zoned else {}
    held = st.sets(st.sampled_from((*names, "gone")), min_size=1).map(lambda some: tuple(sorted(some)))
    members = draw(st.dictionaries(st.integers(0, 30), held, max_size=20))
    return ClusterDescription(bytes(16), 31, names, {}, zones, copies, tuple(sorted(draining))), members


def after(members: dict[int, tuple[str, ...]], moves: list[Move]) -> dict[int, set[str]]:
    placed = {number: {*names} for number, names in members.items()}
    for move in moves:
        if move.target is not None:
            assert move.target not in placed[move.partition]
            placed[move.partition].add(move.target)
        if move.source is not None:
            placed[move.partition].remove(move.source)
    return placed


@given(clusters(zoned=False))
def test_balanced_copies_are_as_many_as_asked_for_and_nodes_have_equally_many(
    given: tuple[ClusterDescription, dict[int, tuple[str, ...]]],
) -> None:
    description, members = given
    moves = balance(description, members)
    placed = after(members, moves)
    usable = [name for name in description.storage if name not in description.draining]
    loads = Counter(name for names in placed.values() for name in names)
    assert all(len(names) == description.replication_factor for names in placed.values())
    assert {*loads} <= {*usable}
    assert max(loads[name] for name in usable) - min(loads[name] for name in usable) <= 1
    assert moves == balance(description, members)
    assert balance(description, {number: tuple(sorted(names)) for number, names in placed.items()}) == []


@given(clusters(zoned=True))
def test_balanced_copies_are_in_as_many_zones_as_can_be(
    given: tuple[ClusterDescription, dict[int, tuple[str, ...]]],
) -> None:
    description, members = given
    usable = [name for name in description.storage if name not in description.draining]
    most = min(len({description.zones[name] for name in usable}), description.replication_factor)
    for names in after(members, balance(description, members)).values():
        assert len({description.zones[name] for name in names}) == most


def test_a_new_node_takes_its_share_and_nothing_else_moves() -> None:
    members = {number: tuple("ABC") for number in range(8)}
    moves = balance(replace(NODES, storage=tuple("ABCD")), members)
    assert {move.target for move in moves} == {"D"}
    assert len(moves) == 6
    assert Counter(move.source for move in moves) == Counter("AABBCC")


def test_too_few_nodes_are_told() -> None:
    with pytest.raises(BadOption, match="2 storage nodes left for 3 copies"):
        balance(replace(NODES, storage=tuple("ABC")).drained("A"), {0: tuple("ABC")})


def test_a_copy_that_commits_need_is_not_removed_even_with_force() -> None:
    zones = {"A": "north", "B": "north", "C": "south"}
    copies, spread = Requirement(1, copies=3), Requirement(1, copies=2, zones=2, zone_of=zones)
    with pytest.raises(CopyNeeded, match="3 copies are required, and 2 can be had"):
        without_copy(partition("ABC"), "A", 1, required=copies, force=True)
    with pytest.raises(CopyNeeded, match="copies in 2 zones are required, and 1 can be had"):
        without_copy(partition("ABC"), "C", 1, required=spread, force=True)
    assert without_copy(partition("ABC"), "A", 2, required=spread).next == tuple("BC")


def test_a_zone_that_comes_or_goes_with_a_node_gives_the_requirement_another_number() -> None:
    described = ClusterDescription.new(bytes(16), 1, {"A": "a:1", "B": "b:1"}).requiring(2, 0)
    assert described.with_node("C", "c:1").required == (1, 2, 0)
    zoned = described.with_node("C", "c:1", "north")
    assert zoned.required == (2, 2, 0)
    assert zoned.requirements()[0] == Requirement(2, 2, 0, {"C": "north"})
    assert zoned.without_node("C").required == (3, 2, 0)
