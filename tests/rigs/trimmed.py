"""A cluster in this process, with small segments, whose servers may be given a fragment store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import polonaise
from polonaise.admin.archive import archive
from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.values import ClusterDescription
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.mark import put_mark
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObjectStore
from polonaise.host.real import RealHost
from polonaise.log.control import PARTITION_BYTES, newest_promises, offset_of
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings

KEY = bytes(range(16))
SETTINGS = ServerSettings(cache_bytes_max=1, readmit_s_min=0.05, gather_s=0.05, retry_s_max=0.2)


class Cluster:
    """One server and some storage nodes, in this event loop."""

    def __init__(self, directory: Path, storage: int) -> None:
        self.directory = directory
        self.address = f"file:{directory / 'coordinator'}"
        self.host = RealHost()
        self.names = tuple(f"unix:{directory}/storage-{number}.sock" for number in range(storage))
        self.nodes: dict[int, StorageNode] = {}
        self.server: Server | None = None
        self._coordinators: list[Coordinator] = []

    async def start_node(self, number: int) -> None:
        settings = StorageSettings(
            directory=str(self.directory / f"storage-{number}"), listen=self.names[number], segment_bytes_max=2_000
        )
        self.nodes[number] = StorageNode(self.host, settings)
        await self.nodes[number].start()

    async def stop_node(self, number: int) -> None:
        await self.nodes.pop(number).close()

    async def start_server(self, store: ObjectStore | None, *, marked: bool = True, **settings: Any) -> Server:
        """Start a server in place of the one that runs, if one does.

        `store` holds its fragments and, if `marked`, the mark that says so.
        """
        await self.stop_server()
        coordinator = coordinator_in(self.host, str(self.directory / "coordinator"))
        self._coordinators.append(coordinator)
        opened: Callable[[bytes], FragmentHistory] | None = None
        if store is not None:
            if marked:
                await put_mark(store, KEY)
            history = HistorySettings(listing_s=0.0, damaged_s=0.0, **settings)
            opened = lambda key: FragmentHistory(store, key, history)  # noqa: E731
        self.server = await Server.start(self.host, coordinator, SETTINGS, opened)
        return self.server

    async def stop_server(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    async def close(self) -> None:
        await self.stop_server()
        for number in list(self.nodes):
            await self.stop_node(number)
        for coordinator in self._coordinators:
            await coordinator.close()
        self.host.close()

    def first_held(self, number: int) -> int:
        """Return the first id that a storage node holds, by its control file."""
        with (self.directory / f"storage-{number}" / "polonaise-storage.ctl").open("rb") as file:
            file.seek(offset_of(0))
            found = newest_promises(file.read(PARTITION_BYTES), 0, file.name)
        assert found is not None
        return found[0].trimmed.first

    async def restart_node(self, number: int, *, wiped: bool = False) -> None:
        """Stop a node and start it again, with an empty disk if `wiped`."""
        await self.stop_node(number)
        if wiped:
            shutil.rmtree(self.directory / f"storage-{number}")
        await self.start_node(number)

    @asynccontextmanager
    async def served(self, store: ObjectStore | None) -> AsyncIterator[polonaise.Log]:
        """Start a server, which knows the store, and yield a client."""
        await self.start_server(store)
        async with polonaise.connect(self.address) as log:
            yield log


@asynccontextmanager
async def running(directory: Path, storage: int = 1) -> AsyncIterator[Cluster]:
    """Yield a cluster without a server."""
    cluster = Cluster(directory, storage)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(cluster.close)
        coordinator = coordinator_in(cluster.host, str(directory / "coordinator"))
        await coordinator.initialize(ClusterDescription(KEY, 1, cluster.names))
        await coordinator.close()
        for number in range(storage):
            await cluster.start_node(number)
        yield cluster


async def fill(log: polonaise.Log, count: int) -> None:
    """Append so many transactions, in several batches and segments."""
    for _ in range(count // 10):
        await asyncio.gather(*(log.append(b"%d" % n * 20, 0) for n in range(10)))


async def archived(log: polonaise.Log, store: ObjectStore, size: int = 3_000) -> list[FragmentName]:
    return [each.fragment async for each in archive(log, store, 0, fragment_bytes=size, rest=True)]


async def contents(log: polonaise.Log) -> list[bytes]:
    return [bytes(batch.view) async for batch in log.read_batches(0, timeout=10)]
