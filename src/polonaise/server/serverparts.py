"""The parts of a server, put together before it listens."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, Versioned
from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.patience import SyncPatience
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.assignmentfollowing import AssignmentFollowing
from polonaise.server.clientconnections import ClientConnections
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.copyturns import CopyTurns
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.fragmentwatches import FragmentWatches
from polonaise.server.measures import ServerMeasures
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.ticks import Ticks
from polonaise.server.requirements import Requirements
from polonaise.server.serverclock import ServerClock
from polonaise.server.serverhealth import ServerHealth
from polonaise.server.servermembership import ServerMembership
from polonaise.server.settings import ServerSettings
from polonaise.server.sharedparts import SharedParts
from polonaise.server.startturns import StartTurns
from polonaise.server.storageaddresses import StorageAddresses
from polonaise.server.storagelinks import StorageLink, StorageLinks
from polonaise.server.unservable import UnservablePartitions
from polonaise.terms import ServerId, StorageId


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of one server, which do nothing until `Server` begins to."""

    server: ServerId
    shared: SharedParts
    trouble: CoordinatorTrouble
    links: StorageLinks
    addresses: StorageAddresses
    cluster: ClusterAnswers
    owned: OwnedPartitions
    membership: ServerMembership
    expected: ExpectedServersWatch
    fragments: FragmentWatches | None
    unservable: UnservablePartitions
    following: AssignmentFollowing
    health: ServerHealth
    connections: ClientConnections

    @property
    def store_trouble(self) -> str:
        """Why the fragment store can't be used; empty if it can, without one, and before the first look."""
        return (self.fragments and self.fragments.store_trouble) or ""

    def measures(self) -> ServerMeasures:
        shared, links, fragments = self.shared, self.links, self.fragments
        return ServerMeasures(
            cluster=self.cluster.description,
            latencies=shared.latencies,
            refused=self.connections.refused,
            connections=len(self.connections.open),
            connections_bytes=self.connections.budget.total,
            connections_cut_off=self.connections.budget.cut_off,
            requests=self.connections.unanswered,
            storage_connected={name: link.session is not None for name, link in links.items()},
            storage_resent={name: link.resent for name, link in links.items()},
            coordinator_errors=self.trouble.errors,
            missing_servers=None if self.expected.seen is None else len(self.expected.missing),
            given_up=len(self.unservable.why),
            coordinator_servers={name: not why for name, why in self.expected.coordinator_servers.items()},
            coordinator_trouble=self.health.coordinator_trouble,
            fragments_scrub=None if fragments is None else fragments.scrub_health(),
            store_trouble=None if fragments is None else fragments.store_trouble,
            archive=None if fragments is None else fragments.archive_lag,
            copies=shared.copies.health(),
            clock=shared.clock.health(),
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
    membership = ServerMembership(host, coordinator, trouble, owned.stop_owning)
    latencies = Histogram()
    shared = SharedParts(
        host,
        coordinator,
        settings,
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
    unservable = UnservablePartitions(
        server,
        shared,
        links,
        cluster,
        membership,
        owned,
        trouble,
        lambda: (fragments and fragments.store_trouble) or "",
    )
    expected = ExpectedServersWatch(coordinator, settings.name, trouble)
    following = AssignmentFollowing(server, shared, cluster, membership, owned, unservable, trouble)
    health = ServerHealth(server, shared, links, cluster, membership, owned, unservable, expected, fragments, trouble)
    connections = ClientConnections(server, shared, cluster, membership, owned, health)
    return ServerParts(
        server, shared, trouble, links, addresses, cluster, owned, membership, expected, fragments, unservable,
        following, health, connections,
    )  # fmt: skip
