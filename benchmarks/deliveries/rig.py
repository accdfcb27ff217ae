"""The set-up of the experiments: the log and its client, processes of targets, and a player or a bare sender."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.deliveries.bare import BARE_GRPC, BARE_STREAMS
from benchmarks.deliveries.children import Child
from benchmarks.deliveries.delays import Delays, Delivery
from benchmarks.deliveries.form import Workload
from benchmarks.deliveries.pace import at_rate
from benchmarks.loads import Missing

import polonaise
from polonaise.node.local import LocalCluster

DIRECT, LINK, GRPC = "direct", "link", "gRPC"
TRANSPORTS = (DIRECT, LINK, GRPC)
FLOORS = (BARE_STREAMS, BARE_GRPC)
SETTLE_S = 60.0
"""The longest that a player may take to serve all targets, and they to receive what is still under way."""
LOOK_S = 0.02


class Log:
    """The log of an experiment, and the client that commits."""

    def __init__(self, cluster: LocalCluster, client: polonaise.Log) -> None:
        self.cluster = cluster
        self.client = client
        self.players = itertools.count(1)
        """Each experiment has a player of its own."""

    async def mark(self) -> int:
        return await self.client.high_water_mark(0)

    async def append(self, workload: Workload, rate: float, first: int, count: int) -> None:
        """Append transactions at a rate, in an open loop; return when all are committed."""
        transactions = workload.transactions()
        receipts: list[polonaise.Receipt] = []
        work: Callable[[int], object] = lambda number: receipts.append(  # noqa: E731
            self.client.append(transactions.transaction(number), partition=0)
        )
        await at_rate(work, rate, first, count)
        await asyncio.gather(*receipts)


@asynccontextmanager
async def log_in(directory: Path) -> AsyncIterator[Log]:
    """Run the paper's three replicas, which sync each commit, and a client."""
    with LocalCluster(directory) as cluster:
        async with polonaise.connect(cluster.coordinator) as client:
            await client.append(bytes(16), partition=0)
            yield Log(cluster, client)


class Delivered:
    """Processes that receive, and the one that sends to them."""

    def __init__(self, sender: Child) -> None:
        self.sender = sender
        self.hosts: dict[str, Child] = {}
        """By name of a target, the process that it is in."""
        self.addresses: dict[str, str] = {}

    async def counts(self, of: Iterable[Child] = ()) -> dict[str, int]:
        """Return how many entries each target has received; of these processes alone, if some are given."""
        counts: dict[str, int] = {}
        for child in of or self._processes:
            counts |= await child.ask("counts")
        return counts

    async def collect(self) -> dict[str, dict[str, Any]]:
        """Return what each target has noted."""
        notes: dict[str, dict[str, Any]] = {}
        for child in self._processes:
            notes |= await child.ask("collect")
        return notes

    @property
    def _processes(self) -> list[Child]:
        return list(dict.fromkeys(self.hosts.values()))

    async def all_received(self, expected: dict[str, int], within_s: float = SETTLE_S) -> None:
        """Wait until each target has received as many entries. Raises `Missing` if one does not, or gets too many."""
        deadline_s = time.monotonic() + within_s
        while (counts := await self.counts()) != expected:
            wrong = {name: counts.get(name) for name in expected if counts.get(name) != expected[name]}
            if any((count or 0) > expected[name] for name, count in wrong.items()):
                raise Missing(f"targets have received too much: {wrong}")
            if time.monotonic() > deadline_s:
                raise Missing(f"targets have not received what they should: {wrong} of {expected}")
            await asyncio.sleep(LOOK_S)

    async def healthy(self, names: Iterable[str], within_s: float = SETTLE_S) -> None:
        """Wait until the player serves these targets. Raises `Missing` if it does not."""
        deadline_s = time.monotonic() + within_s
        while True:
            health = await self.sender.ask("health")
            up = all(health["targets"].get(name, {}).get("state") == "up" for name in names)
            if up and all(each["current"] is not None for each in health["partitions"].values()):
                return
            if time.monotonic() > deadline_s:
                raise Missing(f"the player does not serve its targets: {health}")
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def delivered(
    log: Log,
    transport: str,
    names: Sequence[str],
    processes: int,
    *,
    alone: Sequence[str] = (),
    after: int | None = None,
) -> AsyncIterator[Delivered]:
    """Run targets in `processes` processes, and what sends to them: the player, or for a floor the bare sender.

    Each target of `alone` has a process of its own; the player is not told of one that is not in `names`, too. Targets
    get what follows the id `after`, or the end of the log as it is now.
    """
    is_floor = transport in FLOORS
    children: list[Child] = []
    try:
        sender = await Child.start("sending" if is_floor else "playing")
        children.append(sender)
        setup = Delivered(sender)
        if transport == DIRECT:
            setup.hosts = dict.fromkeys((*names, *alone), sender)
            setup.addresses = dict.fromkeys((*names, *alone), "")
        else:
            together = [name for name in names if name not in alone]
            groups = [together[place::processes] for place in range(processes)] + [[name] for name in alone]
            for group in filter(None, groups):
                receiver = await Child.start("targets")
                children.append(receiver)
                setup.hosts |= dict.fromkeys(group, receiver)
                setup.addresses |= await receiver.ask("open", transport=transport, names=group)
        addresses = {name: setup.addresses[name] for name in names}
        if is_floor:
            await sender.ask("start", kind=transport, addresses=addresses)
        else:
            await sender.ask(
                "start",
                coordinator=log.cluster.coordinator,
                player=f"player-{next(log.players)}",
                addresses=addresses,
                after=await log.mark() if after is None else after,
            )
            await setup.healthy(names)
        yield setup
    finally:
        for child in children:
            await child.stop()


def deliveries(notes: dict[str, dict[str, Any]]) -> list[Delivery]:
    """Return the deliveries that targets have noted."""
    return [Delivery(*times) for each in notes.values() for times in each["times"]]


async def measured_delays(
    log: Log, transport: str, workload: Workload, rate: float, seconds: float, processes: int, *, beside: bool = False
) -> Delays:
    """Return the delays of one transport, or of a floor. With `beside` the log has the same load while a floor runs.

    A fifth of the time is a load before that which does not count.
    """
    warming, count = int(rate * seconds / 5), int(rate * seconds)
    async with delivered(log, transport, workload.names, processes) as setup:

        async def load(first: int, count: int) -> None:
            if transport not in FLOORS:
                await log.append(workload, rate, first, count)
                return
            asked = {"workload": workload.plain(), "rate": rate, "first": first, "count": count}
            sending = setup.sender.ask("send", **asked, within_s=seconds + SETTLE_S)
            await asyncio.gather(sending, *([log.append(workload, rate, first, count)] if beside else []))

        await load(0, warming)
        before = await setup.sender.ask("usage")
        await load(warming, count)
        await setup.all_received(workload.transactions().expected(0, warming + count))
        after = await setup.sender.ask("usage")
        times = deliveries(await setup.collect())
    spent_us = 1e6 * (after["processor_s"] - before["processor_s"]) / count
    return Delays.of((each for each in times if each.number >= warming), spent_us)
