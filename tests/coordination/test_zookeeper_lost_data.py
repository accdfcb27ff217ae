"""A real ZooKeeper that goes empty, or back to an older copy of its files, under servers that run on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.errors import CoordinatorLost, CoordinatorOutdated, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.node.condition import server_troubles
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from rigs.waiting import PATIENCE_S, wait_until
from rigs.zookeeper import SESSION_S

ROOT = "/bank"
KEY = b"0123456789abcdef"
pytestmark = pytest.mark.slow


class Keeper:
    """A ZooKeeper of its own, whose files can be taken away and put back while it is down."""

    def __init__(self, directory: Path) -> None:
        self._files, self._kept = directory / "files", directory / "kept"
        self.ensemble = ZooKeeperEnsemble(self._files, servers=1, tick_ms=500)
        self.ensemble.start(60.0)

    async def copied(self) -> None:
        """Keep a copy of the files as they are now."""
        await asyncio.to_thread(self._restarted, lambda: shutil.copytree(self._files, self._kept))

    async def back_to_the_copy(self) -> None:
        """Put the copy in the place of the files, which are kept in its place."""

        def swap() -> None:
            self._files.rename(self._files.with_name("swapped"))
            self._kept.rename(self._files)
            self._files.with_name("swapped").rename(self._kept)

        await asyncio.to_thread(self._restarted, swap)

    async def emptied(self) -> None:
        """Begin without any files; the former ones are kept."""
        await asyncio.to_thread(self._restarted, lambda: self._files.rename(self._kept))

    def _restarted(self, work: object) -> None:
        assert callable(work)
        self.ensemble.stop()
        work()
        self._files.mkdir(exist_ok=True)
        self.ensemble.start(60.0)

    def coordinator(self, host: RealHost) -> Coordinator:
        """Return the coordinator of a process of its own."""
        return Coordinator(ZooKeeperBackend(self.ensemble.hosts, ROOT, session_s=SESSION_S), host.clock)


@contextlib.asynccontextmanager
async def keeper_and_server(directory: Path) -> AsyncIterator[tuple[Keeper, Server, RealHost]]:
    async with contextlib.AsyncExitStack() as closing:
        host = RealHost()
        closing.callback(host.close)
        storage = StorageNode(
            host, StorageSettings(directory=str(directory / "storage"), listen="127.0.0.1:0", cluster_key=KEY)
        )
        await storage.start()
        closing.push_async_callback(storage.close)
        keeper = await asyncio.to_thread(Keeper, directory)
        closing.push_async_callback(asyncio.to_thread, keeper.ensemble.stop)
        coordinator = keeper.coordinator(host)
        closing.push_async_callback(coordinator.close)
        await coordinator.initialize(ClusterDescription(KEY, 1, (storage.address,)))
        server = await Server.start(host, coordinator, ServerSettings(settle_s=0.2))
        closing.push_async_callback(server.close)
        await wait_until(lambda: owns(server))
        yield keeper, server, host


def owns(server: Server) -> bool:
    return [served.owner.session is not None for served in server.partitions.values()] == [True]


async def refused(address: str) -> PolonaiseError:
    with pytest.raises(PolonaiseError) as raised:
        async with asyncio.timeout(PATIENCE_S), polonaise.connect(address) as log:
            await log.append(b"never", partition=0)
    return raised.value


async def test_servers_tell_within_seconds_that_zookeeper_is_empty_and_go_on_once_the_data_are_back(
    tmp_path: Path,
) -> None:
    async with keeper_and_server(tmp_path) as (keeper, server, host):
        async with polonaise.connect(f"polonaise://{server.address}") as log:
            await log.append(b"one payment", partition=0)
        await keeper.emptied()
        await wait_until(lambda: "[coordinator_lost]" in server.health()["coordinator"])
        # It may have given up its partitions besides, and says why it did so then: nobody listened there for a moment.
        trouble = server.health()["coordinator"]
        assert trouble in "; ".join(server_troubles(server.health()))
        assert "the coordinator has lost its data" in trouble
        assert "nobody listens there" not in trouble
        assert "TLS" not in trouble
        # As anybody finds it who asks there now.
        asking = keeper.coordinator(host)
        try:
            await registered_anew(asking, server)
            with pytest.raises(CoordinatorLost, match="servers of one are registered there"):
                await asking.describe()
        finally:
            await asking.close()
        assert isinstance(await refused(f"polonaise://{server.address}"), CoordinatorLost)
        await keeper.back_to_the_copy()
        await wait_until(lambda: owns(server) and not server.not_owning and not server.health()["coordinator"])
        async with polonaise.connect(f"polonaise://{server.address}") as log:
            await log.append(b"another", partition=0)
            assert [each.data async for each in log.read(0)] == [b"one payment", b"another"]


async def registered_anew(coordinator: Coordinator, server: Server) -> None:
    while str(server.id) not in await coordinator._backend.registered("members"):
        await asyncio.sleep(0)


async def test_servers_tell_within_seconds_that_zookeeper_is_older_and_go_on_once_the_latest_is_back(
    tmp_path: Path,
) -> None:
    async with keeper_and_server(tmp_path) as (keeper, server, host):
        await keeper.copied()
        await wait_until(lambda: owns(server) and not server.not_owning)
        async with polonaise.connect(f"polonaise://{server.address}") as log:
            await log.append(b"one payment", partition=0)
        # A value that the server has read, and that was written after the copy.
        asking = keeper.coordinator(host)
        described = await asking.description()
        assert await asking.set_description(described.value, described.version) is not None
        await asking.close()
        await server.parts.cluster.read_description()
        await keeper.back_to_the_copy()
        with pytest.raises(CoordinatorOutdated, match="put back to an older state"):
            await server.parts.cluster.read_description()
        await keeper.back_to_the_copy()
        await wait_until(lambda: owns(server) and not server.not_owning and not server.health()["coordinator"])
        async with polonaise.connect(f"polonaise://{server.address}") as log:
            await log.append(b"another", partition=0)
            assert [each.data async for each in log.read(0)] == [b"one payment", b"another"]
