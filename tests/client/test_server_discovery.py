"""Clients without a coordinator: any server tells them of the cluster, and each change of the assignment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log, partitions_of
from polonaise.client.routes import Routes
from polonaise.client.serverdiscovery import ServerDiscovery, _assignment_in
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ASSIGNMENT, Assignment, Owner, Versioned
from polonaise.errors import (
    Closed,
    ConnectionLost,
    CoordinatorUnavailable,
    DeadlineExceeded,
    PolonaiseError,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.host.real import RealClock
from polonaise.link import connection as link
from polonaise.link.connection import Connection
from polonaise.link.protocol import greeting
from polonaise.server.settings import ServerSettings
from polonaise.testing.memory import KEY, MemoryHost
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    DISCOVERY_VERSION,
    ROLE_CLIENT,
    ROLE_SERVER,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
    GetUniqueId,
    HighWaterMark,
    Refused,
    UniqueIdIs,
)
from polonaise.wire.topics import AssignedPartition, encode_assignment
from polonaise_proving.stages.simulated.cluster import Node
from rigs.scenarios import runs_tests
from rigs.town import Town, held_down, on_a_machine
from rigs.waiting import nothing_happens_for, time_passes, wait_until

PARTITIONS = 4
CLIENT = ClientSettings(coordinator_s_max=6.0)
"""Assignments of more than two seconds count as stale."""
STALE_S = 2.0
SERVERS = ("server-0:7000", "server-1:7000")


class Life:
    """A client on a machine of its own, that asks servers, and its town."""

    def __init__(self, town: Town, host: Host, discovery: ServerDiscovery, log: Log) -> None:
        self.town = town
        self.host = host
        self.discovery = discovery
        self.log = log

    @property
    def asked(self) -> str:
        """The machine of the server that the client asks now; empty for none."""
        current = self.discovery._current
        return "" if current is None or current[1].closed else current[0].partition(":")[0]

    @property
    def version(self) -> int:
        """The version of the assignment that the client follows."""
        return partitions_of(self.log).parts.routes._assignment.version

    def server(self, name: str) -> Node:
        (node,) = [node for node in self.town.cluster.servers if node.name == name]
        return node

    def others(self, name: str) -> list[Node]:
        return [node for node in self.town.cluster.servers if node.name != name]

    async def append_everywhere(self) -> None:
        runs = [self.log.run(lambda tx: tx.append(b"x"), partition=each, timeout=30) for each in range(PARTITIONS)]
        assert all(receipt.committed for receipt in await asyncio.gather(*runs))


def owners(town: Town) -> tuple[int, set[str]]:
    """The version of the assignment at the coordinator, and the machines of its owners."""
    entry = town.cluster.service.snapshot()[ASSIGNMENT]
    assignment = Assignment.decode(entry.contents)
    return entry.version, {owner.address.partition(":")[0] for owner in assignment.owners.values()}


async def as_client(
    town: Town, main: Callable[[Life], Awaitable[None]], listed: Sequence[str] = SERVERS, name: str = "client"
) -> None:
    async def live(node: Node, host: Host) -> None:
        town.cluster.cut_off.add(node.name)
        discovery = ServerDiscovery(host, listed, town.cluster.knobs.client)
        try:
            async with Log(host, discovery, settings=town.cluster.knobs.client) as log:
                await main(Life(town, host, discovery, log))
        finally:
            await discovery.close()

    await on_a_machine(town.cluster, name, live)


async def shared(town: Town) -> None:
    """Wait until both servers own partitions, and have sessions in all of them."""
    await wait_until(lambda: owners(town)[1] == {node.name for node in town.cluster.servers}, within_s=60)
    await wait_until(
        lambda: (
            sum(
                served.owner.session is not None
                for server in town.cluster.running_servers
                for served in server.partitions.values()
            )
            == PARTITIONS
        )
    )


@runs_tests
def in_a_town_of_two(story: Callable[[Town], Awaitable[None]], seed: int = 1, **settings: Any) -> None:
    made = Town(
        seed,
        partitions=PARTITIONS,
        servers=2,
        server=ServerSettings(settle_s=0.5, coordinator_s_max=2.0),
        client=CLIENT,
    )
    made.cluster.knobs = replace(made.cluster.knobs, lease_s=2.0)

    async def tell(town: Town) -> None:
        await shared(town)
        await story(town)

    made.run(tell)


@runs_tests
def asking_servers(main: Callable[[Life], Awaitable[None]], seed: int = 1) -> None:
    """Run a test as a client in a town of two servers, both of which are in its list."""

    async def story(town: Town) -> None:
        await as_client(town, main)

    in_a_town_of_two(story, seed=seed)()


# ---------------------------------------------------------------------- what servers tell


@asking_servers
async def test_a_client_that_reaches_no_coordinator_finds_all_that_it_needs(life: Life) -> None:
    assert life.log.partition_count == PARTITIONS
    assert life.log.cluster_key == life.town.cluster.description.key
    await life.append_everywhere()
    assert [tx.data async for tx in life.log.read(0)] == [b"x"]


@pytest.mark.slow
@in_a_town_of_two
async def test_no_two_clients_are_given_one_id_though_answers_of_the_coordinator_are_lost(town: Town) -> None:
    service = town.cluster.service
    service.configuration = replace(service.configuration, lost_result_chance=0.3)
    given: list[int] = []

    async def live(node: Node, host: Host) -> None:
        discovery = ServerDiscovery(host, SERVERS, CLIENT)
        for _ in range(20):
            try:
                given.append(await discovery.unique_id())
            except PolonaiseError as error:  # no answer of the coordinator got through
                if error.code not in ("servers_unavailable", "coordinator_unavailable"):
                    raise
        await discovery.close()

    await asyncio.gather(*(on_a_machine(town.cluster, f"client-{number}", live) for number in range(5)))
    assert len(given) > 20
    assert len(set(given)) == len(given)
    assert not set(given) & {server.id for server in town.cluster.running_servers}


@asking_servers
async def test_a_change_of_the_assignment_is_told_at_once(life: Life) -> None:
    before = life.version
    (other,) = life.others(life.asked)
    other.hold_down()
    began_s = life.town.world.now
    await life.town.cluster.owners[other.name].close()
    other.crash()
    version, names = owners(life.town)
    assert names == {life.asked}
    await wait_until(lambda: life.version == version)
    assert life.version > before
    assert life.town.world.now - began_s < 0.5
    await life.append_everywhere()


@in_a_town_of_two
async def test_clients_spread_over_the_servers_of_their_list(town: Town) -> None:
    asked: list[str] = []

    async def note(life: Life) -> None:
        asked.append(life.asked)

    await asyncio.gather(*(as_client(town, note, name=f"client-{number}") for number in range(12)))
    assert set(asked) == {"server-0", "server-1"}


# ---------------------------------------------------------------------- servers that are gone


@pytest.mark.slow
@in_a_town_of_two
async def test_servers_that_are_only_in_the_assignment_are_asked_when_the_list_is_gone_and_the_list_again(
    town: Town,
) -> None:
    async def main(life: Life) -> None:
        listed, learnt = town.cluster.servers
        assert life.asked == listed.name
        for gone, left in ((listed, learnt), (learnt, listed)):
            held_down(gone)
            await wait_until(lambda name=left.name: life.asked == name)  # type: ignore[misc]
            await life.append_everywhere()
            gone.let_up()
            await shared(town)
            await wait_until(lambda: life.version == owners(town)[0])

    await as_client(town, main, SERVERS[:1])


@pytest.mark.slow
@asking_servers
async def test_a_wait_while_all_servers_are_gone_names_each_with_its_reason(life: Life) -> None:
    await life.append_everywhere()
    for node in life.town.cluster.servers:
        held_down(node)
    await time_passes(1)
    with pytest.raises(DeadlineExceeded) as told:
        await life.log.high_water_mark(0, timeout=3)
    assert all(address in str(told.value) for address in SERVERS)
    assert "an assignment that can be read" in str(told.value)
    for node in life.town.cluster.servers:
        node.let_up()
    await life.append_everywhere()


@asking_servers
async def test_a_client_is_told_that_a_partition_has_no_owner(life: Life) -> None:
    entry = life.town.cluster.service.snapshot()[ASSIGNMENT]
    for node in life.town.cluster.servers:
        node.hold_down()
    known = Assignment.decode(entry.contents).owners
    learnt = Assignment({partition: owner for partition, owner in known.items() if partition})
    partitions_of(life.log).parts.routes._learn(Versioned(entry.version + 100, learnt))
    with pytest.raises(DeadlineExceeded, match="none does, so start one"):
        await life.log.high_water_mark(0, timeout=1)


# ---------------------------------------------------------------------- assignments that are out of date


async def isolate(town: Town, name: str) -> None:
    """Cut a server off from the coordinator alone, which takes it for dead; wait until the other one owns all."""
    (node,) = [node for node in town.cluster.servers if node.name == name]
    town.cluster.cut_off.add(name)
    node.away_since = town.world.now - town.cluster.knobs.lease_s
    others = {each.name for each in town.cluster.servers} - {name}
    await wait_until(lambda: owners(town)[1] == others)


@asking_servers
async def test_a_server_that_has_lost_its_coordinator_is_left_for_one_that_has_not(life: Life) -> None:
    stale = life.asked
    await isolate(life.town, stale)
    assert life.version < owners(life.town)[0]
    (other,) = life.others(stale)
    await wait_until(lambda: life.asked == other.name, within_s=3 * STALE_S)
    await wait_until(lambda: life.version == owners(life.town)[0], within_s=1)
    await life.append_everywhere()


@pytest.mark.slow
@in_a_town_of_two
async def test_while_nobody_reaches_the_coordinator_servers_tell_what_they_know_and_since_when(town: Town) -> None:
    async def main(life: Life) -> None:
        # Both servers have their share by then. Of one that is assigned while nobody can read that, nobody knows.
        await time_passes(60)
        await life.append_everywhere()
        town.cluster.cut_off |= {node.name for node in town.cluster.servers}
        await time_passes(2 * STALE_S)
        await life.append_everywhere()  # the owners have not changed
        assert "s ago" in partitions_of(life.log).parts.routes.waits_for(0)
        assert "coordinator" in partitions_of(life.log).parts.routes.waits_for(0)
        with pytest.raises(CoordinatorUnavailable, match="can't reach the coordinator: start it again") as refused:
            await life.discovery.unique_id()
        assert all(address in str(refused.value) for address in SERVERS)
        assert (await life.discovery.assignment()).version == life.version
        town.cluster.cut_off -= {node.name for node in town.cluster.servers}
        await wait_until(lambda: "s ago" not in partitions_of(life.log).parts.routes.waits_for(0), within_s=5 * STALE_S)
        assert await life.discovery.unique_id()

    await as_client(town, main)


class Told:
    """A discovery that tells what a test says."""

    def __init__(self, *versions: int) -> None:
        self.now = [self.of(version) for version in versions]

    @staticmethod
    def of(version: int) -> Versioned[Assignment]:
        return Versioned(version, Assignment({0: Owner(version, f"server:{version}", version)}))

    async def assignment(self) -> Versioned[Assignment]:
        return self.now.pop(0)

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def test_a_client_never_goes_back_to_an_older_assignment() -> None:
    told: Any = Told(5, 3, 5, 6)
    routes = Routes(MemoryHost(), told, CLIENT, lambda: "")
    followed: list[int] = []
    routes.listeners[lambda assignment: followed.append(assignment.owners[0].generation)] = None
    (watching,) = await routes.start()
    for _ in range(3):
        await routes.reread()
    watching.cancel()
    assert followed == [5, 6]
    assert (await routes.owner(0)).generation == 6


class Coordinated(Coordinator):
    """A coordinator whose assignment has no owners and never changes, and which hangs when a test says so."""

    def __init__(self) -> None:
        self.hangs, self.reads = False, 0

        async def changed(key: str, version: int) -> None:
            await asyncio.get_running_loop().create_future()

        backend: Any = SimpleNamespace(found_again_s=0.0, changed=changed)
        super().__init__(backend, RealClock())

    async def assignment(self) -> Versioned[Assignment]:
        self.reads += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return Versioned(1, Assignment())


async def test_a_coordinator_that_hangs_is_what_is_waited_for() -> None:
    coordinator, settings = Coordinated(), replace(CLIENT, coordinator_s_max=0.02, request_s_max=0.02)
    routes = Routes(MemoryHost(), coordinator, settings, lambda: "")
    (watching,) = await routes.start()
    try:
        await wait_until(lambda: coordinator.reads > 3)
        assert "none does, so start one" in routes.waits_for(0), "that nothing changes is no trouble"
        coordinator.hangs = True
        await wait_until(lambda: "can be read: there was no answer" in routes.waits_for(0))
        coordinator.hangs = False
        await wait_until(lambda: "none does, so start one" in routes.waits_for(0))
    finally:
        watching.cancel()


async def test_trouble_that_comes_back_after_a_recovery_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    told: Any = Told(5, 6)
    routes = Routes(MemoryHost(), told, CLIENT, lambda: "")

    async def fail() -> Versioned[Assignment]:
        raise CoordinatorUnavailable(f"planted {len(caplog.records)}")

    for _ in range(2):
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(told, "assignment", fail)
            for _ in range(3):
                await routes.reread()
        await routes.reread()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [
        "[coordinator_unavailable] planted 0",
        "[coordinator_unavailable] planted 1",
    ]


# ---------------------------------------------------------------------- answers that are worth nothing


class Answering:
    """Servers in memory that answer each kind of request as a test says."""

    def __init__(self, seed: int = 0) -> None:
        self.host = MemoryHost(seed=seed)
        self.requests: list[Message] = []
        self.asked: list[str] = []
        """The address of the server that was asked, for each request."""
        self.connections: list[Connection] = []

    def add(self, address: str, *answers: Message) -> None:
        by_request: dict[type[Message], type[Message]] = {
            DescribeCluster: ClusterIs,
            GetUniqueId: UniqueIdIs,
            GetAssignment: AssignmentIs,
        }

        def answer(connection: Connection, message: Message, request: int, partition: int) -> None:
            self.asked.append(address)
            self.requests.append(message)
            for found in answers:
                if isinstance(found, (by_request[type(message)], Refused)):
                    connection.send(found, request=request)

        def accept() -> Connection:
            said = greeting.hello(ROLE_SERVER, "server", cluster_key=KEY)
            self.connections.append(
                Connection(
                    self.host, hello=said, peer_roles=(ROLE_CLIENT,), on_message=answer, accepted=True,
                    tells_strangers=(ROLE_CLIENT,),
                )
            )  # fmt: skip
            return self.connections[-1]

        self.host.wires.listening[address] = accept

    @contextlib.asynccontextmanager
    async def discovery(self, settings: ClientSettings = CLIENT) -> AsyncIterator[ServerDiscovery]:
        discovery = ServerDiscovery(self.host, list(self.host.wires.listening), settings)
        yield discovery
        await discovery.close()
        for connection in self.connections:
            connection.close()
        await time_passes(0)


def told(version: int, age_ms: int = 0, trouble: str = "") -> AssignmentIs:
    rows = [AssignedPartition(0, version, f"owner-{version}:1", version)]
    return replace(encode_assignment(version, rows), age_ms=age_ms, trouble=trouble)


@pytest.mark.parametrize("seed", range(6))
async def test_a_server_that_says_that_it_cannot_read_the_assignment_is_asked_last_however_lately_it_did(
    seed: int,
) -> None:
    servers = Answering(seed)
    servers.add("cut-off:1", told(1, trouble="[coordinator_unavailable] no answer"))
    servers.add("well:2", told(2))
    async with servers.discovery() as discovery:
        assert (await discovery.assignment()).version == 2
        assert (await discovery.assignment()).version == 2
    assert servers.asked[-2:] == ["well:2"] * 2


@pytest.mark.parametrize("seed", range(6))
async def test_the_newest_of_answers_is_taken_where_all_are_stale(seed: int) -> None:
    servers = Answering(seed)
    for version in (3, 5, 4):
        servers.add(f"cut-off:{version}", told(version, trouble="[coordinator_unavailable] no answer"))
    async with servers.discovery() as discovery:
        assert (await discovery.assignment()).version == 5


async def test_a_wait_at_a_server_that_cannot_read_the_assignment_ends_and_the_next_is_at_another() -> None:
    servers = Answering()
    servers.add("cut-off:1", told(1, trouble="[coordinator_unavailable] no answer"))
    async with servers.discovery() as discovery:
        with pytest.raises(CoordinatorUnavailable, match=r"cut-off:1 .* 0.0 s ago: \[coordinator_unavailable\]"):
            await discovery.assignment_after(1)
        servers.add("well:2", told(2))
        discovery._listed += ("well:2",)
        assert (await discovery.assignment_after(1)).version == 2


async def test_who_waits_no_longer_knows_what_the_servers_said_by_then() -> None:
    servers = Answering()
    servers.add("away:1", Refused(0, "coordinator_unavailable", "it is away: its log and health say why"))
    servers.add("silent:2")
    async with servers.discovery() as discovery:
        assert discovery.trouble == ""
        discovery._failed.add("silent:2")  # the last one to be asked
        waiting = asyncio.ensure_future(discovery.unique_id())
        await wait_until(lambda: set(servers.asked) == {"away:1", "silent:2"}, "both were asked")
        assert discovery.trouble == "away:1: it is away: its log and health say why"
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "damaged",
    [
        [ClusterIs(3), UniqueIdIs(7), replace(told(9), crc=1)],
        [ClusterIs(3), UniqueIdIs(0), told(2)],
        [ClusterIs(0), UniqueIdIs(7), told(2)],
    ],
    ids=["rows", "id", "partitions"],
)
async def test_a_server_whose_answer_is_damaged_is_left_for_another(damaged: list[Message], seed: int) -> None:
    servers = Answering(seed)
    servers.add("damaged:1", *damaged)
    servers.add("well:2", ClusterIs(3), UniqueIdIs(7), told(2))
    async with servers.discovery() as discovery:
        assert (await discovery.describe()).partitions == 3
        assert await discovery.unique_id() == 7
        assert (await discovery.assignment()).version == 2
        assert (await discovery.assignment_after(1)).version == 2


@pytest.mark.parametrize("coordinator_s_max", [0.1, 3.0])
async def test_an_answer_as_old_as_servers_look_at_the_assignment_is_not_stale(coordinator_s_max: float) -> None:
    """Else a client with a short deadline would go from server to server for ever."""
    servers = Answering()
    for address in ("a:1", "b:2"):
        servers.add(address, told(1, age_ms=1_500))
    async with servers.discovery(ClientSettings(coordinator_s_max=coordinator_s_max)) as discovery:
        for _ in range(3):
            await discovery.assignment()
    assert len(servers.asked) == 3
    assert len(set(servers.asked)) == 1


async def test_a_server_is_let_wait_for_less_than_the_caller_waits() -> None:
    servers = Answering()
    servers.add("a:1", told(1))
    async with servers.discovery(ClientSettings(coordinator_s_max=0.6)) as discovery:
        waiting = asyncio.ensure_future(discovery.assignment_after(1))
        await wait_until(lambda: servers.requests)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert isinstance(servers.requests[0], GetAssignment)
    assert 190 <= servers.requests[0].wait_ms <= 200


async def test_a_client_that_is_closed_while_it_connects_leaves_no_connection() -> None:
    servers = Answering()
    for address in ("a:1", "b:2"):
        servers.add(address, ClusterIs(3))
    async with servers.discovery() as discovery:
        connect, made = discovery._connect, list[Connection]()

        async def close_meanwhile(address: str) -> Connection:
            made.append(await connect(address))
            await discovery.close()
            return made[-1]

        discovery._connect = close_meanwhile  # type: ignore[method-assign]
        with pytest.raises(Closed):
            await discovery.describe()
        assert [connection.closed is not None for connection in made] == [True]
    assert servers.asked == []


async def test_a_closed_client_leaves_no_connection_and_makes_none() -> None:
    servers = Answering()
    servers.add("a:1", told(1))
    async with servers.discovery() as discovery:
        asking = asyncio.ensure_future(discovery.assignment_after(1))
        await wait_until(lambda: servers.requests)
        await discovery.close()
        with pytest.raises((Closed, ConnectionLost)):
            await asking
        with pytest.raises(PolonaiseError):
            await discovery.unique_id()
        await nothing_happens_for(0.05)
        assert [connection.closed is not None for connection in servers.connections] == [True]


async def test_a_hundred_partitions_that_have_lost_their_owner_ask_twice_for_all() -> None:
    servers = Answering()
    servers.add("a:1", told(2))
    async with servers.discovery() as discovery:
        read = await asyncio.gather(*(discovery.assignment() for _ in range(100)))
    assert {each.version for each in read} == {2}
    assert len(servers.asked) <= 2


# ---------------------------------------------------------------------- connections


@asking_servers
async def test_a_connection_that_has_named_no_cluster_is_told_of_it_and_nothing_else(life: Life) -> None:
    connection = await connected(life)
    assert isinstance(await connection.request(DescribeCluster(), deadline_s=1), ClusterIs)
    for partition in (0, 1):
        with pytest.raises(WrongClusterKey, match="named no cluster"):
            await connection.request(HighWaterMark(), partition=partition, deadline_s=1)
    connection.close()


async def connected(life: Life) -> Connection:
    """A connection to the first server, of a client that has not named the cluster."""
    hello = greeting.hello(ROLE_CLIENT, "stranger", version_min=DISCOVERY_VERSION)

    def make() -> Connection:
        return Connection(life.host, hello=hello, peer_roles=(ROLE_SERVER,), on_message=lambda *_: None)

    return await link.connect(life.host, SERVERS[0], make, deadline_s=1)


@asking_servers
async def test_what_a_client_waits_for_ends_with_its_connection(life: Life) -> None:
    server = life.town.cluster.owners["server-0"].parts.shared.cluster
    connection, before = await connected(life), len(server._changed._waiting)
    asking = [asyncio.ensure_future(connection.request(GetAssignment(10**6, 30_000), deadline_s=60)) for _ in range(10)]
    await wait_until(lambda: len(server._changed._waiting) == before + 10)
    connection.close()
    await asyncio.gather(*asking, return_exceptions=True)
    await wait_until(lambda: len(server._changed._waiting) == before, within_s=1)


@asking_servers
async def test_the_assignment_that_all_are_told_is_booked_on_no_connection_that_reads(life: Life) -> None:
    booked: list[bool] = []
    send = Connection.send

    def note(connection: Connection, message: Message, **rest: Any) -> None:
        if isinstance(message, AssignmentIs):
            booked.append(not rest["shared"])
        send(connection, message, **rest)

    connection = await connected(life)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", note)
        assert isinstance(await connection.request(GetAssignment(-1, 0), deadline_s=1), AssignmentIs)
    assert booked
    assert not any(booked)
    connection.close()


def test_what_a_server_says_of_its_trouble_is_made_fit_for_a_log() -> None:
    assert _assignment_in(told(1, trouble="down\n\x1b[31m2026 all is well")).trouble.isprintable()


@in_a_town_of_two
async def test_a_server_that_has_just_started_is_waited_for(town: Town) -> None:
    for node in town.cluster.servers:
        held_down(node)
    town.cluster.servers[0].let_up()
    await wait_until(
        lambda: bool(town.cluster.running_servers) and town.cluster.running_servers[0]._listener, every_s=1e-4
    )
    await as_client(town, Life.append_everywhere, SERVERS[:1], "second")
