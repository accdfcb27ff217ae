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
    def waits_for(self) -> str:
        if trouble := self._coordinator.trouble:
            return f"the server has not read the assignment yet: {trouble}"
        return f"the server waits for an answer of the coordinator, {self._coordinator}"

    def measures(self) -> ServerMeasures:
        own = OwnHealth(
            name=self._settings.name,
            coordinator=self._coordinator.trouble,
            given_up_why={},
            tls=network_trouble(self._host.network),
            unreachable=unreachable(self._host.network),
            clock=self._clock.health(),
            copies=self._copies.health(),
            replication_factor=self.replication_factor,
        )
        return ServerMeasures(own, self._latencies, Counter())

    async def checked_health(self) -> dict[str, Any]:
        return self.health()

    def health(self) -> dict[str, Any]:
        return {**self.measures().own._asdict(), "partitions": {}}


AnyServer: TypeAlias = Server | StartingServer
