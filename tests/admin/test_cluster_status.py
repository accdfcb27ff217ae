"""The status of a cluster: who is there, who is not and why, and what follows for each partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.admin.asking import ask_health
from polonaise.admin.cluster import (
    ClusterObserver,
    ClusterStatus,
    ServerStatus,
    Wellness,
    _copies_in,
    _is_known,
    _storage_status,
)
from polonaise.admin.partitiondescription import describe_partition
from polonaise.admin.requiring import require
from polonaise.admin.safestop import safe_to_stop
from polonaise.admin.servers import remove_server
from polonaise.cli.cluster import screen_of
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, ExpectedServer, Owner, Registration
from polonaise.errors import BadOption, ConnectionLost, CoordinatorUnavailable, NotInitialized, UnknownPartition
from polonaise.host import Host
from polonaise.node.condition import condition_of, without_spare
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.protocol.recovery import ReplicaAnswer, Undecided
from rigs.faults import raises_code
from rigs.observing import TIMEOUT_S, observed, status_of, until, well
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until

PARTITIONS = 3


@in_a_town(partitions=PARTITIONS)
async def test_a_cluster_that_is_well_says_so_of_everything(town: Town) -> None:
    await town.application("writer", lambda log: log.append(b"first", 0))
    status = await until(town, lambda each: not each.wellness and all(node.free_bytes for node in each.storage))
    (server,) = status.servers
    assert (server.registered, server.partitions, server.troubles) == (True, PARTITIONS, [])
    assert [node.troubles for node in status.storage] == [[], [], []]
    assert [node.partitions for node in status.storage] == [PARTITIONS] * 3
    assert [each.state for each in status.partitions] == ["ready"] * PARTITIONS
    first = status.partitions[0].condition
    assert first is not None
    assert (first.committed_high_water_mark, first.generation, len(first.engaged)) == (0, 1, 3)
    assert (first.behind, first.out) == ({}, {})
    document = status.document()
    assert document["wellness"] == "well"
    assert document["partitions"][0]["owner"] == {
        "server": server.server, "name": server.name, "address": server.address
    }  # fmt: skip


@in_a_town(partitions=PARTITIONS)
async def test_partitions_that_wait_for_the_same_are_told_together_in_whatever_session_each_is(town: Town) -> None:
    await well(town)
    served = town.server.partitions[0]
    name, connection = next(iter(served._engaged.items()))
    served.on_replica_failed(name, connection, ConnectionLost("cut"))  # one session more than the other partitions have
    await well(town)
    assert len({each.session for each in town.cluster.partition_values()}) > 1
    for node in town.cluster.storage[1:]:
        held_down(node)
    failed = await until(town, lambda status: status.states == {"not ready": PARTITIONS})
    waits = [(trouble, count) for trouble, count in failed.common_troubles(9) if " waits for " in trouble]
    assert [count for _, count in waits] == [PARTITIONS], waits
    assert waits[0][0].startswith("its next session waits for an answer from 1 of ")


@in_a_town(partitions=PARTITIONS)
async def test_a_storage_node_that_is_gone_is_a_row_with_its_reason(town: Town) -> None:
    await well(town)
    gone = town.cluster.storage[1]
    held_down(gone)
    name = town.cluster.storage_id(gone)
    status = await until(town, lambda status: all(each.state == "degraded" for each in status.partitions))
    assert status.wellness is Wellness.DEGRADED
    row = next(each for each in status.storage if each.name == name)
    assert "connection_lost" in row.trouble
    assert list(row.not_connected) == [status.servers[0].server]
    for each in status.partitions:
        assert each.condition is not None
        assert list(each.condition.out) == [name]
    ((trouble, count),) = status.common_troubles(1)
    assert name in trouble
    assert count == PARTITIONS


@in_a_town(partitions=PARTITIONS)
async def test_a_storage_node_that_is_silent_is_told_of_by_its_name(town: Town) -> None:
    await well(town)
    cut, server = (nodes[0].machine.name for nodes in (town.cluster.storage, town.cluster.servers))
    town.world.network.partition([server], [cut])
    status = await until(
        town, lambda each: any("was silent for" in why for why in each.storage[0].not_connected.values())
    )
    assert f"storage node {town.name(0)} was silent for" in status.storage[0].troubles[0]


@in_a_town(partitions=PARTITIONS)
async def test_without_an_owner_that_answers_nobody_knows_how_a_partition_is(town: Town) -> None:
    await well(town)
    held_down(town.cluster.servers[0])
    status = await status_of(town)
    assert status.wellness is Wellness.FAILED
    assert [each.state for each in status.partitions] == ["unknown"] * PARTITIONS
    assert "does not answer" in status.partitions[0].troubles[0]
    assert [node.trouble for node in status.storage] == ["", "", ""], "storage nodes are asked, servers or not"


@in_a_town(partitions=PARTITIONS)
async def test_a_registered_server_that_does_not_answer_is_told_of_and_harms_no_partition(town: Town) -> None:
    await well(town)

    async def look(observer: ClusterObserver) -> ClusterStatus:
        await observer._coordinator.register(Registration(4711, "nobody:1"))
        return await observer.look()

    status = await observed(town, look)
    silent = next(each for each in status.servers if each.server == 4711)
    assert silent.trouble
    assert status.wellness is Wellness.DEGRADED
    assert {each.state for each in status.partitions} == {"ready"}


@in_a_town(partitions=PARTITIONS)
async def test_another_server_at_the_address_of_one_that_ended_is_not_taken_for_it(town: Town) -> None:
    status = await well(town)
    address = status.servers[0].address

    async def look(observer: ClusterObserver) -> ClusterStatus:
        await observer._coordinator.register(Registration(4711, address))
        return await observer.look()

    found = next(each for each in (await observed(town, look)).servers if each.server == 4711)
    assert "this one has ended" in found.trouble


def silence_coordinator(observer: ClusterObserver) -> None:
    async def silent() -> None:
        await asyncio.sleep(3_600)

    observer._coordinator.description = silent  # type: ignore[method-assign,assignment]


@in_a_town(partitions=PARTITIONS)
async def test_while_the_coordinator_is_away_what_it_said_last_is_shown(town: Town) -> None:
    await well(town)

    async def look(observer: ClusterObserver) -> tuple[ClusterStatus, ClusterStatus]:
        first = await observer.look()
        silence_coordinator(observer)
        return first, await observer.look()

    first, second = await observed(town, look)
    assert "did not answer within 2 s" in second.coordinator_trouble
    assert second.wellness is Wellness.DEGRADED, "the servers reach it, and all partitions are ready"
    assert [each.state for each in second.partitions] == [each.state for each in first.partitions]


@in_a_town(partitions=PARTITIONS)
async def test_what_the_coordinator_held_before_it_was_away_is_not_taken_for_what_it_holds(
    town: Town, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await well(town)

    async def later(*about: Any) -> Any:
        told = await ask_health(*about)
        return {**told, "noted": 99} if isinstance(told, dict) else told

    async def look(observer: ClusterObserver) -> tuple[ClusterStatus, ClusterStatus]:
        await observer.look()
        held_down(town.cluster.servers[0])
        monkeypatch.setattr("polonaise.admin.cluster.ask_health", later)
        there = await observer.look()
        silence_coordinator(observer)
        return there, await observer.look()

    there, away = await observed(town, look)
    assert "it answers, but what it holds is older" in there.belief.doubt
    assert away.belief.doubt == ""
    assert not [each.doubted for each in away.servers if each.doubted]


@pytest.mark.slow
@in_a_town(partitions=PARTITIONS)
async def test_an_older_coordinator_is_told_in_its_own_row_while_partitions_go_on_and_nobody_may_stop(
    town: Town,
) -> None:
    await well(town)
    older = town.cluster.service.snapshot()

    async def change(_: Host, coordinator: Coordinator) -> None:
        described = await coordinator.description()
        await coordinator.set_description(described.value, described.version)

    await town.operator(change)
    await time_passes(10)  # in which the server reads it
    latest = town.cluster.service.snapshot()
    town.cluster.service.restore(older)
    status = await until(town, lambda status: bool(status.coordinator_trouble))
    assert [each.state for each in status.partitions] == ["ready"] * PARTITIONS
    assert status.wellness is Wellness.DEGRADED
    assert "[coordinator_outdated]" in status.coordinator_trouble
    assert f"not believed by server {status.servers[-1].server}" in status.document()["coordinator"]["trouble"]
    assert screen_of(status)[1] == f"coordinator the coordinator: {status.coordinator_trouble}"
    assert all("nobody could take over" in each.stops[-1] for each in safe_to_stop(status, None))
    town.cluster.service.restore(latest)
    assert (await well(town)).coordinator_trouble == ""


@in_a_town(partitions=PARTITIONS)
async def test_an_older_coordinator_is_told_in_its_own_row_when_servers_have_started_on_it(town: Town) -> None:
    await well(town)
    older = town.cluster.service.snapshot()
    (node,) = town.cluster.servers
    for _ in range(2):
        held_down(node)
        node.let_up()
        await town.append(b"more")
    held_down(node)
    town.cluster.service.restore(older)
    node.let_up()
    status = await until(town, lambda status: bool(status.coordinator_trouble))
    assert status.wellness is Wellness.FAILED
    assert "an older state" in status.coordinator_trouble


@in_a_town(partitions=PARTITIONS)
async def test_an_assignment_that_could_not_be_read_is_no_partition_without_an_owner(town: Town) -> None:
    await well(town)

    async def look(observer: ClusterObserver) -> ClusterStatus:
        async def silent() -> None:
            await asyncio.sleep(3_600)

        observer._coordinator.assignment = silent  # type: ignore[method-assign,assignment]
        return await observer.look()

    status = await observed(town, look)
    assert {each.state for each in status.partitions} == {"unknown"}
    assert all("could not be read" in each.troubles[0] for each in status.partitions)
    assert [each.document()["partitions"] for each in status.servers] == [None] * len(status.servers), "unlike 0"
    assert status.wellness is Wellness.FAILED


@in_a_town(partitions=PARTITIONS)
async def test_servers_tell_what_can_not_be_read_from_the_coordinator(town: Town) -> None:
    (server,) = (await well(town)).servers

    async def look(host: Host, coordinator: Coordinator) -> ClusterStatus:
        async def silent() -> None:
            await asyncio.sleep(3_600)

        coordinator.description = silent  # type: ignore[method-assign,assignment]
        return await ClusterObserver(host, coordinator, "the coordinator", TIMEOUT_S, [server.address]).look()

    status = await town.operator(look)
    assert "did not answer" in status.coordinator_trouble
    assert status.wellness is Wellness.DEGRADED
    assert [each.state for each in status.partitions] == ["ready"] * PARTITIONS
    assert [each.wellness for each in status.storage] == [Wellness.WELL] * 3
    (row,) = status.servers
    assert (row.registered, row.partitions, row.troubles) == (None, PARTITIONS, [])


@pytest.mark.parametrize("how", ["name", "number", "address"])
@in_a_town(partitions=PARTITIONS, servers=2)
async def test_a_server_that_is_gone_is_missed_until_it_is_removed(town: Town, *, how: str) -> None:
    servers = (await until(town, lambda status: len(status.servers) == 2 and not status.wellness)).servers
    for server in servers:
        await town.operator(
            lambda _, coordinator, server=server: coordinator.expect_server(
                f"s{server.server}", ExpectedServer(server.server, server.address)
            )
        )
    gone = town.cluster.servers[1]
    held_down(gone)
    status = await until(town, lambda status: all(each.state == "ready" for each in status.partitions))
    status = await until(town, lambda status: any(each.registered is False for each in status.servers))
    (missing,) = [each for each in status.servers if each.wellness]
    assert missing.name.startswith("s")
    assert any("polonaise server remove" in line or "is not registered" in line for line in missing.troubles)
    assert status.wellness is Wellness.DEGRADED

    async def remove(_: Host, coordinator: Coordinator) -> None:
        with pytest.raises(BadOption, match="misses no server"):
            await remove_server(coordinator, "nobody", TIMEOUT_S)
        (other,) = [each.name for each in servers_named if each.name != missing.name]
        with raises_code("cluster_in_use", match="is registered"):
            await remove_server(coordinator, other, TIMEOUT_S)
        by = {"name": missing.name, "number": str(missing.server), "address": missing.address}[how]
        name, removed = await remove_server(coordinator, by, TIMEOUT_S)
        assert (name, removed.address) == (missing.name, missing.address)

    servers_named = status.servers
    await town.operator(remove)
    for each in town.cluster.owners.values():
        each.parts.expected.missing = {missing.name: missing.address}  # as it was at its last look, seconds ago
    status = await status_of(town)
    assert ([each.troubles for each in status.servers], status.wellness) == ([[]], Wellness.WELL), "from then on"


@in_a_town(partitions=PARTITIONS, servers=2)
async def test_a_server_that_was_given_another_name_is_told_how_to_take_out_the_one_before(town: Town) -> None:
    renamed = (await until(town, lambda status: len(status.servers) == 2 and not status.wellness)).servers[0]
    await town.operator(
        lambda _, coordinator: coordinator.expect_server("its name before", ExpectedServer(4711, renamed.address))
    )
    status = await status_of(town)
    (before,) = [each for each in status.servers if each.wellness]
    assert before.name == "its name before"
    assert f"another server ({renamed.server}) answers at its address" in before.troubles[0]
    assert "polonaise server remove 4711" in before.troubles[0]


@in_a_town(partitions=PARTITIONS, servers=2)
async def test_nobody_is_told_to_take_a_server_out_of_a_coordinator_that_is_not_believed(
    town: Town, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = (await until(town, lambda status: len(status.servers) == 2 and not status.wellness)).servers[0]

    async def expect(_: Host, coordinator: Coordinator) -> None:
        await coordinator.expect_server("before", ExpectedServer(4711, server.address))
        await coordinator.expect_server("silent", ExpectedServer(4712, "nobody:1"))

    await town.operator(expect)
    monkeypatch.setattr("polonaise.admin.cluster.disbelief", lambda *_: "it is not believed by server 3")
    status = await status_of(town)
    rows = [each for each in status.servers if each.server in (4711, 4712)]
    assert f"another server ({server.server}) answers at its address" in rows[0].troubles[0]
    assert "is not registered" in rows[1].troubles[1]
    assert not [line for each in rows for line in each.troubles if "server remove" in line]


@in_a_town(partitions=PARTITIONS, servers=2)
async def test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses(town: Town) -> None:
    await until(town, lambda status: len(status.servers) == 2 and not status.wellness)

    async def look(host: Host, coordinator: Coordinator) -> None:
        first, second = await coordinator.members()
        gone = ExpectedServer(4711, "nobody:1")
        await coordinator.expect_server("gone", gone)
        watch = ExpectedServersWatch(coordinator, "first", CoordinatorTrouble(host.clock))
        task = asyncio.ensure_future(watch.run(first.server, first.address))
        await wait_until(lambda: watch.missing == {"gone": "nobody:1"})
        noted = (await coordinator.expected_servers()).value.servers
        assert noted == {"gone": gone, "first": ExpectedServer(first.server, first.address)}
        await coordinator.forget_server("gone")
        await coordinator.expect_server("first", ExpectedServer(second.server, second.address))
        await wait_until(lambda: not watch.missing and "same name" in watch.trouble)
        await coordinator.forget_server("first")  # while it hung: it goes on, and is to be missed from then on

        async def noted_again() -> bool:
            return "first" in (await coordinator.expected_servers()).value.servers

        await wait_until(noted_again, "the server that goes on has noted itself again")
        await coordinator.expect_server("first", ExpectedServer(4712, "ended:1"))  # by another of its name, that ended

        async def is_known() -> bool:
            return (await coordinator.expected_servers()).value.servers["first"].server == first.server

        await wait_until(is_known, "the server that goes on has its name again")
        assert not watch.missing
        task.cancel()

    await town.operator(look)


@in_a_town(partitions=PARTITIONS)
async def test_a_server_that_goes_on_without_the_coordinator_is_degraded_whatever_it_owns(town: Town) -> None:
    await well(town)
    server = town.server
    server.parts.shared.trouble.failed("the lease can't be renewed", CoordinatorUnavailable("no answer"))
    status = await status_of(town)
    (row,) = status.servers
    assert row.wellness is Wellness.DEGRADED
    (trouble,) = row.troubles
    assert trouble.startswith("the server goes on without its coordinator: ")
    assert "no answer" in trouble
    server.parts.shared.trouble.succeeded("the lease can't be renewed")
    await well(town)


READY = {"ready": True, "generation": 1, "session": 1, "committed": 1, "engaged": []}
"""What a server's health says of a partition, but for what it waits for."""


@pytest.mark.parametrize(
    "document",
    [
        {"server": 1, "partitions": {"0": {}}, "storage": {}},
        {"server": 1, "partitions": {"0": None}, "storage": {}},
        {"server": 1, "partitions": {"x": {}}, "storage": {}},
        {"server": 1, "partitions": {}, "storage": {"a": {"connected": True}}},
        {"server": 1, "partitions": {}, "storage": {"a": 3}},
        {"server": 1, "partitions": {"0": {**READY, "waits_for": None}}, "storage": {}},
        {"server": 1, "partitions": {"0": READY}, "storage": {}},
    ],
)
def test_health_documents_of_other_forms_are_known_as_such(document: dict[str, Any]) -> None:
    assert not _is_known(document)


def test_a_health_document_with_all_that_is_looked_at_is_known() -> None:
    assert _is_known({"server": 1, "partitions": {"0": {**READY, "waits_for": ""}}, "storage": {}})


def test_a_storage_node_whose_disk_is_full_is_not_well() -> None:
    """Told once, by its own judgement; also of a node of an older version, which tells only how much is free."""
    document: dict[str, Any] = {"directory": "/d", "disk": {"free_bytes": 0, "total_bytes": 2**40}}
    full = "the disk of /d is full: archive and trim the log, or give it a larger disk"
    assert _storage_status("a", "a:1", document, {}).troubles == [full]
    document["no_room"] = "no space left"
    assert _storage_status("a", "a:1", document, {}).troubles == [full]
    document["disk"]["free_bytes"] = 2**30
    (trouble,) = _storage_status("a", "a:1", document, {}).troubles
    assert trouble.startswith("the disk of /d had no room for something")
    assert trouble.endswith("no space left")
    document["no_room"] = ""
    assert _storage_status("a", "a:1", document, {}).wellness is Wellness.WELL


def test_a_storage_node_whose_disk_hangs_is_not_well_and_its_late_copies_say_so() -> None:
    document: dict[str, Any] = {"directory": "/d", "disk_waits_s": 4.9, "scrub": {"damages": []}}
    assert _storage_status("a", "a:1", document, {}).wellness is Wellness.WELL
    document["disk_waits_s"] = 12.3
    (trouble,) = _storage_status("a", "a:1", document, {}).troubles
    assert trouble.startswith("the disk of /d hangs: it was asked for something 12 s ago, and has not done it yet")
    assert _storage_status("a", "a:1", document, {}).unable == [trouble]
    health = {
        "ready": True, "engaged": ["b"], "members": ["a", "b"], "committed": 3, "generation": 1, "session": 1,
        "late": {"a": "it did not answer within 10 s"},
    }  # fmt: skip
    linked = {"a": {"connected": True, "error": "", **document}, "b": {"connected": True, "error": ""}}
    answer = {"server": 1, "storage": linked, "partitions": {"0": health}}
    assert condition_of(0, answer, health).left_out == {"a": trouble}


def test_a_storage_node_whose_clock_is_off_is_told_in_its_own_row() -> None:
    def server(ahead_s: float, *, unfit: bool = False) -> dict[str, Any]:
        return {"storage": {}, "clock": {"unfit": unfit, "bound_s": 10.0, "storage": {"a": ahead_s, "b": 0.0}}}

    (trouble,) = _storage_status("a", "a:1", {}, {1: server(7_200.0), 2: server(7_201.0)}).troubles
    assert trouble == "its clock is 2.0 hours ahead of that of server 1: set the clocks (NTP)"
    (_, trouble) = _storage_status("a", "a:1", ConnectionLost("no answer"), {1: server(-60.0)}).troubles
    assert trouble.startswith("its clock is 60.0 s behind that of server 1")
    assert not _storage_status("b", "b:1", {}, {1: server(7_200.0)}).troubles
    assert not _storage_status("a", "a:1", {}, {1: server(7_200.0, unfit=True)}).troubles, "the server's is wrong"
    assert not _storage_status("a", "a:1", {}, {1: {"storage": {}}}).troubles, "one of an older version"
    full = {"directory": "/d", "disk": {"free_bytes": 7}}
    cause, _ = _storage_status("a", "a:1", full, {1: server(7_200.0)}).troubles
    assert cause.startswith("the disk of /d is full"), "what matters most is told first"


def test_a_server_whose_clock_has_just_jumped_blames_no_storage_node() -> None:
    clocks = {"a": 86_400.0, "b": 86_400.1, "c": 0.0}
    server = {"storage": {}, "clock": {"unfit": False, "bound_s": 10.0, "storage": clocks}}
    assert not _storage_status("a", "a:1", {}, {1: server}).troubles
    clocks["b"] = 0.1
    assert len(_storage_status("a", "a:1", {}, {1: server}).troubles) == 1


def test_a_server_that_answers_and_is_not_registered_is_not_to_be_started() -> None:
    told, why = ["server b is not registered"], "the clock of this server is off"
    left = "it runs, and has left the servers that may own partitions"
    assert ServerStatus(1, "m1:7000", False, 0, told=[*told, why], name="m1", unable=[why]).troubles == [
        f"{left}: {why}", *told,
    ]  # fmt: skip
    assert ServerStatus(1, "m1:7000", False, 0, told=told, name="m1").troubles == [
        f"{left}, and says nothing of why", *told,
    ]  # fmt: skip
    gone = ServerStatus(1, "m1:7000", False, 0, "no answer", name="m1").troubles
    assert "start it" in gone[1]


def test_what_a_storage_node_says_of_itself_is_in_its_row() -> None:
    damage = {"partition": 3, "what": "no frame", "found_us": 1, "repaired_us": 0}
    document = {
        "directory": "/d",
        "gone": "[directory_gone] /d is not the node's any more",
        "unavailable": {"7": "its files are damaged"},
        "scrub": {"damages": [damage, {**damage, "repaired_us": 2}]},
    }
    assert _storage_status("a", "a:1", document, {}).troubles == [
        "[directory_gone] /d is not the node's any more",
        "partition 7 can't be used: its files are damaged",
        "the scrub of /d found no frame: not repaired yet",
    ]
    assert _storage_status("a", "a:1", {}, {}).troubles == [], "one of an older version"


@pytest.mark.parametrize(
    ("found", "repaired", "listed", "said"),
    [
        (3, 3, [], []),
        (150, 0, ["the last"] * 100, ["found the last, and 149 more: not repaired yet"]),
        (150, 149, [], ["found a damage that it lists no more: not repaired yet"]),
    ],
)
def test_damages_that_a_storage_node_lists_no_more_are_told_until_they_are_repaired(
    found: int, repaired: int, listed: list[str], said: list[str]
) -> None:
    damages = [{"partition": 3, "what": what, "found_us": 1, "repaired_us": 0} for what in listed]
    document = {"directory": "/d", "scrub": {"found": found, "repaired": repaired, "damages": damages}}
    assert _storage_status("a", "a:1", document, {}).troubles == [f"the scrub of /d {each}" for each in said]


@in_a_town(partitions=PARTITIONS)
async def test_a_place_without_a_cluster_is_an_error_and_no_status(town: Town) -> None:
    async def look(observer: ClusterObserver) -> ClusterStatus:
        async def nothing() -> None:
            raise NotInitialized("no cluster here")

        observer._coordinator.description = nothing  # type: ignore[method-assign,assignment]
        return await observer.look()

    with pytest.raises(NotInitialized):
        await observed(town, look)


@in_a_town(partitions=PARTITIONS)
async def test_copies_that_promised_later_sessions_tell_of_an_older_coordinator_while_no_server_answers(
    town: Town,
) -> None:
    await well(town)
    service, (server,) = town.cluster.service, town.cluster.servers
    older = service.snapshot()
    held_down(server)
    server.let_up()
    await well(town)
    held_down(server)
    latest = service.snapshot()
    assert latest["description"] == older["description"]
    assert not (await status_of(town)).belief.doubt, "all is well but for the server"
    service.restore({**latest, "partition-1": older["partition-1"]})
    status = await status_of(town)
    assert status.belief.doubt.startswith("it answers, but what it holds is older than what copies on storage")
    assert "partitions 1 " in status.belief.doubt
    service.restore(latest)
    assert not (await status_of(town)).belief.doubt


@in_a_town(partitions=PARTITIONS)
async def test_a_partition_is_described_with_what_the_coordinator_keeps_of_its_replicas(town: Town) -> None:
    await town.application("writer", lambda log: log.append(b"first", 1))
    await well(town)
    found = await observed(town, lambda observer: describe_partition(observer, 1))
    assert [each.name for each in found.replicas] == list(found.value.members)
    assert {each.state for each in found.replicas} == {"engaged"}
    assert {each.session for each in found.replicas} == {found.value.session}
    assert found.document()["coordinator"]["members"] == list(found.value.members)
    with pytest.raises(UnknownPartition):
        await observed(town, lambda observer: describe_partition(observer, PARTITIONS))

    assert found.required == found.document()["required"] == ""

    async def cut_off(observer: ClusterObserver) -> None:
        async def silent() -> None:
            raise CoordinatorUnavailable("it went away between two reads")

        await observer._coordinator.describe()  # so that the partition's value can be read without it
        observer._coordinator.description = silent  # type: ignore[method-assign,assignment]
        with pytest.raises(CoordinatorUnavailable, match="it went away"):
            await describe_partition(observer, 1)

    await observed(town, cut_off)


@in_a_town(partitions=PARTITIONS)
async def test_what_is_required_is_shown_while_it_cant_be_had_too(town: Town) -> None:
    await well(town)
    assert not (await town.operator(lambda host, coordinator: require(host, coordinator, 3, 0, 20.0))).waiting
    held_down(town.cluster.storage[0])
    status = await until(town, lambda each: each.wellness is Wellness.FAILED)
    assert status.document()["required"] == status.required == "3 copies"
    found = await observed(town, lambda observer: describe_partition(observer, 1))
    assert "required" not in found.status.counts, "no session acts by it"
    assert found.required == found.document()["required"] == "3 copies"


@in_a_town
async def test_a_server_that_has_left_the_members_does_not_miss_itself(town: Town) -> None:
    async def look(host: Host, coordinator: Coordinator) -> None:
        await coordinator.expect_server("gone", ExpectedServer(4711, "nobody:1"))
        watch = ExpectedServersWatch(coordinator, "aside", CoordinatorTrouble(host.clock))
        task = asyncio.ensure_future(watch.run(4712, "aside:1"))  # it runs, and is not registered
        await wait_until(lambda: bool(watch.missing))
        assert watch.seen is not None
        assert "aside" in watch.seen.value.servers
        assert watch.missing == {"gone": "nobody:1"}
        task.cancel()

    await town.operator(look)


def test_partitions_with_copies_on_the_same_nodes_say_the_same_in_whatever_order_they_have_them() -> None:
    def said(*names: str) -> tuple[str, ...]:
        health = {"ready": True, "required": "3 copies", "stops_without": names}
        zones = {**health, "stops_without_zones": names}
        answers = {name: ReplicaAnswer(1, -1, -1, -1, 0, None) for name in names}
        doubt = Undecided(names, 2)
        return without_spare(health), without_spare(zones), doubt.waits_for({}), doubt.waits_for(answers)

    assert said("c", "a", "b") == said("b", "c", "a") == said("a", "b", "c")
    assert "storage nodes a, b, c it" in said("c", "a", "b")[0]


def test_copies_are_not_counted_while_an_owner_does_not_tell_where_they_are() -> None:
    description = ClusterDescription(bytes(16), 2, ("a", "b", "c"))
    owners = {0: Owner(1, "s:1", 1), 1: Owner(2, "t:1", 1)}
    both = {
        1: {"partitions": {"0": {"members": ["a", "b"], "next": None}}},
        2: {"partitions": {"1": {"members": ["b"], "next": ["b", "c"]}}},
    }
    assert _copies_in(description, owners, both) == {"a": 1, "b": 2, "c": 1}
    assert _copies_in(description, owners, both | {2: "no answer"}) is None
    assert _copies_in(description, owners, both | {2: {"partitions": {"1": {"members": None}}}}) is None
    assert _copies_in(description, {0: owners[0]}, both) is None


def test_an_owner_that_is_not_registered_says_until_when_it_is_listed() -> None:
    """Also one that was removed as the last server: nobody misses it, and nobody has its partitions."""
    (line,) = ServerStatus(7, "till:7202", registered=False, partitions=4).troubles
    assert "also once it was removed, until another server has them" in line
