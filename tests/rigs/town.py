"""A simulated cluster of production code, and applications with views on machines of their own, for stories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from polonaise.client.log import Log
from polonaise.client.settings import ClientSettings
from polonaise.client.view import View
from polonaise.coordination import Coordinator
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import ClusterDescription
from polonaise.host import Host
from polonaise.link.settings import LinkSettings
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.terms import Transaction
from polonaise_proving.record.diskaudit import durable_last
from polonaise_proving.stages.simulated.cluster import DIRECTORY, Cluster, Knobs, Node
from polonaise_proving.stages.simulated.world import World
from rigs.scenarios import runs_tests
from rigs.waiting import wait_until

T = TypeVar("T")


class Fold(View):
    """A view: one number, made of the log's transactions by `fold`, which also gets the number so far."""

    def __init__(self, fold: Callable[[int, Transaction], int]) -> None:
        self._fold = fold
        self._mark = -1
        self.value = 0

    def high_water_mark(self, partition: int) -> int:
        return self._mark

    def apply(self, tx: Transaction) -> None:
        self.value = self._fold(self.value, tx)
        self._mark = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise error


class Meeting:
    """A meeting point: holds everyone who arrives until `count` have; later arrivals pass at once."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._complete = asyncio.Event()

    async def meet(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._complete.set()
        await self._complete.wait()


class Town:
    """One seed's cluster: three storage nodes and a server with the default settings, without faults of its own."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 1,
        servers: int = 1,
        server: ServerSettings | None = None,
        client: ClientSettings | None = None,
        spares: int = 0,
        notes_s: float = 0,
        leases: bool = False,
    ) -> None:
        """`spares`: so many storage nodes run beside those of the cluster's description.

        With `leases` a server that is stopped is taken for dead, as in production.
        """
        self.world = World(seed)
        knobs = replace(
            Knobs.draw(self.world.random("knobs")),
            storage=3, servers=servers, clients=0, partitions=partitions,
            link=LinkSettings(), server=replace(server or ServerSettings(), notes_s=notes_s),
            client=client or ClientSettings(),
            segment_bytes_max=2**20, spares=spares, leases=leases, **({"lease_s": LEASE_S} if leases else {}),
        )  # fmt: skip
        self.cluster = Cluster(self.world, knobs, no_client)

    @property
    def server(self) -> Server:
        """The one server that runs."""
        (server,) = self.cluster.running_servers
        return server

    async def has_a_server(self) -> None:
        """Wait until a server runs."""
        await wait_until(lambda: self.cluster.running_servers)

    def name(self, number: int) -> str:
        """Return the name of a storage node by its number; those that run beside the cluster's come behind them."""
        return self.cluster.storage_id([*self.cluster.storage, *self.cluster.spares][number])

    def lasts(self) -> list[int]:
        """Return the last id of partition 0 on the disk of each storage node."""
        return [durable_last(node.machine.disk, DIRECTORY, 0) for node in self.cluster.storage]

    def fill_disks(self) -> None:
        """Leave hardly any room on the disk of each storage node."""
        for node in self.cluster.storage:
            node.machine.disk.fill(10)

    async def application(
        self, machine: str, main: Callable[[Log], Awaitable[T]], view: View | None = None, topic: str = ""
    ) -> T:
        """Run one life of an application of this topic, or of none. Return what `main(log)` returns."""

        async def work(host: Host, coordinator: Coordinator) -> T:
            async with Log(host, coordinator, view=view, topic=topic) as log:
                return await main(log)

        return await self.operator(work, machine)

    async def append(self, *bodies: bytes, partition: int = 0, topic: str = "") -> None:
        """Append these one after the other, in one life of an application."""

        async def main(log: Log) -> None:
            for body in bodies:
                await log.append(body, partition)

        await self.application("writer", main, topic=topic)

    async def operator(self, do: Callable[[Host, Coordinator], Awaitable[T]], machine: str = "operator") -> T:
        """Run one life of an operator, on a machine of its own. Return what `do` returns, or raise what it raises."""

        async def live(node: Node, host: Host) -> T:
            return await do(host, self.cluster.coordinator(node, host))

        return await on_a_machine(self.cluster, machine, live)

    async def description(self) -> ClusterDescription:
        """Return what the coordinator says of the cluster at present."""
        return await self.operator(lambda _, coordinator: coordinator.describe())

    async def log(self, partition: int = 0) -> list[bytes]:
        """Return the bodies of a partition's whole log, as a new client reads them."""

        async def read(log: Log) -> list[bytes]:
            return [tx.data async for tx in log.read(partition)]

        return await self.application("reader", read)

    def run(self, story: Callable[[Town], Coroutine[Any, Any, T]]) -> T:
        async def tell() -> T:
            await self.cluster.start()
            return await story(self)

        return self.world.run(tell())


@runs_tests
def in_a_town(story: Callable[[Town], Coroutine[Any, Any, None]], seed: int = 1, **how: Any) -> None:
    """Run a test beside a town's cluster."""
    Town(seed, **how).run(story)


@runs_tests
def in_an_application(main: Callable[[Town, Log], Awaitable[None]], seed: int = 1, **how: Any) -> None:
    """Run a test as an application of a town's cluster."""

    async def story(town: Town) -> None:
        await town.application("client", lambda log: main(town, log))

    Town(seed, **how).run(story)


async def on_a_machine(cluster: Cluster, name: str, main: Callable[[Node, Host], Awaitable[T]]) -> T:
    """Run one life of a process on a machine beside a cluster. Return or raise what `main` returns or raises."""
    results: list[T] = []
    errors: list[Exception] = []

    async def live(node: Node, host: Host) -> None:
        try:
            results.append(await main(node, host))
        except Exception as error:  # noqa: BLE001 - raised below, in the test
            errors.append(error)

    node = Node(cluster, name, live)
    node.start()
    assert node.process is not None
    await node.process.ended()
    if errors:
        raise errors[0]
    if node.process.failure is not None:
        raise node.process.failure
    return results[0]


def held_down(node: Node, *, wiped: bool = False) -> None:
    """Kill a node, which does not start again until it is let up; `wiped`: its disk is lost, too."""
    node.hold_down()
    node.crash()
    if wiped:
        node.machine.disk.wipe()


async def no_client(node: Node, host: Host) -> None:
    raise NotImplementedError("this cluster has no clients of its own")
