"""A cluster of 0.1 is upgraded node by node under load, and back before the last step: no append fails.

A server of 0.1 may tell as lost what it has let in and sent to nobody when a storage node is stopped, on a busy machine
(docs/upgrading.md): these appends alone may fail, and must not be in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import AppendFailed, PolonaiseError, UnsupportedVersion
from rigs.oldversion import BEFORE, TODAY, NodeOfAVersion, old_client, sources_of
from rigs.waiting import time_passes, wait_until
from rigs.zookeeper import ensemble, new_root

pytestmark = pytest.mark.slow

PARTITIONS = 2
EVERY_S = 0.02


class Cluster:
    """Three storage nodes and two servers on one coordinator, all of 0.1 at first."""

    def __init__(self, directory: Path, coordinator: str, old: Path) -> None:
        self.coordinator = coordinator
        self._directory = directory
        self.storage = [
            self._node(f"storage-{number}", ["storage", "run", "--directory", str(directory / f"storage-{number}")])
            for number in range(3)
        ]
        for node in self.storage:
            node.sources = old
            node.start()
        arguments = ["server", "run", "--coordinator", self.coordinator, "--partitions", str(PARTITIONS)]
        arguments += ["--storage", ",".join(node.address for node in self.storage)]
        self.servers = [self._node(f"server-{number}", arguments) for number in range(2)]
        for node in self.servers:
            node.sources = old
            node.start()

    @property
    def has_an_old_server(self) -> bool:
        return any(node.sources != TODAY for node in self.servers)

    @property
    def nodes(self) -> list[NodeOfAVersion]:
        return [*self.storage, *self.servers]

    def _node(self, name: str, arguments: list[str]) -> NodeOfAVersion:
        return NodeOfAVersion(name, arguments, self._directory / f"{name}.log")

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()


@contextlib.contextmanager
def cluster_of(directory: Path, coordinator: str, old: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory, coordinator, old)
    try:
        yield cluster
        cluster.stop()
        assert [node.exit_status for node in cluster.nodes] == [0] * len(cluster.nodes)
        assert not [node.name for node in cluster.nodes if "Traceback" in node.log]
    finally:
        cluster.stop()


class Load:
    """Appends to every partition at a steady pace, and remembers what was told."""

    def __init__(self, log: polonaise.Log, cluster: Cluster) -> None:
        self._log = log
        self._cluster = cluster
        self.committed: dict[tuple[int, int], bytes] = {}
        """The bodies by partition and id."""
        self.failures: list[str] = []
        self.failed_by_an_old_server: set[bytes] = set()
        """The bodies that were told as lost with a session while a server of 0.1 was there."""

    async def run(self, partition: int) -> None:
        for number in itertools.count():
            body = f"{partition}/{number}".encode()
            old_server = self._cluster.has_an_old_server
            try:
                receipt = await self._log.append(body, partition)
                self.committed[partition, receipt.id] = body
            except PolonaiseError as error:
                if isinstance(error, AppendFailed) and "(session_ended)" in str(error) and old_server:
                    self.failed_by_an_old_server.add(body)
                else:
                    self.failures.append(str(error))
            await time_passes(EVERY_S)

    async def goes_on(self) -> None:
        """Wait until each partition has committed some more."""
        counts = [0] * PARTITIONS

        def count() -> list[int]:
            found = list(counts)
            for partition, _ in list(self.committed):
                found[partition] += 1
            return found

        before = count()
        await wait_until(lambda: all(b + 5 <= a for b, a in zip(before, count(), strict=True)), "each commits more")


@contextlib.asynccontextmanager
async def loaded(log: polonaise.Log, cluster: Cluster) -> AsyncIterator[Load]:
    load = Load(log, cluster)
    tasks = [asyncio.create_task(load.run(partition)) for partition in range(PARTITIONS)]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        assert task.cancelled(), task


async def owners_of(log: polonaise.Log) -> list[int] | None:
    """Return the server that owns each partition, if all its replicas are engaged; None if not, or not yet."""
    owners = []
    for partition in range(PARTITIONS):
        try:
            health = await log.health(partition, timeout=5)
        except PolonaiseError:
            return None
        if len(health["partitions"][str(partition)]["engaged"]) != 3:
            return None
        owners.append(int(health["server"]))
    return owners


async def change(node: NodeOfAVersion, sources: Path, log: polonaise.Log, load: Load) -> None:
    """Restart one node with another version, and go on when the cluster is whole again, as docs/upgrading.md says."""
    await asyncio.to_thread(node.restart_with, sources)
    await wait_until(lambda: owners_of(log), f"all replicas are engaged after {node.name}", every_s=0.1)
    await load.goes_on()
    assert load.failures == []


def coordinator_in(kind: str, directory: Path) -> str:
    """Return the address of a coordinator of this kind, for a new cluster."""
    if kind == "directory":
        return f"file:{directory / 'coordinator'}"
    return f"zookeeper://{ensemble().hosts}{new_root()}"


@pytest.mark.exhaustive  # of coordinators
@pytest.mark.parametrize("kind", ["directory", "ZooKeeper"])
async def test_no_append_fails_while_the_nodes_change_their_version_one_by_one(kind: str, tmp_path: Path) -> None:
    old = await asyncio.to_thread(sources_of, BEFORE)
    coordinator = await asyncio.to_thread(coordinator_in, kind, tmp_path)
    with contextlib.ExitStack() as stack:
        cluster = await asyncio.to_thread(lambda: stack.enter_context(cluster_of(tmp_path, coordinator, old)))
        async with (
            polonaise.connect(cluster.coordinator) as log,
            loaded(log, cluster) as load,
            old_application(cluster) as other,
        ):
            await load.goes_on()
            for node in cluster.storage:
                await change(node, TODAY, log, load)
            first, last = cluster.servers
            await change(first, TODAY, log, load)

            async def shared() -> bool:
                return len(set(await owners_of(log) or ())) == 2

            await wait_until(shared, "a server of each version owns a partition", every_s=0.1)
            await load.goes_on()
            # Back, because the upgrade is not what was hoped for.
            for node in (first, *cluster.storage):
                await change(node, old, log, load)
            # And again, with the last step.
            for node in (*cluster.storage, first, last):
                await change(node, TODAY, log, load)
            await wait_until(shared, "the servers share the partitions", every_s=0.1)
            await load.goes_on()
            assert other.returncode is None, "the client of 0.1 goes on, too"
        assert load.failures == []
        servers = ",".join(node.address for node in cluster.servers)
        async with polonaise.connect(f"polonaise://{servers}") as log:
            read = {(p, tx.id): tx.data async for p in partitions() async for tx in log.read(p)}
        assert load.committed.items() <= read.items()
        assert load.failed_by_an_old_server.isdisjoint(read.values()), "what was told as lost is lost"
        theirs = [body for body in read.values() if body.startswith(b"old/")]
        told = set((await other.stdout.read()).split()) if other.stdout is not None else set()
        assert len(told) > 100
        assert told <= {*theirs}
        assert len(theirs) == len({*theirs}), "nothing that was appended again is there twice"


async def test_servers_of_0_1_are_sent_no_append_that_needs_copies(tmp_path: Path) -> None:
    """They would take it for a broken protocol, and end the connection under all other appends."""
    old = await asyncio.to_thread(sources_of, BEFORE)
    coordinator = await asyncio.to_thread(coordinator_in, "directory", tmp_path)
    with contextlib.ExitStack() as stack:
        cluster = await asyncio.to_thread(lambda: stack.enter_context(cluster_of(tmp_path, coordinator, old)))
        async with polonaise.connect(cluster.coordinator) as log:
            early = log.append(b"early", 0, copies=2)
            with pytest.raises(UnsupportedVersion, match=r"is not in the log, and is not sent.* upgrade the servers"):
                await early
            with pytest.raises(UnsupportedVersion, match="upgrade the servers"):
                log.append(b"late", 0, copies=2)
            assert (await log.append(b"plain", 0)).id == 0
            assert [tx.data async for tx in log.read(0)] == [b"plain"]


async def partitions() -> AsyncIterator[int]:
    for partition in range(PARTITIONS):
        yield partition


@contextlib.asynccontextmanager
async def old_application(cluster: Cluster) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an application with the library of 0.1 until the end; it ends by itself if a fate stays unknown."""
    async with old_client(cluster.coordinator) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0
