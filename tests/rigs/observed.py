"""A cluster whose nodes serve HTTP: the nodes of production in this process, on its real disk and network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polonaise
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise.node.addresses import coordinator_at
from polonaise.node.processes import Http, create_cluster, run_server, run_storage
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings
from rigs.waiting import PATIENCE_S

ANY_PORT = "127.0.0.1:0"


class ObservedRun(NamedTuple):
    """One node that runs in a task of its own."""

    address: str
    http: str
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class ObservedCluster(NamedTuple):
    """Storage nodes, and a server."""

    coordinator: str
    storage: list[ObservedRun]
    server: ObservedRun

    def connected(self) -> contextlib.AbstractAsyncContextManager[polonaise.Log]:
        return polonaise.connect(self.coordinator)


async def started(run: Callable[..., Coroutine[Any, Any, None]], tls: TlsIdentity | None = None) -> ObservedRun:
    """Start `run(host, ready, http)` as a task, and return when it serves. Raises what it raises."""
    host, said = RealHost(tls=tls), asyncio.Queue[str]()

    async def main() -> None:
        try:
            await run(host, said.put_nowait, Http(ANY_PORT, said.put_nowait))
        finally:
            host.close()

    task = asyncio.create_task(main())
    first = asyncio.create_task(said.get())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([task, first], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            first.cancel()
            task.result()
        return ObservedRun(await first, await said.get(), task)


async def started_storage(directory: Path, tls: TlsIdentity | None = None, **settings: Any) -> ObservedRun:
    """Start a storage node."""
    how = StorageSettings(str(directory), **settings)
    return await started(lambda host, ready, http: run_storage(host, how, ready, http), tls)


@contextlib.asynccontextmanager
async def observed_storage(directory: Path) -> AsyncIterator[ObservedRun]:
    """Run a storage node alone."""
    node = await started_storage(directory)
    try:
        yield node
    finally:
        await node.stop()


async def make(coordinator: str, nodes: Mapping[str, str], partitions: int, tls: TlsIdentity | None = None) -> None:
    """Make a cluster of storage nodes that run."""
    host = RealHost(tls=tls)
    opened = coordinator_at(host, coordinator, tls)
    try:
        await create_cluster(host, opened, nodes, partitions)
    finally:
        await opened.close()
        host.close()


@contextlib.asynccontextmanager
async def observed_cluster(
    directory: Path,
    *,
    storage: int = 3,
    partitions: int = 1,
    tls: TlsIdentity | None = None,
    operator: TlsIdentity | None = None,
    **settings: Any,
) -> AsyncIterator[ObservedCluster]:
    """Run a cluster in a directory."""
    runs: list[ObservedRun] = []
    try:
        for number in range(storage):
            runs.append(await started_storage(directory / f"storage-{number}", tls))
        nodes = {run.address: run.address for run in runs}
        coordinator = f"file:{directory / 'coordinator'}"
        await make(coordinator, nodes, partitions, operator)
        how = ServerSettings(**settings)
        server = await started(
            lambda host, ready, http: run_server(host, coordinator, nodes, partitions, how, ready, http=http, tls=tls),
            tls,
        )
        runs.append(server)
        yield ObservedCluster(coordinator, runs[:storage], server)
    finally:
        for run in reversed(runs):
            await run.stop()
