"""A whole simulated cluster: storage nodes, servers, applications and the coordinator, running the production code.

Many settings are drawn per seed (*swarm testing*), from sizes so small that segments roll, windows close, caches
overflow and queues fill within a few dozen appends. Every node is kept running: one that dies starts again after a
while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

from polonaise.client.discovery import Discovery
from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import ClusterDescription, PartitionValue, partition_key
from polonaise.errors import PolonaiseError, Retry
from polonaise.host import Host
from polonaise.link.settings import LinkSettings
from polonaise.log.control import PromiseSector
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.refusing import RefusingNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PartitionId, StorageId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, durable_last, promised_by, read_replica
from polonaise_proving.stages.simulated.coordinator import (
    CoordinatorConfiguration,
    Sessions,
    SimulatedBackend,
    SimulatedCoordinator,
)
from polonaise_proving.stages.simulated.loop import LIFE
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine, World

CLUSTER_KEY: Final = bytes(range(1, 17))
DIRECTORY: Final = "data"
_STORAGE_PORT: Final = 9000
_SERVER_PORT: Final = 7000
_LEASE_SHARE: Final = 0.08
"""The share of seeds with real leases, among those with several servers. Small, because waiting until a lease runs out
takes as long as the rest of the schedule."""
_SESSION_SHARE: Final = 0.1
"""The share of seeds with sessions at the coordinator, among those with several servers and without real leases."""
_WINDOW_SHARE: Final = 0.2
"""The share of seeds in which append windows close before an owner's inbox is full."""
_MEMBERS_SHARE: Final = 0.12
"""The share of seeds in which operators change the members of partitions."""
_ASKING_SHARE: Final = 0.15
"""The share of seeds in which all clients, or each by a chance of one half, ask servers and have no coordinator."""
_CLOCKS_SHARE: Final = 0.12
"""The share of seeds in which clocks are wrong beyond the bound, measured and judged."""
_CLOCKS_DRAW: Final = "clocks 9826"
"""The name under which these are drawn. With this number, none of the seeds that find mutations is one."""
_THROTTLE_SHARE: Final = 0.2
"""The share of seeds in which few bytes a second may be copied to late replicas."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings of the cluster of one seed. `storage`, `servers` and `clients` are numbers of nodes."""

    storage: int
    servers: int
    clients: int
    partitions: int
    link: LinkSettings
    server: ServerSettings
    client: ClientSettings
    segment_bytes_max: int
    coordinator: CoordinatorConfiguration
    lease_s: float
    """Seconds after which a server that the coordinator does not hear from counts as dead."""
    scrub_bytes_per_s: int
    scrub_every_s: float
    files_max: int
    leases: bool = False
    """Whether servers renew leases as in production, without sessions; with sessions (`session_s`) they do so, too.
    Without either, the simulator knows which servers are stopped or cut off."""
    throttled: bool = False
    """Whether few bytes a second may be copied to late replicas."""
    session_s: float = 0.0
    """The seconds that a session at the coordinator lasts without contact; 0 where there are no sessions."""
    windows: bool = False
    """Whether an owner's inbox always has room for what the append windows of all clients let through."""
    asking: float = 0.0
    """The chance that a client finds the cluster by asking servers, and has no coordinator."""
    clocks: bool = False
    """Whether clocks are measured and judged, and set wrong by `clockfaults`; elsewhere commit times may follow any."""
    spares: int = 0
    """The number of storage nodes beyond `storage`, which have no copies at first; above 0 where members change."""

    @classmethod
    def draw(cls, source: random.Random) -> Knobs:
        """Draw the settings that every seed has, but for those that `widened` adds."""
        choice, uniform = source.choice, source.uniform
        heartbeat_s = uniform(0.1, 0.5)
        link = LinkSettings(
            heartbeat_s=heartbeat_s,
            silence_s_max=heartbeat_s * uniform(2.5, 5.0),
            hello_s_max=1.0,
            frame_s_max=uniform(1.0, 3.0),
            clock_s=0.0,  # only where clocks are judged
            unsent_bytes_high=choice((2_000, 65_536, 4_194_304)),
        )
        return cls(
            storage=source.choices((1, 3, 5), (1, 12, 2))[0],
            servers=source.choices((1, 2), (1, 3))[0],
            clients=source.choices((1, 2, 3, 4), (1, 3, 3, 1))[0],
            partitions=source.choices((1, 2), (4, 1))[0],
            link=link,
            server=_server(source, link),
            client=_client(source, link),
            segment_bytes_max=choice((600, 1_500, 4_000, 20_000)),
            coordinator=CoordinatorConfiguration(timeout_s=uniform(0.1, 0.4)),
            lease_s=uniform(0.3, 1.5),
            scrub_bytes_per_s=choice((20_000, 1_000_000)),
            scrub_every_s=uniform(0.5, 5.0),
            files_max=choice((1, 2, 128)),
        )

    def widened(self, world: World) -> Knobs:
        """Return these settings with those that came later: two that each seed has, and the rare ones.

        Each seed has a size of listings and a time in which servers settle. Few have leases, sessions, closing append
        windows, throttled copying, clients that ask servers, or spare storage nodes. Each is drawn from a generator of
        its own, so that it changes nothing in the seeds that do not get it.
        """
        listing_count_max = world.random("listings").choice((1, 2, 3, 1_000))
        settle_s = world.random("settle").choice((0.3, 2.0, 10.0))
        knobs = replace(self, server=replace(self.server, listing_count_max=listing_count_max, settle_s=settle_s))
        lease, window = world.random("lease"), world.random("append window")
        if self.servers > 1 and lease.random() < _LEASE_SHARE:
            knobs = replace(knobs, leases=True, lease_s=LEASE_S)
        session = world.random("sessions")
        if self.servers > 1 and not knobs.leases and session.random() < _SESSION_SHARE:
            session_s = session.uniform(1.0, 2.0)
            # Faults that last for longer than a lease last for longer than the latest end of a session.
            knobs = replace(knobs, session_s=session_s, lease_s=1.6 * session_s)
        if window.random() < _WINDOW_SHARE:
            bytes_max = window.choice((1_500, 3_000, 10_000))
            server = replace(knobs.server, append_window_bytes=bytes_max, inbox_bytes_max=1_000_000)
            client = replace(self.client, outstanding_count_max=1_000, outstanding_bytes_max=1_000_000)
            knobs = replace(knobs, windows=True, server=server, client=client)
        asking = world.random("servers asked")
        throttle = world.random("copy throttle")
        if throttle.random() < _THROTTLE_SHARE:
            knobs = replace(knobs, throttled=True, server=_throttled(knobs.server, throttle))
        if asking.random() < _ASKING_SHARE:
            knobs = replace(knobs, asking=asking.choice((0.5, 1.0)))
        clocks = world.random(_CLOCKS_DRAW)
        if clocks.random() < _CLOCKS_SHARE:
            link = replace(knobs.link, clock_s=clocks.uniform(0.1, 0.5))
            server = replace(
                knobs.server, link=link, clock_off_s_max=10.0, clock_settle_s=1_000.0, clock_patience_s=0.5
            )
            client = replace(knobs.client, link=link)
            knobs = replace(knobs, clocks=True, link=link, server=server, client=client)
        members = world.random("members")
        if members.random() < _MEMBERS_SHARE:
            server = replace(knobs.server, members_look_s=members.uniform(0.05, 0.5), members_looks_per_s=50)
            knobs = replace(knobs, spares=members.choice((1, 2)), server=server)
        return knobs


def _server(source: random.Random, link: LinkSettings) -> ServerSettings:
    choice, uniform = source.choice, source.uniform
    lock_entries, window = choice((16, 256, 4_096)), choice((1, 2, 4))
    return ServerSettings(
        notes_s=0,  # what storage nodes note is read by operators only
        link=link,
        clock_off_s_max=1e12,  # only where clocks are judged
        members_look_s=0.0,  # only where members change: a look draws from the coordinator's randomness
        evidence=True,
        lock_entries=lock_entries,
        window=window,
        session_starts_max=window,  # without a draw of its own, which would change what every kept seed means
        session_start_turn_s=0.3,
        session_start_wait_s_max=3.0,
        batch_count_max=choice((1, 3, 8, 64)),
        batch_bytes_max=choice((300, 4_000, 100_000)),
        inbox_bytes_max=choice((1_000, 8_000, 1_000_000)),
        inbox_s_max=uniform(0.5, 3.0),
        cache_bytes_max=choice((500, 5_000, 1_000_000)),
        checkpoint_transactions=choice((5, 20, 1_000, 250_000)),
        pulse_s=choice((1.0, 3.0, 60.0)),
        acknowledge_s_max=uniform(0.2, 1.0),
        gather_s=choice((0.05, 0.2)),
        replica_s_max=uniform(0.4, 1.5),
        coordinator_s_max=uniform(0.5, 1.5),
        retry_s_min=uniform(0.01, 0.05),
        retry_s_max=uniform(0.1, 0.4),
        copy_bytes=choice((200, 800, 4_000, 100_000)),
        copy_share=choice((1.0, 0.5)),
        readmit_transactions=choice((0, 5, 50)),
        readmit_s_min=uniform(0.05, 0.5),
        read_bytes_max=choice((1_000, 100_000)),
    )


def _throttled(server: ServerSettings, source: random.Random) -> ServerSettings:
    """Return these settings with bounds of copying in the background that are close, for logs of some kilobytes."""
    bytes_per_s = source.choice((8_000, 50_000, 1_000_000))
    return replace(
        server,
        copies_max=source.choice((1, 2)),
        copies_per_storage_max=source.choice((1, 2)),
        copy_bytes_per_s=bytes_per_s,
        copy_bytes_per_s_min=min(bytes_per_s, 8_000),
        copy_share=source.choice((0.2, 1.0)),
        copy_latency_s=source.choice((0.0, 0.01, 1.0)),
    )


def _client(source: random.Random, link: LinkSettings) -> ClientSettings:
    choice, uniform = source.choice, source.uniform
    return ClientSettings(
        link=link,
        outstanding_count_max=choice((4, 16, 1_000)),
        outstanding_bytes_max=choice((2_000, 1_000_000)),
        frame_count_max=choice((1, 2, 8, 100)),
        frame_bytes_max=choice((300, 10_000)),
        credit_bytes=choice((200, 2_000, 100_000)),
        idle_flush_s=uniform(0.1, 0.5),
        connect_s_max=uniform(0.5, 1.5),
        request_s_max=uniform(0.5, 2.0),
        answer_s_max=5.0,
        mount_s_max=uniform(0.5, 2.0),
        retry_s_min=0.02,
        retry_s_max=uniform(0.1, 0.4),
        coordinator_s_max=uniform(1.0, 3.0),
        read_bytes=choice((400, 4_000, 100_000)),
        follow_s_max=uniform(0.2, 2.0),
        fetch_bytes=choice((300, 10_000)),
        fetches_max=choice((1, 4)),
    )


NodeMain: TypeAlias = Callable[["Node", Host], Coroutine[Any, Any, None]]
"""What a process of a node runs."""


class Node:
    """One node of the cluster: its machine, and the process that should be running there."""

    def __init__(self, cluster: Cluster, name: str, main: NodeMain) -> None:
        self.cluster = cluster
        self.name = name
        self.machine: Machine = cluster.world.machine(name)
        self.process: Process | None = None
        self._may_run = asyncio.Event()
        self._may_run.set()
        self.away_since: float | None = None
        """The virtual time since when the coordinator does not hear from the node, as it is paused or cut off; None if
        the coordinator hears from it. Once that time is `lease_s` ago, the node counts as dead there."""
        self.restarts = 0
        self._main = functools.partial(main, self)
        self._random = cluster.world.random(f"restarts/{name}")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def held_down(self) -> bool:
        return not self._may_run.is_set()

    def hold_down(self) -> None:
        """Do not start the node again, once its process has ended, until `let_up` is called."""
        self._may_run.clear()

    def put_down(self) -> None:
        """Kill the node's process, and do not start the node again until `let_up` is called."""
        self.hold_down()
        self.crash()

    def let_up(self) -> None:
        """Allow the node to start again after `hold_down`."""
        self._may_run.set()

    def crash(self) -> None:
        if self.process is not None:
            self.process.crash()

    def lose_power(self) -> None:
        self.machine.power_loss()

    # What `diskaudit` finds on the node's disk.

    def promised(self, partition: PartitionId) -> PromiseSector | None:
        return promised_by(self.machine.disk, DIRECTORY, partition)

    def replica(self, partition: PartitionId) -> DiskReplica:
        return read_replica(self.name, self.machine.disk, DIRECTORY, partition)

    def durable_last(self, partition: PartitionId) -> TransactionId:
        return durable_last(self.machine.disk, DIRECTORY, partition)

    def start(self) -> None:
        if not self.running:
            self.away_since = None
            # A fault (`PolonaiseError`) may end a node, which is started again. Any other error, such as a broken
            # invariant, is a mistake of our own code, and ends the schedule.
            self.process = self.machine.start(self._main, may_fail=(PolonaiseError,))

    async def keep_running(self) -> None:
        """Start the node, and start it again each time that its process has ended, until the schedule is over."""
        self.start()
        while True:
            process = self.process
            assert process is not None
            await process.ended()
            self.restarts += 1
            self.cluster.on_ended(self)
            await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5, 1.5)) * (0.5 + self._random.random()))
            await self._may_run.wait()
            self.start()


class Cluster:
    """The nodes of one schedule, and the coordinator that they share."""

    def __init__(self, world: World, knobs: Knobs, client_main: NodeMain) -> None:
        self.world = world
        self.knobs = knobs
        self.service = SimulatedCoordinator(
            world.random("coordinator"),
            world.faults,
            knobs.coordinator,
            leases=knobs.leases,
            sessions=Sessions(world.random("session ends"), knobs.session_s) if knobs.session_s else None,
        )
        self.partition_checks: list[Callable[[PartitionId, PartitionValue, PartitionValue], None]] = []
        """Called with each partition whose value a compare-and-set has changed, and its former and its new value."""
        self.service.on_written.append(self._written)
        self.contacts: dict[str, SimulatedBackend] = {}
        """By name of a node: its latest process's way to the coordinator."""
        self.cut_off: set[str] = set()
        """Names of the nodes that do not reach the coordinator."""
        nodes = [Node(self, f"storage-{number}", self._storage) for number in range(knobs.storage + knobs.spares)]
        self.storage, self.spares = nodes[: knobs.storage], nodes[knobs.storage :]
        """`spares` are members of no partition at first, and in the end: see `operators.MemberChanges`."""
        self.servers = [Node(self, f"server-{number}", self._server) for number in range(knobs.servers)]
        self.clients = [Node(self, f"client-{number}", client_main) for number in range(knobs.clients)]
        asking = world.random("asking clients")
        self._asking = {node.name for node in self.clients if asking.random() < knobs.asking}
        """Names of the clients that ask servers, and have no coordinator."""
        self.owners: dict[str, Server] = {}
        """By name of a server node: the `Server` of its latest process, once it runs and until its end was noticed."""
        self.stores: dict[str, StorageNode] = {}
        """By name of a storage node: the `StorageNode` of its latest process."""
        self.refuses: set[str] = set()
        """Names of the storage nodes that run a `RefusingNode` if their directory can never be opened; others end."""
        self.rushing = asyncio.Event()
        """Set while applications hardly pause between their steps, so that a fault meets many appends."""
        self._rush_until_s = 0.0
        self.ended: Callable[[Node], None] = lambda _: None
        self.others: list[Node] = []
        """Nodes that few clusters have: an archivist, a `doubleowner`, with two connections, and `operators`."""
        self.open_history: Callable[[bytes], ArchivedHistory] | None = None
        """A function that returns a server's view of the archive, given the cluster key; None without an archive."""
        names = tuple(self.storage_id(node) for node in self.storage)
        self.description = ClusterDescription(CLUSTER_KEY, knobs.partitions, names)
        self.places = {node.name: self.storage_id(node) for node in (*self.storage, *self.spares)}
        """By name of a storage node's machine: the address at which the node listens from its next start on."""
        self.named_nodes = False
        """Whether storage nodes are told their names, and so take none from the first server that reaches them."""
        self._keepers: list[asyncio.Task[None]] = []
        world.tellers.append(self._in_force)

    def _in_force(self) -> Iterator[str]:
        for node in self.nodes:
            if node.held_down:
                yield f"{node.name} is held down"
            if node.name in self.cut_off:
                yield f"{node.name} is cut off from the coordinator"
            elif node.away_since is not None:
                yield f"{node.name} counts as away at the coordinator"
        if self.service.configuration != self.knobs.coordinator:
            yield "the coordinator is in trouble"

    @property
    def nodes(self) -> list[Node]:
        return [*self.storage, *self.servers, *self.clients, *self.others, *self.spares]

    @property
    def running_servers(self) -> list[Server]:
        """The servers that run, and whose processes live."""
        return [self.owners[node.name] for node in self.servers if node.running and node.name in self.owners]

    @property
    def server_processes(self) -> int:
        """The number of server processes that live, also those that wait for their first answers."""
        return sum(node.running for node in self.servers)

    @staticmethod
    def storage_id(node: Node) -> StorageId:
        """Return the name of a storage node, which is the address at which it listens at first."""
        return f"{node.name}:{_STORAGE_PORT}"

    def forgotten(self) -> str:
        """Describe a node that has more or fewer files open than it uses; return "" if no node has."""
        for node in self.nodes:
            if node.process is None or node.process.dead:
                continue
            used = self.stores[node.name].open_files if node.name in self.stores else 0
            if len(node.process.handles) != used:
                return f"{node.name} uses {used} files, and has open: {', '.join(node.process.handles)}"
        return ""

    def on_ended(self, node: Node) -> None:
        self.owners.pop(node.name, None)
        self.ended(node)

    async def start(self) -> None:
        """Make the cluster, and start every node and keep it running."""
        self.service.initialize(self.description)
        self._keepers = [self.world.spawn(node.keep_running(), f"keeper of {node.name}") for node in self.nodes]

    def coordinator(self, node: Node, host: Host) -> Coordinator:
        """Return a coordinator for the process that calls this, which is that of `node`."""
        process = LIFE.get()
        assert isinstance(process, Process)

        def is_alive() -> bool:
            away = node.away_since
            return not process.dead and (away is None or self.world.now - away < self.knobs.lease_s)

        backend = SimulatedBackend(self.service, is_alive, lambda: node.name not in self.cut_off)
        self.contacts[node.name] = backend
        return Coordinator(backend, host.clock)

    def discovery(self, node: Node, host: Host) -> Discovery:
        """Return what the client on `node` finds the cluster by: servers, or the coordinator. Called by its process."""
        return self.servers_for(host) if node.name in self._asking else self.coordinator(node, host)

    def servers_for(self, host: Host) -> ServerDiscovery:
        """Return what finds the cluster by asking its servers."""
        return ServerDiscovery(host, [f"{node.name}:{_SERVER_PORT}" for node in self.servers], self.knobs.client)

    def owns(self, node: Node) -> bool:
        """Whether the node's server believes that it has a session in any partition. It may have been replaced."""
        server = self.owners.get(node.name)
        return server is not None and any(served.owner.session is not None for served in server.partitions.values())

    def rush(self, seconds: float) -> None:
        """Let applications take additional steps for `seconds`, and all steps almost without pauses."""
        self._rush_until_s = max(self._rush_until_s, self.world.now + seconds)
        self.rushing.set()
        self.world.loop.call_later(seconds, self._calm)

    def _calm(self) -> None:
        if self.world.now >= self._rush_until_s:
            self.rushing.clear()

    def _written(self, key: str, before: bytes, after: bytes) -> None:
        if self.partition_checks and key.startswith("partition-"):
            partition = int(key.removeprefix("partition-"))
            old, new = _decoded(before), _decoded(after)
            for check in self.partition_checks:
                check(partition, old, new)

    def partition_value(self, partition: PartitionId) -> PartitionValue:
        """Return the partition's value at the coordinator."""
        return _decoded(self.service.snapshot()[partition_key(partition)].contents)

    def is_open(self, partition: PartitionId) -> bool:
        """Whether a running server has the partition's latest session at the coordinator."""
        latest = self.partition_value(partition).session
        served = [server.partitions.get(partition) for server in self.running_servers]
        sessions = [each.owner.session for each in served if each is not None]
        return any(session is not None and session.id == latest for session in sessions)

    def members_of(self, partition: PartitionId) -> list[Node]:
        """Return the storage nodes that are members of a partition at the coordinator."""
        members = self.partition_value(partition).members
        return [node for node in (*self.storage, *self.spares) if self.storage_id(node) in members]

    def partition_values(self) -> list[PartitionValue]:
        return [self.partition_value(partition) for partition in range(self.knobs.partitions)]

    # ------------------------------------------------------------------ what the processes run

    async def _storage(self, node: Node, host: Host) -> None:
        settings = StorageSettings(
            directory=DIRECTORY,
            listen=self.places[node.name],
            name=self.storage_id(node) if self.named_nodes else None,
            segment_bytes_max=self.knobs.segment_bytes_max,
            files_max=self.knobs.files_max,
            scrub_bytes_per_s=self.knobs.scrub_bytes_per_s,
            scrub_every_s=self.knobs.scrub_every_s,
            scrub_first_s=self.knobs.scrub_every_s,
            link=self.knobs.link,
        )
        storage = self.stores[node.name] = StorageNode(host, settings)
        running: StorageNode | RefusingNode = storage
        try:
            await storage.start()
        except PolonaiseError as error:
            if node.name not in self.refuses or error.retry is not Retry.NEVER:
                raise
            running = await RefusingNode.start(host, settings, error)
        await until_stopped(host, running)

    async def _server(self, node: Node, host: Host) -> None:
        settings = replace(self.knobs.server, listen=f"{node.name}:{_SERVER_PORT}")
        server = await Server.start(host, self.coordinator(node, host), settings, self.open_history)
        self.owners[node.name] = server
        await until_stopped(host, server)


_decoded = functools.lru_cache(maxsize=64)(PartitionValue.decode)
"""Checks look at the values many times a second, and they seldom change."""


class Closable(Protocol):
    """What a process runs that is to be closed when it is stopped."""

    async def close(self) -> None: ...


async def until_stopped(host: Host, node: Closable) -> None:
    """Run until a clean stop is asked for; then close the node."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        closing = host.spawn(node.close(), "close")
        while not closing.done():  # another request to stop does not break off the stop that is under way
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([closing])
