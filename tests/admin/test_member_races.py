"""Operators who change the members at the same time: each of them is told what became of the change, and none spins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.copymoves import CopyMoves
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import remove_storage
from polonaise.coordination.memberchanges import Move
from polonaise.coordination.values import ClusterDescription, Engagement, PartitionValue, Versioned
from polonaise.errors import BadOption, CoordinatorUnavailable, CopyNeeded, PolonaiseError, UnknownStorageNode
from polonaise.host.real import RealClock
from polonaise.node.condition import condition_of
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.memberwatch import MemberWatch
from polonaise.server.requirements import Requirements
from polonaise.server.settings import ServerSettings

FOUR = ClusterDescription(bytes(16), 1, tuple("ABCD"), copies=3)


class Values:
    """A coordinator in memory. What others do is done before a read or a write of the operator, once."""

    trouble = ""

    def __str__(self) -> str:
        return "the one of this test"

    def __init__(self, description: ClusterDescription, members: str) -> None:
        engagements = {name: Engagement(7) for name in "ABCD"}
        self.held = PartitionValue(1, 7, tuple(members), None, engagements)
        self.described = description
        self.version = 0
        self.before_write: Callable[[ClusterDescription], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None

    def become(self, description: ClusterDescription) -> None:
        self.described, self.version = description, self.version + 1

    async def ask_first(self) -> None:
        """Its nodes believe it."""

    async def description(self) -> Versioned[ClusterDescription]:
        return Versioned(self.version, self.described)

    async def set_description(self, value: ClusterDescription, version: int) -> Versioned[ClusterDescription] | None:
        self.before_write(value)
        if version != self.version:
            return None
        self.become(value)
        return Versioned(self.version, value)

    async def partition(self, _: int) -> Versioned[PartitionValue]:
        return Versioned(0, self.held)

    async def set_partition(self, _: int, value: PartitionValue, __: int) -> Versioned[PartitionValue]:
        self.held = value
        self.on_change()
        return Versioned(0, value)

    def edits(self) -> MemberEdits:
        return MemberEdits(self, 1.0)  # type: ignore[arg-type]

    def moves(self, lines: list[str] | None = None, step_s: float = 1.0) -> CopyMoves:
        def now_s() -> float:
            return asyncio.get_running_loop().time()

        host: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_s=now_s))
        told = [] if lines is None else lines
        return CopyMoves(host, self.edits(), step_s=step_s, timeout_s=1.0, report=lambda _, line: told.append(line))

    def after_each_change(self, do: Callable[[], None]) -> None:
        """Have the owner, or another operator, do this a moment after each change that is asked for."""

        def soon() -> None:
            asyncio.get_running_loop().call_soon(do)

        self.on_change = soon

    def made(self) -> None:
        """Make the change that is asked for, as the partition's owner does."""
        self.held = replace(self.held, members=self.held.next or self.held.members, next=None)

    def once(self, do: Callable[[], None]) -> None:
        def first(_: ClusterDescription) -> None:
            self.before_write = lambda _: None
            do()

        self.before_write = first


def test_a_node_that_is_none_of_the_cluster_is_not_drained() -> None:
    with pytest.raises(UnknownStorageNode):
        FOUR.drained("E")


@pytest.mark.parametrize("command", ["remove", "drain"])
async def test_a_node_that_another_operator_removes_meanwhile_is_not_marked(command: str) -> None:
    values = Values(FOUR, "ABC")
    values.once(lambda: values.become(FOUR.without_node("D")))
    with pytest.raises(UnknownStorageNode):
        await (remove_storage(values.edits(), "D") if command == "remove" else values.moves().drain("D"))
    assert values.described == FOUR.without_node("D")


async def test_of_two_drains_at_once_the_second_is_refused_if_too_few_nodes_are_left() -> None:
    values = Values(FOUR, "ABC")
    values.once(lambda: values.become(FOUR.drained("B")))
    with pytest.raises(CopyNeeded, match="add another one first"):
        await values.moves().drain("A")
    assert values.described.draining == ("B",)


async def test_removing_a_node_below_the_number_of_copies_marks_nothing() -> None:
    three = replace(FOUR, storage=tuple("ABC"))
    values = Values(three, "AB")
    with pytest.raises(CopyNeeded, match="add another one first"):
        await remove_storage(values.edits(), "C")
    assert values.described == three


async def test_a_drain_whose_mark_another_operator_takes_away_ends() -> None:
    values = Values(FOUR, "ABC")
    values.on_change = lambda: values.become(FOUR)
    moves = values.moves()

    async def lost(*_: Any) -> list[Move]:
        values.become(FOUR)
        return []

    moves.carry_out = lost  # type: ignore[method-assign]
    with pytest.raises(BadOption, match="not being drained any more"):
        async with asyncio.timeout(5):
            await moves.drain("A")


async def test_a_node_that_is_used_again_meanwhile_is_not_removed() -> None:
    values = Values(FOUR.drained("D"), "ABC")
    values.once(lambda: values.become(FOUR))
    with pytest.raises(BadOption, match="not being drained any more"):
        await remove_storage(values.edits(), "D")
    assert values.described == FOUR


@pytest.mark.parametrize("command", ["add", "remove"])
async def test_a_change_that_another_operator_cancels_is_no_success(command: str) -> None:
    values = Values(replace(FOUR, copies=2), "ABC")

    def cancel() -> None:
        values.held = replace(values.held, next=None)

    values.after_each_change(cancel)
    with pytest.raises(BadOption, match="was cancelled by another operator"):
        await (values.moves().add(0, "D") if command == "add" else values.moves().remove(0, "A"))


@pytest.mark.slow
async def test_a_coordinator_that_falls_silent_ends_the_wait_for_a_change() -> None:
    values: Any = Values(replace(FOUR, copies=2), "ABC")

    async def silent() -> Any:
        await asyncio.Event().wait()

    values.assignment = silent
    async with asyncio.timeout(30):
        with pytest.raises(
            CoordinatorUnavailable, match="the coordinator, the one of this test, did not answer within 1 s"
        ):
            await values.moves().remove(0, "A")


async def test_a_change_that_was_made_is_a_success_though_another_has_begun() -> None:
    values = Values(FOUR, "ABC")

    def made() -> None:
        values.held = replace(values.held, members=tuple("ABCD"), next=tuple("BCD"))

    values.after_each_change(made)
    async with asyncio.timeout(5):
        await values.moves().add(0, "D")
    assert values.held.next == tuple("BCD"), "the other operator's change is left to its own command"


async def test_a_copy_that_has_been_moved_already_is_a_success() -> None:
    await Values(FOUR, "BCD").moves().replace(0, "A", "D")
    with pytest.raises(BadOption, match="no copy on A"):
        await Values(FOUR, "BC").moves().replace(0, "A", "D")
    with pytest.raises(UnknownStorageNode, match="no storage node 'X'"):
        await Values(FOUR, "BCD").moves().replace(0, "X", "D")


async def test_a_copy_does_not_move_to_a_node_that_has_one_if_the_partition_has_none_to_spare() -> None:
    values = Values(FOUR, "ABC")
    with pytest.raises(BadOption, match=r"B has a copy of the partition, and without A .* 2 of the 3"):
        await values.moves().replace(0, "A", "B")
    values.held = replace(values.held, members=("A",))
    with pytest.raises(BadOption, match=r"has 1 of the 3 copies .* none can be spared"):
        await values.moves().replace(0, "A", "B")
    assert values.held.next is None, "nothing was asked for"


async def test_a_move_that_was_broken_off_after_its_first_step_goes_on() -> None:
    values = Values(FOUR, "ABCD")
    values.after_each_change(values.made)
    async with asyncio.timeout(5):
        await values.moves().replace(0, "A", "D")
    assert values.held.members == tuple("BCD")


async def test_a_copy_that_another_operator_has_removed_is_removed() -> None:
    values = Values(replace(FOUR, copies=2), "ABC")
    moves = values.moves()

    def gone() -> None:
        values.held = replace(values.held, members=tuple("BC"))

    refused = values.edits().remove_copy

    async def after_another(partition: int, name: str, *, force: bool = False) -> PartitionValue:
        gone()
        return await refused(partition, name, force=force)

    moves._edits.remove_copy = after_another  # type: ignore[method-assign]
    await moves.carry_out([Move(0, "A", None)])
    assert values.held.members == tuple("BC")


async def test_a_move_whose_source_another_operator_has_emptied_adds_no_copy() -> None:
    values = Values(FOUR, "BCD")
    await values.moves().carry_out([Move(0, "A", "B"), Move(0, "A", "D")])
    assert (values.held.members, values.held.next) == (tuple("BCD"), None)


@pytest.mark.slow
async def test_copies_are_spread_although_the_node_that_was_to_get_one_is_drained_meanwhile() -> None:
    five = ClusterDescription(bytes(16), 1, tuple("ABCDE"), copies=3, draining=("A",))
    values = Values(five, "ABC")
    values.held = replace(values.held, engagements={name: Engagement(7) for name in "ABCDE"})
    drained: list[str] = []

    def change() -> None:
        if not drained and values.held.next is not None:
            (target,) = {*values.held.next} - {*values.held.members}
            drained.append(target)
            values.become(values.described.drained(target))  # by another operator, a moment later
        else:
            asyncio.get_running_loop().call_soon(values.made)

    values.on_change = change
    moves: list[Move] = []
    async with asyncio.timeout(10):
        await values.moves().spread(moves.append)
    assert len(values.held.members) == 3
    assert not {*values.held.members} & {"A", *drained}


@pytest.mark.slow
async def test_a_drain_leaves_no_copy_too_many_that_another_operator_has_moved_at_the_same_time() -> None:
    five = ClusterDescription(bytes(16), 1, tuple("ABCDE"), copies=3)
    values = Values(five, "ABC")
    values.held = replace(values.held, engagements={name: Engagement(7) for name in "ABCDE"})

    def change() -> None:
        members = values.held.next or values.held.members
        if "A" in values.held.members and "A" not in members:
            members = tuple(dict.fromkeys((*members, "D", "E")))  # the other's move has got its copy by now
        values.held = replace(values.held, members=members, next=None)

    values.after_each_change(change)
    async with asyncio.timeout(10):
        await values.moves().drain("A")
    assert len(values.held.members) == 3
    assert "A" not in values.held.members


@pytest.mark.parametrize(
    ("target", "told"),
    [("D", "without zone east"), ("E", ""), (None, "without zone east or south")],
    ids=["the zone of another copy", "a zone of its own", "no other copy"],
)
async def test_what_a_partition_would_have_none_to_spare_of_is_told_before_a_copy_moves(
    target: str | None, told: str
) -> None:
    zones = dict(zip("ABCDE", ("north", "east", "south", "east", "west"), strict=True))
    values = Values(replace(FOUR, storage=tuple("ABCDE"), zones=zones), "ABC")
    lost = await values.moves().spare_lost(0, "A", target)
    assert (told in lost) if told else not lost


@pytest.mark.slow
async def test_what_is_done_is_told_once_and_what_is_refused_never() -> None:
    values = Values(FOUR, "ABC")
    lines: list[str] = []
    for refused, node in (("add", "E"), ("remove", "E"), ("remove", "A")):
        with pytest.raises(PolonaiseError):
            await getattr(values.moves(lines), refused)(0, node)
    assert lines == []
    values.held = replace(values.held, engagements={name: Engagement(7) for name in "ABC"})

    def made() -> None:
        engaged = dict(values.held.engagements)
        values.made()
        if "D" not in engaged:  # the new copy catches up, while the removal is tried again and again
            caught_up = replace(values.held, engagements={**engaged, "D": Engagement(8)})
            asyncio.get_running_loop().call_later(0.7, lambda: setattr(values, "held", caught_up))

    values.after_each_change(made)
    async with asyncio.timeout(5):
        await values.moves(lines, step_s=4.0).replace(0, "A", "D")
    assert [line.split(":")[0] for line in lines] == ["adding a copy on D", "waits", "removing the copy on A"]


def test_damage_on_a_node_that_gave_its_copy_up_is_no_trouble_of_the_partition() -> None:
    damage = {"partition": 0, "what": "rot", "repaired_us": 0}
    node = {"connected": True, "error": "", "scrub": {"damages": [damage]}}
    health = {"ready": True, "engaged": ["A"], "members": ["A"], "committed": 1, "generation": 1}
    condition = condition_of(0, {"server": 1, "storage": {"A": node, "B": node}}, health)
    assert list(condition.scrub) == ["A"]


def _watch(clock: RealClock, settings: Any, partitions: Any, trouble: CoordinatorTrouble) -> MemberWatch:
    coordinator = SimpleNamespace(trouble="")
    none: Any = None
    shared: Any = SimpleNamespace(
        host=SimpleNamespace(clock=clock), coordinator=coordinator, settings=settings, links=None, trouble=trouble
    )
    return MemberWatch(shared, partitions, none)


async def test_members_that_can_not_be_read_are_told_of_until_all_can_be_or_none_are_owned() -> None:
    trouble, answers = CoordinatorTrouble(RealClock()), dict[int, bool | PolonaiseError | None]()

    def served(partition: int) -> Any:
        async def look() -> bool:
            answer = answers[partition]
            if isinstance(answer, PolonaiseError):
                raise answer
            return bool(answer if answer is not None else await asyncio.Event().wait())

        return SimpleNamespace(partition=partition, look=look, members_change=False)

    partitions = {0: served(0), 1: served(1)}
    settings: Any = SimpleNamespace(coordinator_s_max=0.01, members_looks_per_s=1e6, members_hurry_per_s=1e6)
    watch = _watch(RealClock(), settings, partitions, trouble)
    error = CoordinatorUnavailable("gone")
    for first, second, failing in (
        (error, True, True),  # what is read later does not hide it
        (False, False, True),  # nothing was read: nothing is known
        (True, False, False),
        (None, True, True),  # no answer in time
    ):
        answers.update({0: first, 1: second})
        await watch._look_at_all()
        assert bool(str(trouble)) == failing, (first, second)
    partitions.clear()
    await watch._look_at_all()
    assert not str(trouble)


class Clock(RealClock):
    """A clock that a test moves on."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


async def test_looks_are_slow_until_members_or_the_description_change_and_hurried_for_a_minute_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def look() -> bool:
        return True

    partitions: Any = {number: SimpleNamespace(look=look, members_change=False) for number in range(3)}
    clock = Clock()
    watch = _watch(clock, ServerSettings(), partitions, CoordinatorTrouble(RealClock()))
    monkeypatch.setattr("polonaise.server.memberwatch.asyncio.sleep", pause)

    async def looked() -> list[float]:
        pauses.clear()
        await watch._look_at_all()
        return pauses.copy()

    slow, fast = 1 / ServerSettings().members_looks_per_s, 1 / ServerSettings().members_hurry_per_s
    assert await looked() == [slow] * 3
    partitions[1].members_change = True
    assert await looked() == [slow, fast, fast], "hurried from the change that was found on"
    partitions[1].members_change = False
    clock.now_s = 59.0
    assert await looked() == [fast] * 3
    clock.now_s = 61.0
    assert await looked() == [slow] * 3
    watch.hurry()
    assert await looked() == [fast] * 3


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_server_hurries_when_the_description_has_changed_and_not_when_nothing_has() -> None:
    values, told = Values(FOUR, "ABC"), list[str]()
    changes: asyncio.Queue[None] = asyncio.Queue()

    async def description_changed(version: int) -> None:
        await changes.get()

    read: Any = SimpleNamespace(description=values.description, description_changed=description_changed)
    requirements = Requirements(read, await values.description())
    following = asyncio.ensure_future(
        requirements.follow(lambda: told.append("description"), lambda: told.append("requirement"))
    )
    changes.put_nowait(None)  # a wake-up without a change, as after a long time without one
    await settled()
    assert told == []
    values.become(FOUR.drained("D"))
    changes.put_nowait(None)
    await settled()
    assert told == ["description"]
    following.cancel()
