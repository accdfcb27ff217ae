"""A coordinator that has lost its data is told from a new one, and nobody makes a new cluster in its place."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import polonaise
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.values import ClusterDescription, Registration
from polonaise.errors import CoordinatorLost, NotInitialized, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at
from polonaise.node.local import LocalCluster, StartFailed
from polonaise.node.processes import create_cluster, run_server
from polonaise.server.settings import ServerSettings
from rigs.observed import observed_cluster, started_storage


async def refusal(coordinator: str, nodes: dict[str, str]) -> PolonaiseError:
    """What a server is refused with that is started at this coordinator."""
    host = RealHost()
    try:
        with pytest.raises(PolonaiseError) as refused:
            async with asyncio.timeout(30):
                await run_server(host, coordinator, nodes, 1, ServerSettings(), lambda _: None)
    finally:
        host.close()
    return refused.value


async def made_at(coordinator: str, nodes: dict[str, str]) -> ClusterDescription:
    host = RealHost()
    opened = coordinator_at(host, coordinator)
    try:
        return await create_cluster(host, opened, nodes, 1)
    finally:
        await opened.close()
        host.close()


async def test_a_server_makes_no_cluster_unasked(tmp_path: Path) -> None:
    node = await started_storage(tmp_path / "storage")
    try:
        error = await refusal(f"file:{tmp_path / 'coordinator'}", {"a": node.address})
        assert isinstance(error, NotInitialized)
        assert "polonaise cluster create" in str(error)
        assert not (tmp_path / "coordinator").exists()
    finally:
        await node.stop()


async def test_a_lost_coordinator_is_named_and_no_new_cluster_takes_its_place(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
        await cluster.server.stop()
        (tmp_path / "coordinator").rename(tmp_path / "lost")
        nodes = {node.address: node.address for node in cluster.storage}
        for error in (await refusal(cluster.coordinator, nodes), await _refused(made_at(cluster.coordinator, nodes))):
            assert isinstance(error, CoordinatorLost)
            assert "*coordinator* has lost its data" in str(error)
            assert "leave their directories as they are" in str(error)
            assert "polonaise cluster recover" in str(error)
            assert "erase" not in str(error)
        assert not (tmp_path / "coordinator" / "description").exists()


async def _refused(making: asyncio.Future[object] | object) -> PolonaiseError:
    with pytest.raises(PolonaiseError) as refused:
        await making  # type: ignore[misc]
    return refused.value


@pytest.mark.slow
def test_a_local_cluster_whose_coordinator_is_gone_does_not_begin_as_a_new_one(tmp_path: Path) -> None:
    with LocalCluster(tmp_path):
        pass
    shutil.rmtree(tmp_path / "coordinator")
    with pytest.raises(StartFailed, match="has lost its data"), LocalCluster(tmp_path):
        pass


async def test_a_registered_server_of_an_earlier_cluster_hinders_nobody(tmp_path: Path) -> None:
    """It goes on with its registration after the cluster was made anew in the same place."""
    host = RealHost()
    try:
        earlier, later = (ClusterDescription.new(bytes([n] * 16), 1, {"a": "127.0.0.1:7100"}) for n in (1, 2))
        stray = coordinator_in(host, f"{tmp_path}/c")
        await stray.initialize(earlier)
        await stray.register(Registration(1, "127.0.0.1:7000"))
        for path in (tmp_path / "c").iterdir():
            if path.is_file():
                path.unlink()
        coordinator = coordinator_in(host, f"{tmp_path}/c")
        await coordinator.initialize(later)
        await coordinator.register(Registration(2, "127.0.0.1:7001"))
        assert [each.server for each in await coordinator.members()] == [2]
        await coordinator.close()
        await stray.close()
    finally:
        host.close()
