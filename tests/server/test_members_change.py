"""Members of a partition change while clients append: copies are added, moved off a node, and removed, and none that
is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from polonaise.admin.copymoves import CopyMoves
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import Cleaned, add_storage, clean_storage, remove_storage
from polonaise.client.log import Log
from polonaise.coordination.memberchanges import in_sync
from polonaise.coordination.values import PartitionValue
from polonaise.errors import (
    BadOption,
    ChangePending,
    CoordinatorUnavailable,
    CopyNeeded,
    DeadlineExceeded,
    UnknownStorageNode,
)
from polonaise.node.condition import HealthStatus, conditions_in, health_status_of
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.monitoring.samples import Detail
from polonaise.node.reasons import Condition
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until

T = TypeVar("T")
TIMEOUT_S = 2.0


async def edited(town: Town, do: Callable[[MemberEdits], Awaitable[T]]) -> T:
    return await town.operator(lambda _, coordinator: do(MemberEdits(coordinator, TIMEOUT_S)))


async def moved(town: Town, do: Callable[[CopyMoves], Awaitable[T]], lines: list[str], step_s: float = 60.0) -> T:
    def report(partition: int | None, line: str) -> None:
        lines.append(f"{partition}: {line}")

    return await town.operator(
        lambda host, coordinator: do(
            CopyMoves(host, MemberEdits(coordinator, TIMEOUT_S), step_s=step_s, timeout_s=TIMEOUT_S, report=report)
        )
    )


async def added(town: Town, number: int) -> None:
    name = town.name(number)
    town.cluster.named_nodes = True
    outcome = await town.operator(
        lambda host, coordinator: add_storage(host, MemberEdits(coordinator, TIMEOUT_S), name, name, "", TIMEOUT_S)
    )
    assert outcome.changed


def members(town: Town, partition: int = 0) -> list[str]:
    return list(town.cluster.partition_value(partition).members)


class Appending:
    """An application that appends all the time. Nothing of it may fail."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self.count = 0
        self._done = False

    async def __aenter__(self) -> Appending:
        self._task = asyncio.create_task(self._town.application("writer", self._run))
        await wait_until(lambda: self.count > 3)
        return self

    async def _run(self, log: Log) -> None:
        while not self._done:
            for partition in range(self._town.cluster.knobs.partitions):
                await log.append(b"%d" % self.count, partition)
            self.count += 1
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_: object) -> None:
        before = self.count
        await wait_until(lambda: self.count > before + 3)
        self._done = True
        await self._task


@in_a_town(spares=1)
async def test_a_copy_moves_to_an_added_node_while_appends_go_on(town: Town) -> None:
    lines: list[str] = []
    first, new = town.name(0), town.name(3)
    async with Appending(town) as appending:
        await added(town, 3)
        assert members(town) == [town.name(n) for n in range(3)], "it has no copies until it is given some"
        await moved(town, lambda moves: moves.replace(0, first, new), lines)
    assert members(town) == [town.name(n) for n in (1, 2, 3)]
    assert lines == [f"0: adding a copy on {new}", f"0: removing the copy on {first}"]
    assert await town.log() == [b"%d" % n for n in range(appending.count)]
    await moved(town, lambda moves: moves.replace(0, first, new), lines)
    assert lines[2:] == [f"0: the copy on {first} has been moved to {new} already"], "again: nothing is left to do"


@pytest.mark.slow
@in_a_town(spares=1, partitions=3)
async def test_a_drained_node_gives_up_all_copies_and_then_may_be_removed(town: Town) -> None:
    lines: list[str] = []
    old = town.name(1)
    async with Appending(town):
        with pytest.raises(CopyNeeded, match="drain it first"):
            await edited(town, lambda edits: remove_storage(edits, old))
        with pytest.raises(CopyNeeded, match="add another one first"):
            await moved(town, lambda moves: moves.drain(old), lines)
        assert not (await edited(town, lambda edits: edits.description())).value.draining, "nothing was changed"
        await added(town, 3)
        assert await moved(town, lambda moves: moves.drain(old), lines) == 3
        assert await moved(town, lambda moves: moves.drain(old), lines) == 0, "again: nothing is left to do"
        with pytest.raises(BadOption, match="is being drained"):
            await edited(town, lambda edits: edits.add_copy(0, old))
        await edited(town, lambda edits: remove_storage(edits, old))
    assert lines[0] == f"None: 3 copies are left on {old}"
    for partition in range(3):
        assert sorted(members(town, partition)) == [town.name(n) for n in (0, 2, 3)]
    await wait_until(lambda: old not in town.server.health()["storage"])
    with pytest.raises(UnknownStorageNode):
        await edited(town, lambda edits: remove_storage(edits, old))


async def cleaned(town: Town, name: str) -> list[Cleaned]:
    seen: list[Cleaned] = []
    await town.operator(
        lambda host, coordinator: clean_storage(
            host, MemberEdits(coordinator, TIMEOUT_S), name, TIMEOUT_S, TIMEOUT_S, seen.append
        )
    )
    return sorted(seen, key=lambda each: each.partition)


@pytest.mark.slow
@in_a_town(spares=1, partitions=2)
async def test_a_node_is_cleaned_of_copies_that_it_gave_up_and_of_no_others(town: Town) -> None:
    old, new = town.name(0), town.name(3)
    async with Appending(town) as appending:
        assert await cleaned(town, old) == [], "a member of every partition"
        await added(town, 3)
        await moved(town, lambda moves: moves.replace(1, old, new), [])
        (freed,) = await cleaned(town, old)
        assert (freed.partition, freed.trouble) == (1, "")
        assert freed.bytes > 0
        assert await cleaned(town, old) == [Cleaned(1, 0, "")], "again: nothing is left"
        assert await cleaned(town, new) == [], "partition 0 was never there"
        # What was emptied is filled again, and counts, when the node gets the copy back.
        await moved(town, lambda moves: moves.replace(1, new, old), [])
    for partition in range(2):
        assert await town.log(partition) == [b"%d" % n for n in range(appending.count)]


@in_a_town(spares=1)
async def test_a_copy_that_was_never_there_is_not_told_as_kept(town: Town) -> None:
    new = town.name(3)
    async with Appending(town):
        await added(town, 3)
        late = town.cluster.storage[1]
        held_down(late)
        await wait_until(lambda: len(in_sync(town.cluster.partition_value(0))) == 2)
        assert await cleaned(town, new) == []


@in_a_town(spares=1)
async def test_the_last_copy_is_kept_when_all_members_are_dead_and_no_session_starts(town: Town) -> None:
    old, new = town.name(0), town.name(3)
    async with Appending(town):
        await added(town, 3)
        await moved(town, lambda moves: moves.replace(0, old, new), [])
    members_of = [*town.cluster.storage[1:], *town.cluster.spares]
    for node in members_of:
        held_down(node)
    engaged = town.cluster.partition_value(0).session
    await wait_until(lambda: town.cluster.partition_value(0).session > engaged)
    (kept,) = await cleaned(town, old)
    assert (kept.bytes, "0 are in sync" in kept.trouble) == (0, True)


@in_a_town(spares=1)
async def test_a_copy_that_may_be_needed_is_kept(town: Town) -> None:
    old, new = town.name(0), town.name(3)
    async with Appending(town):
        await added(town, 3)
        await moved(town, lambda moves: moves.replace(0, old, new), [])
        late = town.cluster.storage[1]
        held_down(late)
        await wait_until(lambda: len(in_sync(town.cluster.partition_value(0))) == 2)
        (kept,) = await cleaned(town, old)
        assert (kept.bytes, kept.trouble.startswith("kept: "), "2 are in sync" in kept.trouble) == (0, True, True)
        await edited(town, lambda edits: edits.add_copy(0, old))
        (pending,) = await cleaned(town, old)
        assert (pending.bytes, "are being changed" in pending.trouble) == (0, True)


@in_a_town(spares=1)
async def test_a_dead_node_is_drained(town: Town) -> None:
    lines: list[str] = []
    dead = town.cluster.storage[2]
    async with Appending(town):
        await added(town, 3)
        held_down(dead)
        assert await moved(town, lambda moves: moves.drain(town.name(2)), lines) == 1
    assert members(town) == [town.name(n) for n in (0, 1, 3)]


@pytest.mark.slow
@in_a_town(spares=1)
async def test_a_node_is_drained_whose_partition_lacks_a_copy(town: Town) -> None:
    async with Appending(town):
        await added(town, 3)
        await moved(town, lambda moves: moves.remove(0, town.name(2), force=True), [])
        assert await moved(town, lambda moves: moves.drain(town.name(0)), []) == 1, "the one that it lacks is added"
    assert sorted(members(town)) == [town.name(n) for n in (1, 2, 3)]


@pytest.mark.slow
@in_a_town(spares=1)
async def test_a_drain_onto_a_dead_node_says_what_it_waits_for_and_ends_and_may_be_repeated(town: Town) -> None:
    lines: list[str] = []
    old, dead = town.name(0), town.cluster.spares[0]
    async with Appending(town):
        await added(town, 3)
        held_down(dead)
        with pytest.raises(DeadlineExceeded, match="which does not answer"):
            await moved(town, lambda moves: moves.drain(old), lines, step_s=12.0)
        assert any("storage-3" in line and "does not answer" in line for line in lines)
        assert members(town) == [town.name(n) for n in range(3)], "and the members go on without it"
        dead.let_up()
        assert await moved(town, lambda moves: moves.drain(old), lines) == 1
    assert members(town) == [town.name(n) for n in (1, 2, 3)]


@pytest.mark.slow
@in_a_town(spares=2)
async def test_of_two_operators_the_second_is_refused_while_a_change_is_pending_and_it_can_be_cancelled(
    town: Town,
) -> None:
    async with Appending(town):
        await added(town, 3)
        await added(town, 4)
        for node in town.cluster.spares:
            held_down(node)
        asked = await asyncio.gather(
            edited(town, lambda edits: edits.add_copy(0, town.name(3))),
            edited(town, lambda edits: edits.add_copy(0, town.name(4))),
            return_exceptions=True,
        )
        assert {type(each) for each in asked} == {ChangePending, PartitionValue}
        with pytest.raises(ChangePending, match="cancel-change"):
            await edited(town, lambda edits: edits.remove_copy(0, town.name(0), force=True))
        await time_passes(5)
        value = await edited(town, lambda edits: edits.cancel(0))
        assert (len(value.members), value.next) == (3, None)


@in_a_town(spares=1)
async def test_a_needed_copy_is_not_removed_and_the_members_stay(town: Town) -> None:
    async with Appending(town):
        with pytest.raises(CopyNeeded, match="2 copies in sync"):
            await edited(town, lambda edits: edits.remove_copy(0, town.name(0)))
    assert len(members(town)) == 3


@in_a_town()
async def test_a_partition_with_fewer_copies_than_it_is_to_have_is_not_well_until_they_are_added(town: Town) -> None:
    async def judged() -> Condition:
        return conditions_in(await town.server.checked_health())[0]

    async def under_replicated() -> float:
        seen = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
        return seen[metrics.UNDER_REPLICATED][0][1]

    async def well() -> bool:
        return not (await judged()).troubles

    async with Appending(town):
        await wait_until(well)
        assert await under_replicated() == 0
        for number in (0, 1):
            await moved(town, lambda moves, number=number: moves.remove(0, town.name(number), force=True), [])  # type: ignore[misc]

        async def lacking() -> bool:
            return len((await judged()).engaged) == 1

        await wait_until(lacking)
        (trouble,) = (await judged()).troubles
        assert trouble.startswith("the partition has 1 of the 3 copies that it is to have: ")
        assert "polonaise storage balance" in trouble
        assert "polonaise partition add-copy" in trouble
        assert health_status_of([await judged()]) == HealthStatus.DEGRADED, "all that there are are engaged"
        assert await under_replicated() == 1

        async def balanced(moves: CopyMoves) -> None:
            await moves.carry_out(await moves.balance())

        await moved(town, balanced, [])
        await wait_until(well)
        assert await under_replicated() == 0


@in_a_town(spares=1)
async def test_a_change_whose_answer_was_lost_is_read_again_and_begun(town: Town) -> None:
    await added(town, 3)
    service, lost = town.cluster.service, [0]
    compare_and_set = service.compare_and_set

    def losing(key: str, contents: bytes, present: Any, least: int) -> Any:
        changed = compare_and_set(key, contents, present, least)
        if key == "partition-0" and changed is not None and PartitionValue.decode(contents).next and not lost[0]:
            lost[0] += 1
            raise CoordinatorUnavailable("the answer was lost")
        return changed

    service.compare_and_set = losing  # type: ignore[method-assign]
    async with Appending(town):
        await edited(town, lambda edits: edits.add_copy(0, town.name(3)))
        assert lost == [1]
        await wait_until(lambda: len(members(town)) == 4)


@pytest.mark.slow
@in_a_town(spares=1)
async def test_an_answer_of_the_coordinator_that_nobody_foresaw_ends_no_server(town: Town) -> None:
    await added(town, 3)
    async with Appending(town):
        read = town.cluster.service.read
        (server,) = town.cluster.running_servers

        def damaged(key: str) -> Any:
            entry = read(key)
            return None if key == "partition-0" else entry

        town.cluster.service.read = damaged  # type: ignore[method-assign]
        await wait_until(lambda: "the members of partitions can't be read" in server.health()["coordinator"])
        town.cluster.service.read = read  # type: ignore[method-assign]
        await wait_until(lambda: not server.health()["coordinator"])
        assert town.cluster.running_servers == [server]
