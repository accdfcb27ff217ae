"""A coordinator that lost its data, or is of an older state: nothing is appended until its latest state is back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from polonaise.admin.asking import ask_noted
from polonaise.admin.headresets import head_state
from polonaise.admin.topics import create_topic
from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.coordination.backend import not_following, outdated
from polonaise.coordination.values import ASSIGNMENT, Assignment, ClusterDescription, PartitionValue
from polonaise.errors import ConsistencyLost, CoordinatorLost, CoordinatorOutdated, PolonaiseError
from polonaise.host import Host
from polonaise.node import processes
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.protocol.recovery import OlderStateProved, ReplicaAnswer, decide
from polonaise.terms import PartitionId, ServerId
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from rigs.town import Town, held_down
from rigs.waiting import time_passes


async def accepted(town: Town, body: bytes) -> bool:
    """Whether an append is accepted within 20 seconds."""

    async def main(log: Log) -> bool:
        try:
            async with asyncio.timeout(20):
                await log.append(body, 0)
        except (TimeoutError, PolonaiseError):
            return False
        return True

    try:
        return await town.application("writer", main)
    except PolonaiseError:
        return False


def stop(town: Town) -> None:
    for node in town.cluster.servers:
        held_down(node)


def start(town: Town) -> None:
    for node in town.cluster.servers:
        node.let_up()


def restarted(town: Town) -> None:
    stop(town)
    start(town)


async def older_state(town: Town) -> list[bytes]:
    """Put an older copy of the coordinator in place and restart the server again and again; return what was accepted.

    The latest state is put back at the end, and the log goes on.
    """
    await town.append(b"first")
    older = town.cluster.service.snapshot()
    for _ in range(3):
        restarted(town)
        await time_passes(10)
        await town.append(b"more")
    latest = town.cluster.service.snapshot()
    stop(town)
    town.cluster.service.restore(older)
    start(town)
    wrong = []
    for number in range(6):
        body = b"never %d" % number
        if await accepted(town, body):
            wrong.append(body)
        restarted(town)
        await time_passes(10)
    stop(town)
    if not wrong:
        town.cluster.service.restore(latest)
        start(town)
        await town.append(b"last")
        assert await town.log() == [b"first", b"more", b"more", b"more", b"last"]
    return wrong


@pytest.mark.slow
def test_an_older_state_of_the_coordinator_alone_takes_no_append_however_often_servers_start() -> None:
    assert Town(1).run(older_state) == []


def test_a_replica_that_joined_the_very_session_that_is_claimed_proves_an_older_state() -> None:
    value = PartitionValue.initial(("a", "b", "c"))
    for joined, proved in ((6, 6), (5, 5), (4, None)):
        answer = ReplicaAnswer(joined=joined, max_synced=-1, last_crc=0, confirmed=-1, prepared=-1, lost_above=None)
        decided = decide(replace(value, session=5), {"a": answer})
        assert getattr(decided, "outdated", None) == proved


async def lost_data(town: Town) -> bool:
    """Wipe the coordinator and restart the server again and again; return whether anything was made or accepted.

    If nothing was, the latest state is put back at the end, and the log goes on.
    """
    await town.append(b"first")
    latest = town.cluster.service.snapshot()
    stop(town)
    town.cluster.service.restore({})
    for _ in range(2):
        start(town)
        await time_passes(20)
        if await accepted(town, b"never") or "description" in town.cluster.service.snapshot():
            return True
        stop(town)
    town.cluster.service.restore(latest)
    start(town)
    await town.append(b"last")
    assert await town.log() == [b"first", b"last"]
    return False


def with_the_look_of_a_process(patch: pytest.MonkeyPatch, told: list[PolonaiseError]) -> None:
    """Have the town's servers look at their cluster before they start, as processes of servers do."""
    serve = Cluster._server

    async def looked(self: Cluster, node: Node, host: Host) -> None:
        try:
            await processes._check_cluster(host, self.coordinator(node, host), self.description.nodes, None)
        except CoordinatorLost as error:
            told.append(error)
            await asyncio.get_running_loop().create_future()
        await serve(self, node, host)

    patch.setattr(Cluster, "_server", looked)


def test_a_coordinator_that_lost_its_data_takes_no_append_and_nothing_is_made_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[PolonaiseError] = []
    with_the_look_of_a_process(monkeypatch, told)
    assert not Town(1).run(lost_data)
    assert len(told) >= 2
    assert all("has lost its data" in str(each) for each in told)


async def changed_under_servers_that_run(town: Town, *, empty: bool) -> tuple[list[bytes], list[bytes], str]:
    """Wipe the coordinator, or put an older copy in its place, while the servers run; put the latest state back later.

    Return what was accepted, what the log holds at the end, and what the servers have told of it meanwhile.
    """
    body = 0
    accepted_bodies: list[bytes] = []

    async def tried() -> None:
        nonlocal body
        body += 1
        if await accepted(town, b"%d" % body):
            accepted_bodies.append(b"%d" % body)

    await tried()
    older = town.cluster.service.snapshot()
    for _ in range(2):
        restarted(town)
        await time_passes(10)
        await tried()
    latest = town.cluster.service.snapshot()
    town.cluster.service.restore({} if empty else older)
    for _ in range(3):
        await tried()
        await time_passes(10)
    told = "; ".join(server.health()["coordinator"] for server in town.cluster.owners.values())
    told += "; ".join(
        str(each) for server in town.cluster.owners.values() for each in server.health()["partitions"].items()
    )
    town.cluster.service.restore(latest)
    await time_passes(20)
    await tried()
    assert accepted_bodies[-1] == b"%d" % body, "it goes on by itself once the latest state is back"
    return accepted_bodies, await town.log(), told


@pytest.mark.parametrize(("empty", "code"), [(True, "coordinator_lost"), (False, "coordinator_outdated")])
def test_servers_that_run_say_that_the_coordinator_lost_data_lose_nothing_and_go_on_when_it_is_back(
    empty: bool, code: str
) -> None:
    accepted_bodies, log, told = Town(1).run(lambda town: changed_under_servers_that_run(town, empty=empty))
    assert log == accepted_bodies
    assert f"[{code}]" in told


async def noted(town: Town) -> list[ClusterDescription | None]:
    """Return the description that each storage node has noted."""

    async def ask(host: Host, _: Coordinator) -> list[ClusterDescription | None]:
        nodes = [await ask_noted(host, town.name(number), 5.0) for number in range(3)]
        return [answer.noted.description for _, answer in nodes]

    return await town.operator(ask)


async def changed_while_nobody_serves(town: Town) -> tuple[list[ClusterDescription | None], ClusterDescription]:
    """Change an older copy of the coordinator without servers, then start them at it.

    Return what storage nodes have noted at the end, and the latest description.
    """

    async def topic(_: Host, coordinator: Coordinator) -> None:
        await create_topic(coordinator, "pay", 2, 10)

    async def zones(_: Host, coordinator: Coordinator) -> None:
        for zone in ("north", "south", "west", "east"):
            current = await coordinator.description()
            changed = current.value.zoned(current.value.storage[0], zone)
            assert await coordinator.set_description(changed, current.version) is not None

    await town.append(b"first")
    await time_passes(10)
    older = town.cluster.service.snapshot()
    restarted(town)
    await time_passes(10)
    await town.append(b"more")
    await town.operator(topic)
    await time_passes(20)
    latest = await town.description()
    assert await noted(town) == [latest] * 3
    stop(town)
    town.cluster.service.restore(older)
    await town.operator(zones)
    start(town)
    await time_passes(30)
    with pytest.raises(CoordinatorOutdated, match=r"a reset of the head does not help\. .*was restored from an older"):
        await town.operator(lambda host, coordinator: head_state(host, coordinator, 0, 5.0))
    return await noted(town), latest


def test_servers_that_refuse_an_older_state_have_nothing_of_it_noted() -> None:
    noted_last, latest = Town(1, notes_s=1.0).run(changed_while_nobody_serves)
    assert noted_last == [latest] * 3


@pytest.mark.parametrize("error", [outdated("description", 3, 2), not_following("description", 3, 4)])
def test_what_this_process_has_seen_proves_an_older_state_as_a_replica_does(error: CoordinatorOutdated) -> None:
    blocked = Readiness(0).attempt_failed(error, operator=False)
    assert isinstance(blocked, OlderStateProved)
    assert blocked.code == ConsistencyLost.code
    assert not isinstance(Readiness(0).attempt_failed(ConsistencyLost("a fork"), operator=False), OlderStateProved)


def words_of(town: Town) -> str:
    """Return what the servers that run say of the coordinator."""
    return " / ".join(str(server.health()["coordinator"]) for server in town.cluster.running_servers)


async def asks_for_an_id(town: Town) -> bool:
    """Whether the servers give a client an id within 5 seconds."""

    async def ask(host: Host, _: Coordinator) -> bool:
        servers = town.cluster.servers_for(host)
        try:
            async with asyncio.timeout(5):
                await servers.unique_id()
        except (TimeoutError, PolonaiseError):
            return False
        finally:
            await servers.close()
        return True

    return await town.operator(ask)


async def went_back_by_a_version(town: Town, *, key: str) -> tuple[bool, str]:
    """Put one value back by a version while two servers run and are asked for ids; put the latest state back later.

    Return whether anything was changed meanwhile, and what the servers said of it in the end.
    """
    service = town.cluster.service
    await town.append(b"first")
    older = service.snapshot()[key]
    service.compare_and_set(key, older.contents, None)
    await time_passes(10)  # both servers see that
    latest = service.snapshot()
    older_state = {**latest, key: older}
    service.restore(older_state)
    await time_passes(0 if key == "unique-id" else 8)  # servers look at others themselves
    given = False
    for _ in range(10):
        given |= await asks_for_an_id(town)
        await time_passes(5)
    changed, words = given or service.snapshot() != older_state, words_of(town)
    service.restore(latest)
    await time_passes(20)
    assert words_of(town) == " / "
    assert await asks_for_an_id(town)
    await town.append(b"last")
    assert await town.log() == [b"first", b"last"]
    return changed, words


@pytest.mark.slow
@pytest.mark.parametrize("key", ["unique-id", "assignment", "description"])
def test_servers_change_nothing_in_an_older_coordinator_and_say_so_until_the_latest_state_is_back(key: str) -> None:
    changed, words = Town(1, servers=2, notes_s=1).run(lambda town: went_back_by_a_version(town, key=key))
    assert not changed
    assert all("[coordinator_outdated]" in each and "went back from" in each for each in words.split(" / ")), words


async def ids_of_an_older_state(town: Town) -> str:
    """Have a server give ids out in an older state that nobody has noticed, and put the latest one back.

    Return what it says then. Started again, it goes on.
    """
    service = town.cluster.service
    await town.append(b"first")
    latest = service.snapshot()
    await time_passes(10)
    for _ in range(2):
        assert await asks_for_an_id(town)
    service.restore(latest)
    await time_passes(10)
    words = words_of(town)
    restarted(town)
    await time_passes(20)
    assert words_of(town) == ""
    await town.append(b"last")
    return words


def test_a_server_that_has_seen_more_in_an_older_state_says_that_it_has_to_be_started_again() -> None:
    words = Town(1, notes_s=1).run(ids_of_an_older_state)
    assert "If the latest state is there already, start this process again" in words


async def older_state_for_one_that_was_stopped(town: Town) -> list[str]:
    """Stop a server until the other one has taken over from it, and let it go on with the state before that.

    Return whose partitions were moved there meanwhile. The latest state is put back at the end, and the log goes on.
    """
    for partition in (0, 1):
        await town.append(b"first", partition=partition)
    await time_passes(60)  # both servers own a partition
    service = town.cluster.service

    def owners() -> dict[PartitionId, ServerId]:
        owned = Assignment.decode(service.snapshot()[ASSIGNMENT].contents).owners
        return {partition: each.server for partition, each in owned.items()}

    older, before = service.snapshot(), owners()
    assert len({*before.values()}) == 2
    process = town.cluster.servers[0].process
    assert process is not None
    process.pause()
    await time_passes(20)
    assert len({*owners().values()}) == 1
    for partition in (0, 1):
        await town.append(b"second", partition=partition)
    latest = service.snapshot()
    service.restore(older)
    process.resume()
    moved = []
    for _ in range(40):
        await time_passes(2)
        moved += [f"{before} to {owners()}"] if owners() != before else []
    service.restore(latest)
    await time_passes(30)
    for partition in (0, 1):
        await town.append(b"last", partition=partition)
        assert await town.log(partition) == [b"first", b"second", b"last"]
    assert words_of(town) == " / "
    return moved


@pytest.mark.slow
def test_a_server_whose_replicas_prove_an_older_state_moves_nothing_there() -> None:
    assert Town(1, partitions=2, servers=2, leases=True).run(older_state_for_one_that_was_stopped) == []
