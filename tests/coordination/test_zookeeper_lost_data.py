"""A real ZooKeeper that goes empty or back, or is cut off from a server, under servers that run on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

import polonaise
from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.patience import AnswerPatience
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeepersession import ZooKeeperSession
from polonaise.errors import CoordinatorLost, CoordinatorOutdated, NotOwner, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.node.condition import server_troubles
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from rigs.proxy import Proxy, proxied
from rigs.waiting import PATIENCE_S, time_passes, wait_until
from rigs.zookeeper import SESSION_S, ensemble, new_root

ROOT = "/bank"
KEY = b"0123456789abcdef"


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        await server.parts.shared.cluster.read_description()
        await keeper.back_to_the_copy()
        with pytest.raises(CoordinatorOutdated, match="put back to an older state"):
            await server.parts.shared.cluster.read_description()
        await keeper.back_to_the_copy()
        await wait_until(lambda: owns(server) and not server.not_owning and not server.health()["coordinator"])
        async with polonaise.connect(f"polonaise://{server.address}") as log:
            await log.append(b"another", partition=0)
            assert [each.data async for each in log.read(0)] == [b"one payment", b"another"]


PARTITIONS = 2


class Deposed:
    """Two servers of one cluster in ZooKeeper, the first of which reaches it through a proxy."""

    def __init__(self, first: Server, second: Server, proxy: Proxy, root: str) -> None:
        self.first, self.second, self.proxy, self.root = first, second, proxy, root

    @staticmethod
    def owned(server: Server) -> int:
        """How many partitions this server has a session in."""
        return sum(served.owner.session is not None for served in server.partitions.values())


@contextlib.asynccontextmanager
async def two_servers(directory: Path) -> AsyncIterator[Deposed]:
    host, root = RealHost(), new_root()
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(host.close)
        storage = StorageNode(host, StorageSettings(directory=str(directory), listen="127.0.0.1:0", cluster_key=KEY))
        await storage.start()
        closing.push_async_callback(storage.close)
        proxy = await closing.enter_async_context(proxied(ensemble().hosts))
        servers = []
        for hosts in (proxy.address, ensemble().hosts):
            backend = ZooKeeperBackend(hosts, root, session_s=SESSION_S)
            coordinator = Coordinator(backend, host.clock)
            closing.push_async_callback(coordinator.close)
            if not servers:
                await coordinator.initialize(ClusterDescription(KEY, PARTITIONS, (storage.address,)))
            server = await Server.start(host, coordinator, ServerSettings(settle_s=0.2))
            servers.append(server)
            closing.push_async_callback(server.close)
            if len(servers) == 1:
                await wait_until(lambda: Deposed.owned(servers[0]) == PARTITIONS)
        yield Deposed(servers[0], servers[1], proxy, root)


@pytest.mark.slow
async def test_a_server_cut_off_from_zookeeper_stops_within_its_session_and_another_takes_over(tmp_path: Path) -> None:
    async with two_servers(tmp_path / "storage") as scene:
        first, second = scene.first, scene.second
        # The first learns of it a moment later than the second, which wrote the assignment.
        await wait_until(lambda: scene.owned(first) == scene.owned(second) == PARTITIONS // 2)
        # Through servers, because the coordinator's way is cut for one of them only.
        async with polonaise.connect(f"polonaise://{second.address},{first.address}") as log:
            written: list[tuple[int, bytes]] = []
            stopped = asyncio.Event()
            writing = [asyncio.create_task(write(log, each, written, stopped)) for each in range(PARTITIONS)]
            await wait_until(lambda: len(written) > 10)
            [partition] = first.partitions
            old = first.partitions[partition].owner
            scene.proxy.cut()
            cut_s = time.monotonic()
            await wait_until(lambda: not first.partitions)
            assert time.monotonic() - cut_s < SESSION_S
            assert scene.owned(second) == PARTITIONS // 2, "nobody has told it: its session has not ended yet"
            assert "owns nothing" in first.health()["not_owning"]
            counted = dict(old.counts)
            await wait_until(lambda: scene.owned(second) == PARTITIONS)
            count = len(written)
            await wait_until(lambda: sum(number == partition for number, _ in written[count:]) > 10)
            scene.proxy.heal()
            await wait_until(lambda: not first.not_owning)
            await wait_until(lambda: scene.owned(first) == PARTITIONS // 2)
            count = len(written)
            await wait_until(lambda: len(written) > count + 10)
            stopped.set()
            await asyncio.gather(*writing)
            assert isinstance(old.stopped, NotOwner)
            assert dict(old.counts) == counted, "the old owner has committed nothing more"
            for each in range(PARTITIONS):
                held = [transaction.data async for transaction in log.read(each)]
                assert sorted(held) == sorted(body for number, body in written if number == each)


async def write(log: polonaise.Log, partition: int, written: list[tuple[int, bytes]], stopped: asyncio.Event) -> None:
    """Append numbered bodies, one after the other, and note those that were committed: all of them."""
    for number in itertools.count():
        if stopped.is_set():
            return
        body = f"{partition}/{number}".encode()
        receipt = await log.append(body, partition)
        assert receipt.committed
        written.append((partition, body))
        await time_passes(0.005)


def session_with(sync_fails: bool) -> Any:
    """Return a session whose client answers each request at once, and a sync with a failure if told so."""

    class Result:
        def __init__(self, value: object) -> None:
            self.value = value
            self.exception = value if isinstance(value, Exception) else None

        def successful(self) -> bool:
            return self.exception is None

        def get_nowait(self) -> object:
            return self.value

        def rawlink(self, heard: Any) -> None:
            heard(self)

    session: Any = ZooKeeperSession.__new__(ZooKeeperSession)
    session._loop = asyncio.get_running_loop()
    session._connections = SimpleNamespace(number=1, is_alone=True)
    session._asking = session._changing = AnswerPatience(1.0, 1.0)
    session._changes = 0
    session._heard_s = 0.0
    session._client = SimpleNamespace(
        sync_async=lambda path: Result(ConnectionLoss() if sync_fails else path), get=lambda: Result("value")
    )
    return session


async def test_an_answer_is_not_believed_if_the_server_could_not_catch_up_before_it() -> None:
    with pytest.raises(ConnectionLoss):
        await session_with(sync_fails=True).ask(lambda client: client.get(), "/node")
    assert await session_with(sync_fails=True).ask(lambda client: client.get()) == "value"
    assert await session_with(sync_fails=False).ask(lambda client: client.get(), "/node") == "value"


@pytest.mark.slow
@pytest.mark.parametrize(("asked_s", "granted_s"), [(4.5, 4.5), (60.0, 10.0)])
async def test_a_name_holds_for_the_session_that_zookeeper_grants_if_that_is_shorter_than_what_was_asked_for(
    asked_s: float, granted_s: float
) -> None:
    """With ticks of half a second ZooKeeper grants 10 seconds at most."""
    backend = ZooKeeperBackend(ensemble().hosts, new_root(), session_s=asked_s)
    try:
        assert backend.holds_s == min(asked_s, LEASE_S)
        assert await backend.read("description") is None
        assert backend._session is not None
        assert backend._session.granted_s == granted_s
    finally:
        await backend.close()
