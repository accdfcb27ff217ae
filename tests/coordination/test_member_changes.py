"""What operators may ask for, who is a member, and for how long the silent are waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.file import coordinator_in
from polonaise.coordination.lease import LEASE_S, RENEW_S, Leases
from polonaise.coordination.memberchanges import (
    COPIES_MAX,
    Move,
    balance,
    cancelled,
    check_unneeded,
    with_copy,
    without_copy,
)
from polonaise.coordination.patience import AnswerPatience, HostTrials
from polonaise.coordination.values import (
    ClusterDescription,
    Engagement,
    HeadReset,
    PartitionValue,
    Registration,
    Requirement,
)
from polonaise.errors import BadOption, ChangePending, CopyNeeded, PolonaiseError, UnknownStorageNode
from polonaise.host import Host
from rigs.coordinator import DESCRIPTION, Scene, in_a_scene

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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_member_that_renews_is_one_however_long_it_takes() -> None:
    leases = Leases()
    for look in range(100):
        assert not leases.has_run_out(1, look, look * RENEW_S)


def test_a_member_that_renews_nothing_is_none_after_the_time_of_a_lease_and_is_one_again_when_it_does() -> None:
    leases = Leases()
    told = [leases.has_run_out(1, 7, look * RENEW_S / 2) for look in range(20)]
    out = told.index(True)
    assert LEASE_S <= out * RENEW_S / 2 <= LEASE_S + RENEW_S
    assert all(told[out:])
    assert not leases.has_run_out(1, 8, 20.0)


def test_who_was_stopped_itself_takes_nobody_for_dead() -> None:
    leases = Leases()
    assert not leases.has_run_out(1, 7, 0.0)
    assert not leases.has_run_out(1, 7, 3600.0)
    assert not leases.has_run_out(1, 8, 3600.1)


def test_the_lease_of_a_member_that_is_gone_is_forgotten() -> None:
    leases = Leases()
    for look in range(10):
        leases.has_run_out(1, 7, float(look))
    leases.keep_only([2])
    assert not leases.has_run_out(1, 7, 10.0)


@pytest.mark.parametrize("how", ["stopped", "hanging"])
@in_a_scene
async def test_a_member_in_a_directory_that_works_no_more(scene: Scene, *, how: str) -> None:
    """Stopped: its whole process. Hanging: only what renews; its process, and its locks, are as alive as before."""
    works = asyncio.Event()
    works.set()

    async def main(host: Host) -> None:
        coordinator = coordinator_in(host, "data/coordinator")
        await coordinator.initialize(DESCRIPTION)
        membership = await coordinator.register(Registration(1, "a:1"))
        while True:
            await works.wait()
            await membership.renew()
            await asyncio.sleep(RENEW_S)

    process = scene.machine.start(main)
    await asyncio.sleep(1.0)
    observer = await scene.open()

    async def seen(seconds: float) -> list[int]:
        for _ in range(int(seconds)):
            await observer.members()
            await asyncio.sleep(1.0)
        return [member.server for member in await observer.members()]

    assert await seen(3 * LEASE_S) == [1]
    if how == "stopped":
        process.pause()
    else:
        works.clear()
    assert await seen(LEASE_S - RENEW_S - 1) == [1], "not before its time"
    assert await seen(LEASE_S) == []
    if how == "stopped":
        process.resume()
    works.set()
    assert await seen(2.0) == [1], "it goes on"
    process.crash()
    assert await seen(1.0) == []
    assert not [name for name in scene.names() if name.startswith("members/1")], "nothing of it is left"


def test_quick_answers_keep_the_patience_short() -> None:
    patience = AnswerPatience(1.0, 4.0)
    for _ in range(100):
        patience.answered(0.01)
    assert patience.seconds == 1.0


def test_the_patience_grows_with_what_answers_take_and_stays_grown_while_they_do() -> None:
    """With a disk that takes 1.5 s for a sync, a server is left once or twice, and not for ever."""
    patience = AnswerPatience(1.0, 4.0)
    for _ in range(50):
        patience.answered(0.01)
    left = 0
    for _ in range(50):
        if patience.seconds < 1.5:
            patience.gave_up()
            left += 1
        else:
            patience.answered(1.5)
    assert left <= 2


def test_the_patience_grows_when_nothing_comes_and_is_short_again_after_some_quick_answers() -> None:
    patience = AnswerPatience(1.0, 4.0)
    waits = []
    for _ in range(4):
        waits.append(patience.seconds)
        patience.gave_up()
    assert waits == [1.0, 2.25, 4.0, 4.0]
    patience = AnswerPatience(1.0, 4.0)
    patience.gave_up()
    for _ in range(12):
        patience.answered(0.01)
    assert patience.seconds == 1.0


def test_a_silent_server_is_left_out_while_others_end_connections_and_for_longer_each_time() -> None:
    trials = HostTrials()
    servers = ["a", "b", "c"]
    assert trials.order(servers, 0.0) == servers
    trials.silent("a", 0.0)
    trials.spoke("b")
    assert trials.order(servers, 0.1) == ["b", "c"]
    assert trials.order(servers, HostTrials.LEFT_OUT_S) == servers
    trials.silent("a", 10.0)
    assert trials.order(servers, 10.0 + HostTrials.LEFT_OUT_S) == ["b", "c"]
    trials.spoke("a")
    assert trials.order(servers, 10.1) == servers


def test_all_are_tried_when_all_are_silent_and_the_one_that_was_so_first_goes_first() -> None:
    trials = HostTrials()
    for now_s, server in enumerate(["c", "a", "b"]):
        trials.silent(server, float(now_s) / 10)
    assert trials.order(["a", "b", "c"], 0.3) == ["c", "a", "b"]


def test_a_silent_server_is_tried_last_when_nobody_listens_at_the_others() -> None:
    trials = HostTrials()
    trials.silent("a", 0.0)
    trials.refused("b")
    assert trials.order(["a", "b"], 0.1) == ["b", "a"], "it may be slow, and the only one that runs"
    trials.spoke("b")
    assert trials.order(["a", "b"], 0.1) == ["b"]


def test_a_server_that_is_not_named_any_more_is_forgotten() -> None:
    trials = HostTrials()
    trials.silent("a", 0.0)
    assert trials.order(["b"], 0.1) == ["b"]
    assert trials.order(["a", "b"], 0.1) == ["a", "b"]
