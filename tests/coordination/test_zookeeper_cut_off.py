"""A server that is cut off from a real ZooKeeper stops owning within its session, and another takes over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

import polonaise
from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.patience import AnswerPatience
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeepersession import ZooKeeperSession
from polonaise.errors import NotOwner
from polonaise.host.real import RealHost
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from rigs.proxy import Proxy, proxied
from rigs.waiting import time_passes, wait_until
from rigs.zookeeper import SESSION_S, ensemble, new_root

PARTITIONS = 2
KEY = b"0123456789abcdef"


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
