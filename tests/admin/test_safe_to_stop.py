"""Which nodes may stop, or are gone for good, what keeps a partition, and what is said of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.cluster import (
    ClusterStatus,
    Wellness,
)
from polonaise.admin.logs import TimeLimit, what_keeps
from polonaise.admin.opening import opened_coordinator
from polonaise.admin.requiring import require
from polonaise.admin.safestop import safe_to_stop
from polonaise.admin.servers import move_owner, remove_server
from polonaise.admin.topics import create_topic
from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, ExpectedServer, Owner, Registration
from polonaise.errors import BadOption, CoordinatorOutdated, CoordinatorUnavailable, DeadlineExceeded, UnknownPartition
from polonaise.host import Host
from rigs.cluster import unserved
from rigs.log import remove_entry
from rigs.observing import status_of, until, well
from rigs.town import Town, held_down, in_a_town, in_an_application

PARTITIONS = 3
NOTICED_S = 10.0
"""Virtual seconds within which a loss that a storage node can see is told: a sixth of an idle owner's pulse."""


@in_a_town(partitions=PARTITIONS)
async def test_what_stops_without_a_node_is_said_before_it_is_stopped(town: Town) -> None:
    def stops(status: ClusterStatus) -> dict[str, list[str]]:
        return {each.node: each.stops for each in safe_to_stop(status, None)}

    status = await until(town, lambda status: not status.wellness and len(status.storage) == 3)
    names, server = [each.name for each in status.storage], str(status.servers[0].server)
    told = stops(status)
    assert [told[name] for name in names] == [[], [], []]
    assert "no other server" in told[server][0]
    assert "partitions 0-2" in told[server][0]
    held_down(town.cluster.storage[1])
    gone = town.cluster.storage_id(town.cluster.storage[1])
    status = await until(town, lambda status: all(each.state == "degraded" for each in status.partitions))
    told = stops(status)
    assert told[gone] == [], "it is away already"
    for name in {*names} - {gone}:
        assert told[name] == ["partitions 0-2 would take no appends until it is back"]
    held_down(town.cluster.servers[0])
    (verdict,) = safe_to_stop(await status_of(town), gone)
    assert verdict.stops == ["partitions 0-2: not ready, or not known to be, already"]
    with pytest.raises(BadOption, match="no node 'nobody'"):
        safe_to_stop(status, "nobody")


@pytest.mark.parametrize("what", ["segment", "directory", "nothing written"])
@in_a_town(partitions=PARTITIONS)
async def test_a_copy_that_an_idle_node_has_lost_is_counted_by_nobody(town: Town, *, what: str) -> None:
    bodies = [] if what == "nothing written" else [b"there"]
    await town.append(*bodies)
    await until(town, lambda status: not status.wellness and len(status.storage) == 3)
    losing, other = (town.cluster.storage[number] for number in (1, 2))
    lost, needed = town.cluster.storage_id(losing), town.cluster.storage_id(other)
    disk = losing.machine.disk
    disk.fail_appends(None)  # it can't be copied anew before anybody has looked
    segment = next(path for path in disk.paths() if path.endswith(".seq") and path.split("/")[-2] == "0")
    remove_entry(disk, segment.rpartition("/")[0] if what == "directory" else segment)
    await asyncio.sleep(NOTICED_S)
    status = await status_of(town)
    first, *others = (each.condition for each in status.partitions)
    assert first is not None
    assert list(first.behind) == [lost]
    assert lost not in first.engaged
    assert all(each is not None and lost in each.engaged for each in others)
    (verdict,) = safe_to_stop(status, needed)
    assert verdict.stops == ["partition 0 would take no appends until it is back"]
    assert safe_to_stop(status, lost)[0].stops == [], "it is away already"
    disk.mend()
    await well(town)
    assert town.lasts() == [len(bodies) - 1] * 3


@in_a_town(partitions=PARTITIONS, servers=2)
async def test_nothing_is_said_to_go_on_that_is_not_known_to(town: Town) -> None:
    status = await until(town, lambda each: len(each.servers) == 2 and not each.wellness and len(each.storage) == 3)
    assert not any(each.stops for each in safe_to_stop(status, None))
    unready = [replace(each, condition=None, unknown="no answer") for each in status.partitions]
    silent = CoordinatorUnavailable("no answer")
    for worse, why in (
        (replace(status, partitions=unready), "partitions 0-2: not ready"),
        (replace(status, coordinator_error=silent), "the coordinator can't be read"),
        (replace(status, partitions=[]), ""),
    ):
        for verdict in safe_to_stop(worse, None):
            assert why in "; ".join(verdict.stops), verdict
            assert bool(verdict.stops) == bool(why)
    unseen = [replace(each, registered=None) for each in status.servers]
    assert all("no other server" in safe_to_stop(replace(status, servers=unseen), str(each.server))[0].stops[0]
               for each in status.servers if each.partitions)  # fmt: skip
    first = status.servers[0]
    assert [each.node for each in safe_to_stop(status, first.address)] == [first.name or first.address]
    named = replace(status, servers=[replace(each, name=f"s{each.server}") for each in status.servers])
    assert [each.node for each in safe_to_stop(named, first.address)] == [f"s{first.server}"]
    namesakes = replace(status, servers=[replace(each, name="s") for each in status.servers])
    assert [each.node for each in safe_to_stop(namesakes, "s")] == [
        f"{each.server} (s) at {each.address}" for each in status.servers
    ]


@pytest.mark.slow
@in_a_town(partitions=PARTITIONS, servers=2)
async def test_a_partition_is_given_to_another_server_and_stays_there(town: Town) -> None:
    await until(town, lambda status: not status.wellness and sorted(s.partitions for s in status.servers) == [1, 2])
    status = await status_of(town)
    more, less = sorted(status.servers, key=lambda each: -each.partitions)
    number = next(p.partition for p in status.partitions if p.owner and p.owner.server == more.server)

    async def move(partition: int, to: str) -> Owner:
        return await town.operator(lambda host, coordinator: move_owner(host, coordinator, partition, to, 30))

    last = PARTITIONS - 1  # of equal ones the servers would give this one away
    assert last != number
    with pytest.raises(BadOption, match="would not stay"):
        await move(last, str(more.server))
    owner = await move(number, str(less.server))
    assert owner.server == less.server
    assert await move(number, less.address) == owner, "it has it already"
    await town.application("writer", lambda log: log.append(b"there", number))
    await asyncio.sleep(60)
    after = await well(town)
    assert after.partitions[number].owner == owner, "nobody has taken it back"
    with pytest.raises(BadOption, match="no server 'nobody'"):
        await move(0, "nobody")
    with pytest.raises(UnknownPartition):
        await move(99, str(less.server))


@pytest.mark.slow
@in_a_town(partitions=PARTITIONS, servers=2)
async def test_a_server_that_could_not_serve_is_nobody_who_takes_over(town: Town) -> None:
    status = await until(town, lambda each: sorted(s.partitions for s in each.servers) == [1, 2] and not each.wellness)
    machines = {town.cluster.owners[node.name].id: node.machine.name for node in town.cluster.servers}
    stopped, other = (each.server for each in status.servers)
    storage = [node.machine.name for node in town.cluster.storage]
    network = town.world.network
    network.partition([machines[other]], storage[:2])

    def without(status: ClusterStatus) -> str:
        (verdict,) = safe_to_stop(status, str(stopped))
        return "; ".join(verdict.stops)

    cut = await until(town, lambda each: "does not reach storage nodes storage-0" in without(each))
    assert f"no other server can take over (server {other}: it does not reach" in without(cut)
    given_up = await until(town, lambda each: "has given up" in without(each) and "not ready" not in without(each))
    # As soon as it has given its partitions to the other one, nothing but its own words tell that it is no use.
    (row,) = (each for each in given_up.servers if each.server == other)
    reaching = replace(row, reached=frozenset(each.name for each in status.storage))
    assert "has given up" in without(replace(given_up, servers=[given_up.servers[0], reaching]))
    no_store = replace(reaching, unable=("the fragment store is away",), given_up=())
    assert "fragment store is away" in without(replace(given_up, servers=[given_up.servers[0], no_store]))
    assert (
        without(replace(given_up, servers=[*given_up.servers, replace(reaching, server=99, unable=(), given_up=())]))
        == ""
    )
    network.heal()
    await until(town, lambda each: not without(each))


@in_a_town(partitions=2, servers=2)
async def test_what_nobody_can_serve_keeps_no_server_from_taking_over_the_rest(town: Town) -> None:
    async def closed(host: Host, coordinator: Coordinator) -> None:
        """Make a topic whose two partitions can't go on without all three storage nodes."""
        await create_topic(coordinator, "strict", 2, 20.0)
        await require(host, coordinator, 3, 0, 20.0, "strict")

    await town.operator(closed)
    await until(town, lambda each: not any(row.wellness is Wellness.FAILED for row in each.partitions))
    held_down(town.cluster.storage[0])

    status = await until(town, lambda each: all(server.given_up for server in each.servers))
    assert {each for server in status.servers for each in server.given_up} == {2, 3}
    assert [each.state for each in status.partitions] == ["degraded", "degraded", "not ready", "not ready"]
    owner = status.partitions[0].owner
    assert owner is not None
    (verdict,) = safe_to_stop(status, str(owner.server))
    for line in verdict.stops:
        assert line.startswith(("partition 2:", "partition 3:", "partitions 2-3:")), line
    (other,) = (each for each in status.servers if each.server != owner.server)
    # One that has given up what is served is unable itself, and it is as likely as any to get what is left.
    ailing = replace(other, server=98, given_up=(1,))
    spare = replace(other, server=99, given_up=())
    for servers, said in (([ailing], "no other server can take"), ([ailing, other], "may take over"), ([spare], "")):
        worse = replace(status, servers=[each for each in status.servers if each is not other] + servers)
        (verdict,) = safe_to_stop(worse, str(owner.server))
        of_open = [line for line in verdict.stops if line.startswith(("partition 0", "partitions 0"))]
        assert [said in line for line in of_open] == [True] * bool(said), verdict.stops
    for node in town.cluster.servers:
        if town.cluster.owners[node.name].id == owner.server:
            held_down(node)
    after = await until(town, lambda each: [row.state for row in each.partitions[:2]] == ["degraded"] * 2)
    assert owner.server not in [row.owner and row.owner.server for row in after.partitions[:2]], "so it was"


@pytest.mark.parametrize("how", ["no room", "a copy that is lost"])
@in_a_town(partitions=PARTITIONS)
async def test_a_storage_node_that_says_that_it_cant_write_counts_as_one_that_is_lost(town: Town, *, how: str) -> None:
    status = await until(town, lambda each: not each.wellness and all(node.free_bytes for node in each.storage))
    first, second, third = (each.name for each in status.storage)
    told = {each.node: each.stops for each in safe_to_stop(status, None)}
    assert [told[name] for name in (first, second, third)] == [[], [], []]
    if how == "no room":
        town.cluster.storage[0].machine.disk.fill(10)
        status = await until(town, lambda each: bool(each.storage[0].unable))
        assert all(first in each.condition.engaged for each in status.partitions if each.condition is not None)
        stops, why = "partitions 0-2 would", "the disk of"
    else:  # one that its owner has not noticed, as with a storage node of an earlier version
        status.storage[0] = replace(status.storage[0], unusable={"1": "a segment is gone"})
        stops, why = "partition 1 would", "a segment is gone"
    told = {each.node: each.stops for each in safe_to_stop(status, None)}
    assert told[first] == [], "the others are a quorum"
    if how == "no room":  # the same if only the servers reach it
        town.world.network.partition(["operator"], [town.cluster.storage[0].machine.name])
        unseen = await status_of(town)
        assert unseen.storage[0].trouble
        assert {each.node: each.stops for each in safe_to_stop(unseen, None)}[second] == told[second]
    for name in (second, third):
        (line,) = told[name]
        assert line.startswith(f"{stops} take no appends until it is back (storage node {first} can't write: {why}")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "told"), [
    ("expected_servers", "Nothing was changed"), ("members", "Nothing was changed"),
    ("forget_server", "may have made the change: look again"),
])  # fmt: skip
def test_a_coordinator_that_falls_silent_is_told_with_whether_a_removal_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    async def scenario() -> None:
        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        async with opened_coordinator(place) as (_, coordinator):
            await coordinator.expect_server("there", ExpectedServer(1, "127.0.0.1:8"))
            monkeypatch.setattr(coordinator, what, silent)
            with pytest.raises(CoordinatorUnavailable, match=told):
                await remove_server(coordinator, "there", 1.0 if what == "forget_server" else 0.1)

    place = unserved(tmp_path / "coordinator", ClusterDescription.new(bytes(16), 1, {"a": "127.0.0.1:1"}))
    asyncio.run(scenario())


def test_in_an_older_coordinator_nobody_is_told_to_stop_a_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened_coordinator(place) as (_, coordinator):
            await coordinator.expect_server("there", ExpectedServer(1, "127.0.0.1:8"))
            await coordinator.register(Registration(1, "127.0.0.1:8"))

            async def outdated() -> None:
                raise CoordinatorOutdated("it was put back to an older state")

            coordinator.ask_before_changes(outdated)
            with pytest.raises(CoordinatorOutdated):
                await remove_server(coordinator, "there", 3.0)

    place = unserved(tmp_path / "coordinator", ClusterDescription.new(bytes(16), 1, {"a": "127.0.0.1:1"}))
    asyncio.run(scenario())


def limit_of(seconds: float) -> TimeLimit:
    limit = TimeLimit(seconds)
    limit.begin()
    return limit


@in_a_town
async def test_disks_that_hang_are_told_to_who_waits_for_the_partition_within_its_time(town: Town) -> None:
    loop = asyncio.get_running_loop()

    async def one_that_waits(log: Log) -> None:
        began_s = loop.time()
        asking = asyncio.create_task(what_keeps(log, limit_of(6.0)))
        with pytest.raises(DeadlineExceeded) as given_up:
            await log.ready(0, timeout=6.0)
        assert "disk" not in given_up.value.text, "else nobody need be asked"
        assert asking.done()
        assert loop.time() - began_s < 6.1
        ((why, partitions),) = asking.result().items()
        assert why.startswith("the disks of ")
        assert why.endswith(" are slow: a sync takes seconds, and commits wait for it")
        assert partitions == [0]

    await town.append(b"first")
    for node in town.cluster.storage[1:]:
        node.machine.disk.slow(3_600.0)
    appending = asyncio.create_task(town.append(b"waits"))
    await asyncio.sleep(4.0)
    await town.application("other", one_that_waits)
    appending.cancel()


@in_an_application
async def test_nobody_is_asked_once_an_answer_has_come(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    asked = []
    log.health = lambda *_, **__: asked.append(0)  # type: ignore[method-assign, assignment]
    limit = limit_of(4.0)
    asking = asyncio.create_task(what_keeps(log, limit))
    await asyncio.sleep(1.0)
    limit.begin()
    assert await asking == {}
    assert not asked
