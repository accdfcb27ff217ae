"""Clients, fake servers and the simulated network between them, for the tests of the client."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from polonaise.client.log import Log
from polonaise.client.settings import ClientSettings
from polonaise.terms import Transaction
from polonaise.testing.memory import MemoryCoordinator, MemoryHost
from rigs.fakeserver import FakeLog, FakeServer

QUICK = ClientSettings(
    idle_flush_s=0.03,
    retry_s_min=0.001,
    retry_s_max=0.01,
    apply_retry_s_max=0.01,
    connect_s_max=1.0,
    request_s_max=1.0,
    answer_s_max=2.0,
    mount_s_max=0.1,
)
"""Client settings with short pauses, because some tests have to wait until a pause is over."""


class Memo:
    """A view that keeps the transactions it is given, and fails where a test says so."""

    def __init__(self, mark: int = -1) -> None:
        self.mark = mark
        self.applied: list[Transaction] = []
        self.failures: list[tuple[int, int, Exception]] = []
        self.fail_on: dict[int, int] = {}
        self.gate: asyncio.Event | None = None

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    async def apply(self, tx: Transaction) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.fail_on.get(tx.id, 0):
            self.fail_on[tx.id] -= 1
            raise RuntimeError(f"no stomach for {tx.id}")
        assert tx.id == self.mark + 1
        self.applied.append(tx)
        self.mark = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures.append((partition, id, error))

    @property
    def bodies(self) -> list[bytes]:
        return [tx.data for tx in self.applied]


class World:
    """A cluster of fake servers, with its clients."""

    def __init__(self, partitions: int = 1) -> None:
        self.host = MemoryHost()
        self.coordinator = MemoryCoordinator(partitions)
        self.logs = {partition: FakeLog(partition) for partition in range(partitions)}
        self.server = FakeServer(self.host, dict(self.logs))
        for partition in self.logs:
            self.coordinator.assign(partition, self.server.address, 1)
        self.clients: list[Log] = []

    @property
    def log(self) -> FakeLog:
        return self.logs[0]

    async def client(self, **options: Any) -> Log:
        settings = replace(QUICK, **options.pop("settings", {}))
        client = Log(self.host, self.coordinator, settings=settings, **options)  # type: ignore[arg-type]
        self.clients.append(client)
        await client.start()
        return client

    async def ready_client(self, **options: Any) -> Log:
        client = await self.client(**options)
        await client.ready()
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for connection in self.server.connections:
            connection.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not self.host.failures, self.host.failures


class SilentDiscovery:
    """A discovery that gives no answer, and knows why."""

    trouble = "a:1: it does not reach its coordinator"

    async def describe(self) -> Any:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        pass
