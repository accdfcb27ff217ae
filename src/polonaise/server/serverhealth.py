"""The health and the measurements of a server, read from its parts whenever somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from polonaise.host import network_trouble, unreachable
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.fragmentwatches import FragmentWatches
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.protocol.ownerhealth import health_of
from polonaise.server.servermembership import ServerMembership
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagehealth import StorageHealth
from polonaise.server.storagelinks import StorageLink, StorageLinks
from polonaise.server.unservable import UnservablePartitions
from polonaise.terms import PartitionId, ServerId, StorageId


class OwnHealth(NamedTuple):
    """The health of a server without its partitions: the fields of a JSON document, in order. No trouble is an empty
    text.

    No trouble is an empty text.
    """

    server: ServerId
    """0 before it has one."""
    name: str
    missing_servers: Mapping[str, str]
    """The addresses, by name, of servers that are to be there and were not registered."""
    namesake: str
    """What is wrong with its name, which another server may have, too."""
    coordinator_servers: list[str]
    """A line for each that does not serve."""
    coordinator: str
    not_owning: str
    """Why it owns nothing, if its registration may have run out."""
    given_up: list[PartitionId]
    given_up_why: Mapping[str, str]
    tls: str
    unreachable: str
    clock: Mapping[str, Any]
    """`ServerClock.health`."""
    fragments: str
    """Where they are; empty without a store."""
    fragments_trouble: str
    fragments_missing: Mapping[str, str]
    """By partition the first id that nothing holds any more."""
    fragments_failed: Mapping[str, str]
    """By partition why a read of the fragments failed by a mistake of ours."""
    required: str
    """Beside a quorum."""
    topics_required: Mapping[str, str]
    fragments_scrub: Mapping[str, Any] | None
    """`FragmentScrubbing.health`; None without a store."""
    copies: Mapping[str, Any]
    """`CopyTurns.health`."""
    replication_factor: int
    """0 before it is known."""
    storage: Mapping[StorageId, Mapping[str, Any]]


class ServerHealth:
    """Reads the health of a server that runs."""

    def __init__(
        self,
        server: ServerId,
        shared: SharedParts,
        links: StorageLinks,
        cluster: ClusterAnswers,
        membership: ServerMembership,
        owned: OwnedPartitions,
        unservable: UnservablePartitions,
        expected: ExpectedServersWatch,
        fragments: FragmentWatches | None,
        trouble: CoordinatorTrouble,
    ) -> None:
        self._server = server
        self._shared = shared
        self._links = links
        self._cluster = cluster
        self._membership = membership
        self._owned = owned
        self._unservable = unservable
        self._expected = expected
        self._fragments = fragments
        self._trouble = trouble
        self._storage = StorageHealth(shared.host, links)

    @property
    def coordinator_trouble(self) -> str:
        """What fails at the coordinator; or else why it can't be reached now."""
        return self._trouble.present(self._shared.coordinator)

    @property
    def waits_for(self) -> str:
        """What a server that does not follow an assignment waits for: nearly always its coordinator."""
        if self._membership.not_owning:
            return self._membership.not_owning
        if trouble := self.coordinator_trouble:
            return f"the server has not read the assignment yet: {trouble}"
        return f"the server has not read the assignment yet from {self._shared.coordinator}, or it is stopping"

    async def ask_storage(self) -> None:
        """Ask the storage nodes for their health, which takes half a second at most."""
        await self._storage.ask()

    def document(self) -> dict[str, Any]:
        """Return the health of this server, its partitions and its storage nodes, as a JSON-ready document."""
        now, owned = self._shared.clock.now(), sorted(self._owned.served.items())
        return {
            **self.own(),
            "partitions": {str(partition): health_of(served.owner, now) for partition, served in owned},
        }

    def own(self) -> dict[str, Any]:
        """Return what `document` says beside the partitions."""
        shared, fragments, given_up = self._shared, self._fragments, self._unservable
        return OwnHealth(
            server=self._server,
            name=shared.settings.name,
            missing_servers=self._expected.missing,
            namesake=self._expected.trouble,
            coordinator_servers=self._expected.coordinator_troubles(),
            coordinator=self.coordinator_trouble,
            not_owning=self._membership.not_owning,
            given_up=given_up.not_served_again,
            given_up_why={str(each): why for each, why in given_up.why.items()},
            tls=network_trouble(shared.host.network),
            unreachable=unreachable(shared.host.network),
            clock=shared.clock.health(),
            fragments=str(fragments or ""),
            fragments_trouble=(fragments and fragments.store_trouble) or "",
            fragments_missing={} if fragments is None else fragments.missing,
            fragments_failed={} if fragments is None else fragments.failed,
            required=shared.requirements.told,
            topics_required=shared.requirements.told_of_topics,
            fragments_scrub=None if fragments is None else fragments.scrub_health(),
            copies=shared.copies.health(),
            replication_factor=self._cluster.description.replication_factor,
            storage={name: self._of_storage(name, link) for name, link in self._links.items()},
        )._asdict()

    def _of_storage(self, name: StorageId, link: StorageLink) -> dict[str, Any]:
        return {
            # Not what a node said before it went.
            **({} if link.session is None else self._storage.answers.get(name, {})),
            "address": link.address,
            "connected": link.session is not None,
            "connected_at": None if link.session is None else link.session_address,
            "error": str(link.last_error or link.bulk_error or ""),
            "silent_s": link.silent_s,
            **({} if link.resent is None else {"resent_to": link.resent}),
        }
