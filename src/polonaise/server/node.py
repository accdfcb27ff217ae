"""The server process: it owns partitions, and answers clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, Registration, Versioned
from polonaise.errors import NotOwner
from polonaise.histogram import Histogram
from polonaise.host import Host, Listener
from polonaise.patience import SyncPatience
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.assignmentfollowing import AssignmentFollowing
from polonaise.server.clientconnections import ClientConnections
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.fragmentwatches import FragmentWatches
from polonaise.server.memberwatch import MemberWatch
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.turns import Ticks
from polonaise.server.requirements import Requirements
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.serverclock import ServerClock
from polonaise.server.serverhealth import HealthWarnings, ServerHealth, ServerMeasures
from polonaise.server.servermembership import ServerMembership
from polonaise.server.settings import ServerSettings
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagelinks import StorageAddresses, StorageLink, StorageLinks
from polonaise.server.turns import CopyTurns, StartTurns
from polonaise.server.unservable import UnservablePartitions
from polonaise.server.valuenotes import ValueNotes
from polonaise.terms import PartitionId, ServerId, StorageId

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.25
"""At this interval partitions are told the time: a deadline may be noticed this much late."""


class Server:
    """A server that serves from `start` on, which makes it, until `close`."""

    @classmethod
    async def start(
        cls,
        host: Host,
        coordinator: Coordinator,
        settings: ServerSettings | None = None,
        open_history: Callable[[bytes], ArchivedHistory] | None = None,
    ) -> Server:
        """Listen, register, and start the tasks, above all the one that keeps the assignment and follows it.

        `open_history` opens the fragment store, given the cluster's key; None for a server without fragments. Raises
        what the coordinator, the store and listening raise; nothing is left open then.
        """
        settings = settings or ServerSettings()
        described = await coordinator.description()
        described_s = host.clock.monotonic_s()
        history = None if open_history is None else open_history(described.value.key)
        server = await coordinator.unique_id()
        parts = put_together(host, coordinator, settings, server, described, described_s, history)
        listener = await host.network.listen(settings.listen, parts.connections.accept)
        try:
            for name in described.value.storage:
                _ = parts.shared.links[name]  # connects while the first session start still asks the coordinator
            await parts.shared.membership.register(listener.address)
        except BaseException:
            await _let_go(parts, listener)
            raise
        return cls(parts, listener)

    def __init__(self, parts: ServerParts, listener: Listener) -> None:
        self.parts: Final = parts
        self._listener = listener
        self._tasks = self._spawn_tasks()
        _log.info("server %d listens on %s", self.id, self.address, extra={"server": self.id})

    def _spawn_tasks(self) -> list[asyncio.Task[None]]:
        parts, shared, partitions = self.parts, self.parts.shared, self.partitions
        settings, membership, spawn = shared.settings, shared.membership, shared.host.spawn
        warnings = HealthWarnings(
            shared.host, settings, lambda: parts.owned.owners, shared.links, shared.changes, lambda: self.not_owning
        )
        members = MemberWatch(shared, partitions, parts.addresses)
        tasks = [
            spawn(parts.following.run(), "assignment"),
            spawn(warnings.watch(), "warnings"),
            spawn(self._tick(), "tick"),
            spawn(membership.keep(), "lease"),
            spawn(membership.watch(), "tenure"),
            spawn(shared.requirements.follow(members.hurry, parts.owned.follow_requirement), "requirement"),
        ]
        if settings.name or shared.coordinator.has_servers:
            tasks.append(spawn(parts.expected.run(self.id, self.address), "expected servers"))
        if settings.notes_s:
            notes = ValueNotes(shared, partitions, parts.expected)
            tasks.append(spawn(notes.run(), "notes of the coordinator's values"))
        if settings.members_look_s:
            tasks.append(spawn(members.run(), "members"))
        if parts.fragments is not None:
            tasks += parts.fragments.spawn()
        return tasks

    async def _tick(self) -> None:
        shared, partitions = self.parts.shared, self.partitions
        while True:
            await asyncio.sleep(_TICK_S)
            shared.clock.look()
            self.parts.unservable.look()
            for partition in shared.ticks.due(partitions):
                partitions[partition].tick()

    async def close(self) -> None:
        """Stop serving. The next owner of each partition decides the fate of the appends in flight."""
        parts = self.parts
        parts.owned.followed = False
        parts.unservable.close()
        for task in self._tasks:
            task.cancel()
        # Ended first: one that is registering this server could do so after it has left.
        await asyncio.wait(self._tasks, timeout=parts.shared.settings.farewell_s_max)
        # While the sessions still hold: replicas note only from their session's owner what is committed.
        try:
            await asyncio.gather(*(served.confirm() for served in self.partitions.values()))
            await parts.following.hand_over()
        finally:  # a caller that gives up waiting gets a closed server all the same: open sockets would outlive it
            await _let_go(parts, self._listener)

    # ------------------------------------------------------------------ what is told of it

    @property
    def id(self) -> ServerId:
        """Unique in the cluster and given out by the coordinator."""
        return self.parts.shared.server

    @property
    def address(self) -> str:
        """The address at which clients reach this server."""
        return self._listener.address

    @property
    def partitions(self) -> dict[PartitionId, ServedPartition]:
        """Those that the followed assignment gives this server, also if they have stopped by themselves."""
        return self.parts.owned.served

    @property
    def followed(self) -> bool:
        """Whether the server serves what an assignment gives it: `OwnedPartitions.followed`."""
        return self.parts.owned.followed

    @property
    def not_owning(self) -> str:
        """Why this server owns nothing, if its registration may have run out, until it owns again; empty otherwise."""
        return self.parts.shared.membership.not_owning

    @property
    def waits_for(self) -> str:
        """What this server waits for, if it does not follow an assignment."""
        return self.parts.health.waits_for

    @property
    def given_up(self) -> frozenset[PartitionId]:
        """The partitions that this server has given up, as it tells the others."""
        return self.parts.unservable.given_up

    @property
    def replication_factor(self) -> int:
        """How many copies each partition is to have."""
        return self.parts.shared.cluster.description.replication_factor

    def measures(self) -> ServerMeasures:
        return self.parts.measures()

    async def checked_health(self) -> dict[str, Any]:
        """Return `health`, after the storage nodes were asked for theirs: half a second at most."""
        await self.parts.health.ask_storage()
        return self.health()

    def health(self) -> dict[str, Any]:
        """Return the health of this server, its partitions and its storage nodes, as a JSON-ready document."""
        return self.parts.health.document()


async def _let_go(parts: ServerParts, listener: Listener) -> None:
    # Before the connections are closed: over these the clients are told to look elsewhere.
    for served in parts.owned.served.values():
        served.close(NotOwner("the server is shutting down: read the assignment again"))
    await listener.close()
    for connection in parts.connections.open:
        connection.close()
    for link in parts.shared.links.values():
        link.close()
    parts.addresses.close()
    # Last, because others take the partitions over as soon as this server has left.
    await parts.shared.membership.leave()


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of one server, which do nothing until `Server` begins to."""

    shared: SharedParts
    addresses: StorageAddresses
    owned: OwnedPartitions
    expected: ExpectedServersWatch
    fragments: FragmentWatches | None
    unservable: UnservablePartitions
    following: AssignmentFollowing
    health: ServerHealth
    connections: ClientConnections

    def measures(self) -> ServerMeasures:
        shared, fragments = self.shared, self.fragments
        return ServerMeasures(
            own=self.health.own(),
            latencies=shared.latencies,
            totals=self.owned.past_totals,
            cluster=shared.cluster.description,
            refused=self.connections.refused,
            connections=len(self.connections.open),
            connections_bytes=self.connections.budget.total,
            connections_cut_off=self.connections.budget.cut_off,
            requests=self.connections.unanswered,
            coordinator_errors=shared.trouble.errors,
            missing_servers=None if self.expected.seen is None else len(self.expected.missing),
            coordinator_servers={name: not why for name, why in self.expected.coordinator_servers.items()},
            store_trouble=None if fragments is None else fragments.store.trouble,
            archive=None if fragments is None else fragments.archive.lag,
        )


def put_together(
    host: Host,
    coordinator: Coordinator,
    settings: ServerSettings,
    server: ServerId,
    described: Versioned[ClusterDescription],
    described_s: float,
    history: ArchivedHistory | None,
) -> ServerParts:
    """Make the parts of the server with this id; the description was read at `described_s`."""
    trouble = CoordinatorTrouble(host.clock)
    cluster = ClusterAnswers(host, coordinator, settings, trouble, server, described, described_s)
    addresses = StorageAddresses(host, coordinator, described.value)

    def link(name: StorageId) -> StorageLink:
        return StorageLink(host, name, server, described.value.key, settings, links, addresses)

    links = StorageLinks(link)
    owned = OwnedPartitions(server)
    registration = Registration(server, "", settings.preferred)
    membership = ServerMembership(host, coordinator, trouble, registration, owned.stop_owning)
    latencies = Histogram()
    shared = SharedParts(
        host,
        coordinator,
        settings,
        server,
        trouble,
        cluster,
        membership,
        links,
        StartTurns(settings, lambda: links.are_connected_for(cluster.description.replication_factor)),
        CopyTurns(host, settings, latencies),
        Ticks(),
        ReadinessChanges(),
        history,
        latencies,
        ServerClock(host, settings, links, lambda: membership.coordinator_clock),
        Requirements(coordinator, described),
        SyncPatience(settings.coordinator_s_max, 4 * settings.coordinator_s_max),
    )
    fragments = None if history is None else FragmentWatches(history, shared, owned)
    unservable = UnservablePartitions(shared, owned, lambda: (fragments and fragments.store.trouble) or "")
    expected = ExpectedServersWatch(coordinator, settings.name, trouble)
    following = AssignmentFollowing(shared, owned, unservable)
    health = ServerHealth(shared, owned, unservable, expected, fragments)
    connections = ClientConnections(shared, owned, health)
    return ServerParts(shared, addresses, owned, expected, fragments, unservable, following, health, connections)
