"""A server that starts: what is told of it, and what is left of a start that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.errors import CoordinatorUnavailable
from polonaise.node.addresses import coordinator_at
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.server.startingserver import StartingServer
from rigs.town import Town, in_an_application
from rigs.trimmed import running


@in_an_application
async def test_a_server_that_starts_tells_its_health_in_the_same_fields(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    shared = town.server.parts.shared
    starting = StartingServer(shared.host, shared.coordinator, shared.settings)
    assert list(starting.health()) == list(town.server.health())
    assert starting.health()["clock"].keys() == town.server.health()["clock"].keys()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        coordinator: Any = coordinator_at(cluster.host, cluster.address)
        settings = ServerSettings(listen=f"unix:{tmp_path}/server.sock")
        register = coordinator.register

        async def refuses(*_: object) -> None:
            raise CoordinatorUnavailable("it is gone")

        try:
            coordinator.register = refuses
            with pytest.raises(CoordinatorUnavailable):
                await Server.start(cluster.host, coordinator, settings)
            coordinator.register = register
            server = await Server.start(cluster.host, coordinator, settings)  # at the same address
            await server.close()
        finally:
            await coordinator.close()
