"""One suite for every backend: what `coordination.Coordinator` promises, whoever keeps its values; and the port.

Scenarios are written once and run on each backend (`rigs/everybackend.py`): the directory on a simulated disk and on
this machine's, the simulated service, and a real ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.backend import Entry
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.coordination.values import (
    Assignment,
    Engagement,
    ExpectedServer,
    Owner,
    PartitionValue,
    Registration,
    Versioned,
)
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    Closed,
    CoordinatorDamaged,
    CoordinatorOutdated,
    CoordinatorUnavailable,
    DirectoryInUse,
    NotInitialized,
    UnknownPartition,
    WrongClusterKey,
)
from rigs.everybackend import DESCRIPTION, INITIAL, Cluster, on_every_backend
from rigs.faults import raises_code
from rigs.waiting import time_passes


async def initialized(cluster: Cluster) -> Coordinator:
    coordinator = await cluster.process()
    await coordinator.initialize(DESCRIPTION)
    return coordinator


# ------------------------------------------------------------------ making a cluster


@on_every_backend
async def test_without_a_cluster_every_request_is_refused(cluster: Cluster) -> None:
    coordinator = await cluster.process()
    for ask in (
        coordinator.describe,
        lambda: coordinator.partition(0),
        coordinator.assignment,
        coordinator.unique_id,
        coordinator.members,
        lambda: coordinator.register(Registration(1, "s:1")),
        lambda: coordinator.set_partition(0, INITIAL, 0),
        lambda: coordinator.set_assignment(Assignment(), 0),
    ):
        with pytest.raises(NotInitialized):
            await ask()


@on_every_backend
async def test_a_new_cluster_has_the_initial_value_of_every_partition(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)

    assert await coordinator.describe() == DESCRIPTION
    for partition in range(3):
        assert await coordinator.partition(partition) == Versioned(0, INITIAL)
    assert await coordinator.assignment() == Versioned(0, Assignment())
    assert await coordinator.members() == []
    for unknown in (-1, 3):
        with pytest.raises(UnknownPartition):
            await coordinator.partition(unknown)
        with pytest.raises(UnknownPartition):
            await coordinator.set_partition(unknown, INITIAL, 0)


@on_every_backend
async def test_partitions_are_added_and_those_that_are_there_stay(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    assert await first.make_partitions(dict.fromkeys((3,), DESCRIPTION.storage), DESCRIPTION.storage)
    assert await second.make_partitions(dict.fromkeys((3, 4), DESCRIPTION.storage), DESCRIPTION.storage)
    current = await first.description()
    assert await first.set_description(current.value.grown("t", 2), current.version) is not None
    assert (await second.topic("t")).ids == (3, 4)
    changed = replace(INITIAL, generation=1)
    assert await second.set_partition(4, changed, 0) is not None
    assert not await first.make_partitions(dict.fromkeys((4, 5), DESCRIPTION.storage), DESCRIPTION.storage)
    assert (await first.partition(4)).value == changed


@on_every_backend
async def test_of_many_that_initialize_one_does(cluster: Cluster) -> None:
    others = [replace(DESCRIPTION, key=bytes([number]) * 16) for number in range(4)]
    processes = [await cluster.process() for _ in others]

    outcomes = await asyncio.gather(
        *(process.initialize(other) for process, other in zip(processes, others, strict=True)), return_exceptions=True
    )

    (winner,) = (other for other, outcome in zip(others, outcomes, strict=True) if outcome is None)
    assert sum(isinstance(outcome, AlreadyInitialized) for outcome in outcomes) == 3
    for process in processes:
        assert await process.describe() == winner


@on_every_backend
async def test_a_deleted_cluster_is_gone_and_another_may_be_made_that_has_nothing_of_it(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    assert await first.set_partition(2, replace(INITIAL, generation=1), 0) is not None
    assert await first.make_partitions({3: DESCRIPTION.storage}, DESCRIPTION.storage)
    assignment = await first.assignment()
    await second.delete(DESCRIPTION.key)
    for process in (second, await cluster.process()):
        with pytest.raises(NotInitialized):
            await process.describe()
        with pytest.raises(NotInitialized):
            await process.delete(DESCRIPTION.key)
    for ask in (  # by one that knew it, such as a server that starts meanwhile
        first.describe,
        lambda: first.partition(0),
        first.assignment,
        first.unique_id,
        lambda: first.set_assignment(assignment.value, assignment.version),
    ):
        with pytest.raises(CoordinatorDamaged, match=r"somebody has deleted the cluster.*stop this process"):
            await ask()

    smaller = replace(DESCRIPTION, key=b"k" * 16, partitions=1)
    await second.initialize(smaller)
    assert await second.make_partitions({1: DESCRIPTION.storage, 2: DESCRIPTION.storage}, DESCRIPTION.storage)
    current = await second.description()
    assert await second.set_description(current.value.grown("t", 2), current.version) is not None
    reader = await cluster.process()
    assert [await reader.partition(number) for number in range(3)] == [Versioned(0, INITIAL)] * 3
    assert await reader.unique_id() == 1


@on_every_backend
async def test_a_cluster_with_servers_another_key_or_another_description_is_not_deleted(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    with pytest.raises(WrongClusterKey, match="nothing was deleted"):
        await second.delete(b"k" * 16)
    membership = await first.register(Registration(7, "s:1"))
    with raises_code("cluster_in_use", match="registered: 7"):
        await second.delete(DESCRIPTION.key)
    await membership.leave()
    backend = await cluster.backend()
    before = await backend.read("description")
    assert before is not None
    current = await first.description()
    assert await first.set_description(current.value.grown("t", 1), current.version) is not None
    assert not await backend.delete(before)
    assert (await second.describe()).topics == {"t": (3,)}
    await second.delete(DESCRIPTION.key)


# ------------------------------------------------------------------ compare-and-set


@on_every_backend
async def test_one_of_many_changes_of_a_version_wins(cluster: Cluster) -> None:
    processes = [await initialized(cluster), await cluster.process(), await cluster.process()]
    for version in range(4):
        wishes = [replace(INITIAL, session=10 * version + number) for number in range(9)]

        outcomes = await asyncio.gather(
            *(processes[n % 3].set_partition(1, wish, version) for n, wish in enumerate(wishes))
        )

        (won,) = [n for n, outcome in enumerate(outcomes) if outcome is not None]
        assert outcomes[won] == Versioned(version + 1, wishes[won])
        for process in processes:
            assert await process.partition(1) == Versioned(version + 1, wishes[won])
    assert await processes[0].partition(0) == Versioned(0, INITIAL)


@on_every_backend
async def test_no_update_is_lost(cluster: Cluster) -> None:
    processes = [await initialized(cluster), await cluster.process(), await cluster.process()]

    unknown = 0

    async def count(process: Coordinator) -> None:
        nonlocal unknown
        for _ in range(4):
            while True:
                try:
                    found = await process.partition(2)
                    raised = replace(found.value, generation=found.value.generation + 1)
                    if await process.set_partition(2, raised, found.version) is not None:
                        break
                except CoordinatorUnavailable:  # a busy machine breaks a connection: the change may have been made
                    unknown += 1
                    assert unknown < 4

    await asyncio.gather(*(count(processes[number % 3]) for number in range(6)))

    counted = await processes[0].partition(2)
    assert counted == Versioned(counted.version, replace(INITIAL, generation=counted.version))
    assert 24 <= counted.version <= 24 + unknown


@on_every_backend
async def test_a_version_that_is_not_the_present_one_changes_nothing(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    await coordinator.set_assignment(Assignment({0: Owner(1, "s:1", 1)}), 0)
    for version in (-1, 0, 2):
        assert await coordinator.set_assignment(Assignment(), version) is None
    assert await coordinator.assignment() == Versioned(1, Assignment({0: Owner(1, "s:1", 1)}))


@on_every_backend
async def test_after_a_cancelled_change_reading_again_tells_its_fate_for_good(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    fates = set()
    for number in range(25):
        before = await coordinator.partition(0)
        change = asyncio.ensure_future(
            coordinator.set_partition(0, replace(before.value, session=number), before.version)
        )
        await time_passes(number * 0.0002)
        change.cancel()
        await asyncio.wait([change])
        after = await coordinator.partition(0)
        await time_passes(0.02)
        assert await coordinator.partition(0) == after
        assert after.version in (before.version, before.version + 1)
        fates.add(after.version - before.version)
    assert 1 in fates


@on_every_backend
async def test_a_value_that_stays_the_same_is_decoded_once_in_each_process(cluster: Cluster) -> None:
    writer, reader = await initialized(cluster), await cluster.process()
    mine = Assignment({0: Owner(1, "s:1", 1)})
    await writer.set_assignment(mine, 0)
    assert (await writer.assignment()).value is mine
    first, second = await reader.assignment(), await reader.assignment_after(0)
    assert first.value == mine
    assert second.value is first.value
    assert (await reader.partition(0)).value is (await reader.partition(0)).value
    await writer.set_assignment(Assignment(), 1)
    assert (await reader.assignment()).value == Assignment()


@on_every_backend
async def test_a_change_that_was_not_read_before_it_is_made_is_compared_all_the_same(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    raised = replace(INITIAL, session=1)
    assert await first.set_partition(0, raised, 0) == Versioned(1, raised)
    for version in (-1, 0, 2):
        assert await second.set_partition(0, INITIAL, version) is None
    assert await second.set_partition(0, INITIAL, 1) == Versioned(2, INITIAL)
    assert await first.set_partition(0, INITIAL, 1) is None


# ------------------------------------------------------------------ the description


@on_every_backend
async def test_of_two_operators_who_edit_the_description_at_once_one_is_told_to_look_again(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    before = await first.description()
    assert before == await second.description() == Versioned(0, DESCRIPTION)
    one, another = DESCRIPTION.moved("a:1", "a:2"), DESCRIPTION.moved("b:1", "b:2")
    written = await asyncio.gather(first.set_description(one, 0), second.set_description(another, 0))
    assert sorted(each is None for each in written) == [False, True]
    now = await (await cluster.process()).description()
    assert now in written
    loser = second if written[1] is None else first
    both = now.value.moved("a:1", "a:2").moved("b:1", "b:2")
    assert await loser.set_description(both, 1) == Versioned(2, both)
    for process in (first, second, await cluster.process()):
        assert await process.describe() == both
        assert (await process.partition(0)).value == INITIAL, "everything else goes on"


@on_every_backend
async def test_what_replicas_and_files_hang_on_does_not_change(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    for wrong, naming in (
        (replace(DESCRIPTION, key=bytes(16)), "key"),
        (replace(DESCRIPTION, partitions=4), "number of partitions is 3, that of the new one is 4"),
        (replace(DESCRIPTION, storage=("a:1",), copies=2), "can't have 1 storage node for 2 copies"),
        (replace(DESCRIPTION, storage=()), "can't have 0 storage nodes"),
    ):
        with pytest.raises(BadOption, match=naming):
            await coordinator.set_description(wrong, 0)
    assert await coordinator.description() == Versioned(0, DESCRIPTION)


@on_every_backend
async def test_storage_nodes_are_added_drained_and_removed_by_compare_and_set(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    copies = len(DESCRIPTION.storage)
    added = DESCRIPTION.with_node("new", "d:1", "east")
    assert await coordinator.set_description(added, 0) == Versioned(1, added)
    assert (added.nodes["new"], added.zones["new"], added.replication_factor) == ("d:1", "east", copies)
    drained = added.drained("new")
    assert await coordinator.set_description(drained, 0) is None, "somebody else was first"
    assert await coordinator.set_description(drained, 1) == Versioned(2, drained)
    assert (await (await cluster.process()).describe()).draining == ("new",)
    gone = drained.without_node("new")
    assert await coordinator.set_description(gone, 2) == Versioned(3, gone)
    assert (gone.storage, gone.replication_factor) == (DESCRIPTION.storage, copies)


# ------------------------------------------------------------------ unique ids


@on_every_backend
async def test_a_unique_id_is_never_given_out_again(cluster: Cluster) -> None:
    processes = [await initialized(cluster), await cluster.process(), await cluster.process()]
    ids = await asyncio.gather(*(processes[number % 3].unique_id() for number in range(20)))
    for process in processes:
        await cluster.kill(process)
    ids += [await (await cluster.process()).unique_id() for _ in range(3)]
    assert len(set(ids)) == 23
    assert min(ids) >= 1
    assert max(ids) < 2**31


@on_every_backend
async def test_a_unique_id_that_others_may_have_is_refused(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    assert await coordinator.unique_id() == 1
    backup = await cluster.backup()
    assert [await coordinator.unique_id() for _ in range(3)] == [2, 3, 4]
    await cluster.restore(backup)
    with pytest.raises(CoordinatorDamaged, match=r"unique-id.*went back"):
        await coordinator.unique_id()


@on_every_backend
async def test_ids_that_another_process_takes_from_an_older_copy_are_not_those_that_were_known(
    cluster: Cluster,
) -> None:
    coordinator = await initialized(cluster)
    older = await cluster.backup()
    assert await coordinator.unique_id() == 1
    latest = await cluster.backup()
    await cluster.restore(older)
    assert await (await cluster.process()).unique_id() == 1
    with pytest.raises(CoordinatorOutdated, match=r"unique-id.*its version 1 does not follow version 1"):
        await coordinator.unique_ids_given()
    await cluster.restore(latest)
    assert await coordinator.unique_ids_given() == 1


# ------------------------------------------------------------------ members


@on_every_backend
async def test_a_registration_ends_when_it_is_left_when_closed_and_when_its_process_dies(cluster: Cluster) -> None:
    observer = await initialized(cluster)
    leaving, closing, dying = [await cluster.process() for _ in range(3)]
    membership = await leaving.register(Registration(12, "s:12"))
    await closing.register(Registration(7, "s:7"))
    await dying.register(Registration(100, "s:100"))
    for process in (observer, leaving, dying):
        assert [member.server for member in await process.members()] == [7, 12, 100]
    assert (await observer.members())[0] == Registration(7, "s:7")

    await membership.leave()
    await membership.leave()
    assert [member.server for member in await observer.members()] == [7, 100]
    await closing.close()
    assert [member.server for member in await observer.members()] == [100]
    await cluster.kill(dying)
    assert await observer.members() == []


@on_every_backend
async def test_registering_again_changes_nothing_and_nobody_else_can_be_that_server(cluster: Cluster) -> None:
    first, second = await initialized(cluster), await cluster.process()
    await first.register(Registration(1, "s:1"))
    await first.register(Registration(1, "s:1"))
    with pytest.raises(DirectoryInUse):
        await second.register(Registration(1, "s:2"))
    assert await second.members() == [Registration(1, "s:1")]
    await cluster.kill(first)
    await second.register(Registration(1, "s:2"))
    assert await second.members() == [Registration(1, "s:2")]


@on_every_backend
async def test_a_member_replaces_what_its_registration_says_and_it_stays_so_with_every_renewal(
    cluster: Cluster,
) -> None:
    coordinator, observer = await initialized(cluster), await cluster.process()
    membership = await coordinator.register(Registration(1, "s:1"))
    told = Registration(1, "s:1", frozenset({2}), frozenset({3, 4}))
    await membership.tell(told)
    for process in (coordinator, observer):
        assert await process.members() == [told]
    await membership.renew()
    await coordinator.register(Registration(1, "s:1"))
    assert await observer.members() == [told]
    await membership.tell(Registration(1, "s:1"))
    assert await observer.members() == [Registration(1, "s:1")]
    await membership.leave()
    await membership.tell(told)
    assert await observer.members() == []


@on_every_backend
async def test_a_server_may_register_again_after_it_has_left(cluster: Cluster) -> None:
    coordinator, observer = await initialized(cluster), await cluster.process()
    left = await coordinator.register(Registration(1, "s:1"))
    await left.leave()
    again = await coordinator.register(Registration(1, "s:2"))
    await again.renew()
    assert await observer.members() == [Registration(1, "s:2")]
    for _ in range(int(2 * LEASE_S / RENEW_S)):
        assert await coordinator.members() == [Registration(1, "s:2")], "it knows of itself"
        await cluster.pass_s(RENEW_S)
    await again.leave()
    await again.renew()
    assert await observer.members() == []


@on_every_backend
async def test_a_member_that_renews_nothing_is_none_to_others_until_it_does(cluster: Cluster) -> None:
    works, observer = await initialized(cluster), await cluster.process()
    membership = await works.register(Registration(1, "s:1"))
    looks = int(2 * LEASE_S / RENEW_S)
    for _ in range(looks):
        await membership.renew()
        assert await observer.members() == [Registration(1, "s:1")]
        await cluster.pass_s(RENEW_S)
    for _ in range(looks):
        assert await works.members() == [Registration(1, "s:1")], "it knows of itself"
        found = await observer.members()
        await cluster.pass_s(RENEW_S)
    assert found == []
    assert await (await cluster.process()).members() == [Registration(1, "s:1")], "who looks for the first time"
    await membership.renew()
    assert await observer.members() == [Registration(1, "s:1")]


# ------------------------------------------------------------------ watching


@on_every_backend
async def test_waiting_for_an_assignment_ends_with_the_next_one(cluster: Cluster) -> None:
    manager, server = await initialized(cluster), await cluster.process()
    assert await server.assignment_after(-1) == Versioned(0, Assignment())
    waiting = asyncio.ensure_future(server.assignment_after(0))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done

    await manager.set_assignment(Assignment({2: Owner(1, "s:1", 4)}), 0)

    async with asyncio.timeout(5):
        assert await waiting == Versioned(1, Assignment({2: Owner(1, "s:1", 4)}))


@on_every_backend
async def test_all_who_wait_get_the_next_assignment_and_who_was_cancelled_leaves_nothing(cluster: Cluster) -> None:
    manager, server = await initialized(cluster), await cluster.process()
    await server.assignment()
    before = asyncio.all_tasks()
    waiting = [asyncio.ensure_future(server.assignment_after(0)) for _ in range(4)]
    await time_passes(0.2)
    cancelled = waiting.pop()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert asyncio.all_tasks() - before == set(waiting)

    await manager.set_assignment(Assignment({2: Owner(1, "s:1", 4)}), 0)

    async with asyncio.timeout(5):
        told = await asyncio.gather(*waiting)
    assert {found.version for found in told} == {1}
    assert len({id(found.value) for found in told}) == 1
    assert asyncio.all_tasks() == before


# ------------------------------------------------------------------ restart, damage


@on_every_backend
async def test_a_restart_keeps_everything(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    value = PartitionValue(3, 8, ("a:1", "b:1"), ("a:1",), {"a:1": Engagement(8), "b:1": Engagement(7, 41)})
    await coordinator.set_partition(1, value, 0)
    await coordinator.set_assignment(Assignment({1: Owner(5, "s:1", 3)}), 0)
    await coordinator.register(Registration(5, "s:1"))
    await cluster.kill(coordinator)

    restarted = await cluster.process()

    assert await restarted.describe() == DESCRIPTION
    assert await restarted.partition(1) == Versioned(1, value)
    assert await restarted.assignment() == Versioned(1, Assignment({1: Owner(5, "s:1", 3)}))
    assert await restarted.members() == []
    with pytest.raises(AlreadyInitialized):
        await restarted.initialize(DESCRIPTION)


@on_every_backend
async def test_damage_is_refused_by_name_and_says_what_to_do(cluster: Cluster) -> None:
    await (await initialized(cluster)).expect_server("first", ExpectedServer(1, "s:1"))
    requests: list[tuple[str, Callable[[Coordinator], Awaitable[object]]]] = [
        ("partition-1", lambda coordinator: coordinator.partition(1)),
        ("partition-1", lambda coordinator: coordinator.set_partition(1, INITIAL, 0)),
        ("assignment", lambda coordinator: coordinator.assignment()),
        ("unique-id", lambda coordinator: coordinator.unique_ids_given()),
        ("expected-servers", lambda coordinator: coordinator.expected_servers()),
        ("description", lambda coordinator: coordinator.describe()),
    ]
    for name, ask in requests:
        await cluster.damage(name)
        with pytest.raises(CoordinatorDamaged, match=name) as refused:
            await ask(await cluster.process())
        assert "estore" in refused.value.text
    with pytest.raises((CoordinatorDamaged, AlreadyInitialized)):
        await (await cluster.process()).initialize(DESCRIPTION)


@on_every_backend
async def test_a_value_that_was_damaged_since_it_was_read_is_not_replaced(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    await coordinator.partition(0)
    await cluster.damage("partition-0")
    with contextlib.suppress(CoordinatorDamaged):
        assert await coordinator.set_partition(0, replace(INITIAL, session=1), 0) is None
    for process in (coordinator, await cluster.process()):
        with pytest.raises(CoordinatorDamaged, match="partition-0"):
            await process.partition(0)


@on_every_backend
async def test_another_cluster_in_its_place_is_refused(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    await coordinator.partition(0)
    await cluster.restore(None)
    other = await cluster.process()
    await other.initialize(replace(DESCRIPTION, key=b"k" * 16))
    assert await coordinator.set_partition(0, replace(INITIAL, session=1), 0) is None
    for ask in (
        coordinator.describe,
        coordinator.assignment,
        coordinator.unique_id,
        lambda: coordinator.partition(0),
        lambda: coordinator.partition(1),
        lambda: coordinator.set_partition(1, INITIAL, 0),
        lambda: coordinator.set_assignment(Assignment(), 0),
    ):
        with pytest.raises(WrongClusterKey):
            await ask()
    assert await other.partition(0) == Versioned(0, INITIAL)


@on_every_backend
async def test_a_coordinator_wiped_under_its_cluster_is_refused(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    await coordinator.partition(0)
    await cluster.restore(None)
    for ask in (
        coordinator.describe,
        lambda: coordinator.partition(0),
        lambda: coordinator.partition(1),
        lambda: coordinator.set_partition(0, INITIAL, 0),
        coordinator.assignment,
    ):
        with pytest.raises(CoordinatorDamaged):
            await ask()
    with pytest.raises(NotInitialized):
        await (await cluster.process()).describe()


@on_every_backend
async def test_a_value_that_went_back_is_refused(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    backup = await cluster.backup()
    await coordinator.set_partition(0, replace(INITIAL, session=1), 0)
    await cluster.restore(backup)
    with pytest.raises(CoordinatorDamaged, match="went back"):
        await coordinator.partition(0)
    with pytest.raises(CoordinatorDamaged, match="went back"):
        await coordinator.set_partition(0, replace(INITIAL, session=1), 0)


@on_every_backend
async def test_a_closed_coordinator_says_so(cluster: Cluster) -> None:
    coordinator = await initialized(cluster)
    await coordinator.close()
    await coordinator.close()
    for ask in (coordinator.describe, coordinator.assignment, coordinator.members, coordinator.unique_id):
        with pytest.raises(Closed):
            await ask()


@on_every_backend
async def test_a_random_history_of_changes_is_one_order_that_everybody_sees(cluster: Cluster) -> None:
    source = random.Random(3)
    processes = [await initialized(cluster), await cluster.process(), await cluster.process()]
    won: dict[int, PartitionValue] = {0: INITIAL}
    seen: list[Versioned[PartitionValue]] = []

    async def act(process: Coordinator, sessions: range) -> None:
        newest = 0
        for session in sessions:
            found = await process.partition(0)
            assert found.version >= newest
            seen.append(found)
            await time_passes(source.random() * 0.002)
            made = await process.set_partition(0, replace(INITIAL, session=session), found.version)
            newest = found.version
            if made is not None:
                assert made.version not in won
                won[made.version] = made.value
                newest = made.version

    await asyncio.gather(*(act(process, range(n * 100, n * 100 + 8)) for n, process in enumerate(processes)))

    assert sorted(won) == list(range(len(won)))
    assert all(won[found.version] == found.value for found in seen)


# ------------------------------------------------------------------ the port itself

KEY = DESCRIPTION.key
ENTRIES = {key: Entry(KEY, version, b"{}") for version, key in enumerate(("assignment", "unique-id", "description"))}


@on_every_backend
async def test_a_backend_makes_one_cluster_and_keeps_each_entry_as_it_is(cluster: Cluster) -> None:
    backends = [await cluster.backend() for _ in range(4)]
    assert [await backend.read("description") for backend in backends] == [None] * 4
    assert sorted(await asyncio.gather(*(backend.create(ENTRIES) for backend in backends))) == [False] * 3 + [True]
    for backend in backends:
        assert {key: await backend.read(key) for key in ENTRIES} == ENTRIES
        assert await backend.read("partition-0") is None
        assert "assignment" in backend.place("assignment")


@on_every_backend
async def test_a_backend_replaces_the_present_entry_alone(cluster: Cluster) -> None:
    first, second = await cluster.backend(), await cluster.backend()
    await first.create(ENTRIES)
    present = ENTRIES["unique-id"]
    for other in (present._replace(version=2), present._replace(version=0), present._replace(cluster_key=b"k" * 16)):
        assert await second.compare_and_set("unique-id", b"[]", other) is None
    made = await second.compare_and_set("unique-id", b"[]", present)
    assert made == Entry(KEY, 2, b"[]")
    assert await second.read("unique-id") == made
    assert await first.compare_and_set("unique-id", b"[1]", present) is None
    assert await first.compare_and_set("unique-id", b"[1]", None) == Entry(KEY, 3, b"[1]")
    assert await second.compare_and_set("unique-id", b"[2]", None, 4) is None
    assert await second.read("unique-id") == Entry(KEY, 3, b"[1]")
    assert await second.compare_and_set("unique-id", b"[2]", None, 3) == Entry(KEY, 4, b"[2]")
    with pytest.raises(CoordinatorDamaged, match=r"partition-0.*missing"):
        await first.compare_and_set("partition-0", b"[]", None)
    with pytest.raises(CoordinatorDamaged, match=r"partition-0.*missing"):
        await first.compare_and_set("partition-0", b"[]", Entry(KEY, -1, b""))
    assert await first.read("partition-0") is None


@on_every_backend
async def test_a_backend_tells_of_a_change_to_who_came_before_it_and_to_who_came_after(cluster: Cluster) -> None:
    first, second = await cluster.backend(), await cluster.backend()
    await first.create(ENTRIES)
    async with asyncio.timeout(5):
        await second.changed("assignment", 7)

        async def until_changed() -> None:
            while (await second.read("assignment") or ENTRIES["assignment"]).version == 0:
                await second.changed("assignment", 0)

        waiting = asyncio.ensure_future(until_changed())
        await time_passes(0.1)
        assert not waiting.done()
        await first.compare_and_set("assignment", b"[]", None)
        await waiting


@on_every_backend
async def test_a_name_is_its_process_s_alone_and_its_version_rises_with_each_renewal(cluster: Cluster) -> None:
    first, second = await cluster.backend(), await cluster.backend()
    await first.create(ENTRIES)
    entry = Entry(KEY, 0, b"[]")
    assert await first.registered("members") == {}
    assert await first.register("members/7", entry)
    assert await first.register("members/7", entry._replace(contents=b"[1]"))
    assert not await second.register("members/7", entry)
    assert await second.register("members/12", entry)
    for backend in (first, second):
        assert await backend.registered("members") == {"7": entry, "12": entry}
        assert await backend.registered("others") == {}
    versions = []
    for _ in range(3):
        assert await first.renew("members/7")
        assert not await second.renew("members/7"), "it is not its"
        await second.leave("members/7")
        versions.append((await second.registered("members"))["7"].version)
    assert versions == sorted({*versions})
    assert len(versions) == 3
    await first.leave("members/7")
    await first.leave("members/7")
    assert not await first.renew("members/7")
    assert await first.registered("members") == {"12": entry}
    assert await first.register("members/7", entry)
    await second.close()
    await second.close()
    assert list(await first.registered("members")) == ["7"]
