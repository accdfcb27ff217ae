"""The machine of the test driver: transports within one event loop, and a coordinator in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from polonaise.client.waiting import wake
from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import Assignment, ClusterDescription, Owner, Versioned
from polonaise.errors import ConnectionLost
from polonaise.host.real import RealHost
from polonaise.terms import ClusterTopics

KEY = bytes(range(16))


class MemoryTransport(asyncio.Transport):
    """One end of a connection. What is written arrives at the other end in the next turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.peer: MemoryTransport
        self.protocol: asyncio.Protocol
        self._closed = False
        self._undelivered: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self._closed:
            return
        if not self._undelivered:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._undelivered.append(b"".join(list_of_data))

    def _deliver(self) -> None:
        data, self._undelivered = b"".join(self._undelivered), []
        if data and not self.peer._closed:
            self.peer.protocol.data_received(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver_and_close)

    def _deliver_and_close(self) -> None:
        self._deliver()
        self.abort()

    def abort(self) -> None:
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self.protocol.connection_lost, None)
        if not self.peer._closed:
            self.peer._closed = True
            loop.call_soon(self.peer.protocol.connection_lost, None)


class MemoryNetwork:
    """A network within this process. Connecting takes no time."""

    def __init__(self) -> None:
        self.listening: dict[str, Callable[[], asyncio.Protocol]] = {}
        self.attempts: list[str] = []

    async def listen(self, address: str, factory: Any) -> Any:
        self.listening[address] = factory

    async def connect(self, address: str, factory: Any) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self.attempts.append(address)
        accept = self.listening.get(address)
        if accept is None:
            raise ConnectionLost(f"nobody listens on {address}")
        near, far = MemoryTransport(), MemoryTransport()
        near.peer, far.peer = far, near
        near.protocol, far.protocol = factory(), accept()
        near.protocol.connection_made(near)
        far.protocol.connection_made(far)
        return near, near.protocol


class MemoryHost(RealHost):
    """The host of a server in memory and its clients, whose heartbeats and deadlines take real time. Errors that end a
    task are kept in `failures`, and fail the test at its end."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.wires = MemoryNetwork()
        self.network = self.wires
        self.random.seed(seed)
        self.failures: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)


class MemoryCoordinator:
    """The discovery of clients in memory: description, unique ids, the assignment and its changes."""

    def __init__(self, partitions: int) -> None:
        self.description = ClusterDescription(KEY, partitions, ("s1", "s2", "s3"))
        self._ids = 0
        self._assignment = Versioned(1, Assignment())
        self._watching: list[asyncio.Future[None]] = []

    @property
    def trouble(self) -> str:
        return ""

    async def describe(self) -> ClusterDescription:
        return self.description

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        return self.description.partitions_of(name, 1)

    async def topics(self) -> ClusterTopics:
        return self.description.shape

    async def server_addresses(self) -> set[str]:
        return {owner.address for owner in self._assignment.value.owned.values()}

    async def unique_id(self) -> int:
        self._ids += 1
        return 100 + self._ids

    async def assignment(self) -> Versioned[Assignment]:
        return self._assignment

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        while self._assignment.version <= version:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watching.append(changed)
            await changed
        return self._assignment

    def assign(self, partition: int, address: str, generation: int) -> None:
        owners = {**self._assignment.value.owners, partition: Owner(1, address, generation)}
        self._assignment = Versioned(self._assignment.version + 1, Assignment(owners))
        watching, self._watching = self._watching, []
        wake(watching)

    async def close(self) -> None:
        pass
