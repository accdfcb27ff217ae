"""A server that waits for its first answers of the coordinator, as operators see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from polonaise.coordination import Coordinator
from polonaise.histogram import Histogram
from polonaise.host import Host, network_trouble, unreachable
from polonaise.server.node import Server
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.serverclock import ServerClock
from polonaise.server.serverhealth import OwnHealth, ServerMeasures
from polonaise.server.settings import ServerSettings
from polonaise.server.turns import CopyTurns
from polonaise.terms import PartitionId


class StartingServer:
    """What is told of a server until `Server.start` returns it: that it waits for the coordinator."""

    id: Final = 0
    followed: Final = False
    replication_factor: Final = 0

    def __init__(self, host: Host, coordinator: Coordinator, settings: ServerSettings) -> None:
        self._host = host
        self._coordinator = coordinator
        self._settings = settings
        self._clock = ServerClock(host, settings, {})
        self._latencies = Histogram()
        self._copies = CopyTurns(host, settings, self._latencies)
        self.partitions: Mapping[PartitionId, ServedPartition] = {}

    @property
    def past_totals(self) -> Counter[str]:
        return Counter()

    @property
    def waits_for(self) -> str:
        if trouble := self._coordinator.trouble:
            return f"the server has not read the assignment yet: {trouble}"
        return f"the server waits for an answer of the coordinator, {self._coordinator}"

    def measures(self) -> ServerMeasures:
        return ServerMeasures(
            cluster=None,
            latencies=self._latencies,
            refused={},
            connections=0,
            connections_bytes=0,
            connections_cut_off=0,
            requests=0,
            storage_connected={},
            storage_resent={},
            coordinator_errors=0,
            missing_servers=None,
            given_up=0,
            coordinator_servers={},
            coordinator_trouble=self._coordinator.trouble,
            fragments_scrub=None,
            store_trouble=None,
            archive=None,
            copies=self._copies.health(),
            clock=self._clock.health(),
        )

    async def checked_health(self) -> dict[str, Any]:
        return self.health()

    def health(self) -> dict[str, Any]:
        return {**self.own_health(), "partitions": {}}

    def own_health(self) -> dict[str, Any]:
        return OwnHealth(
            server=self.id,
            name=self._settings.name,
            missing_servers={},
            namesake="",
            coordinator_servers=[],
            coordinator=self._coordinator.trouble,
            not_owning="",
            given_up=[],
            given_up_why={},
            tls=network_trouble(self._host.network),
            unreachable=unreachable(self._host.network),
            clock=self._clock.health(),
            fragments="",
            fragments_trouble="",
            fragments_missing={},
            fragments_failed={},
            required="",
            topics_required={},
            fragments_scrub=None,
            copies=self._copies.health(),
            replication_factor=self.replication_factor,
            storage={},
        )._asdict()


AnyServer: TypeAlias = Server | StartingServer
