"""Leases, and workers with handlers, on a simulated cluster whose owners and holders are killed or cut off."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from polonaise.client.lease import Lease
from polonaise.client.log import Log
from polonaise.client.workergroup import WorkerGroup
from polonaise.host import Host
from polonaise.terms import Transaction
from polonaise_proving.stages.simulated.cluster import Node
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until

DURATION_S = 5.0
SOON_S = 1.0
"""Seconds in which a lease that can be had is had, by those that wait for it."""


class Holders:
    """Processes that want the lease, each on a machine of its own, until they are told to stop."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self.leases: dict[str, Lease] = {}
        self.nodes: dict[str, Node] = {}
        self.had_s: dict[str, float] = {}

    def start(self, name: str) -> None:
        async def live(node: Node, host: Host) -> None:
            self.nodes[name] = node
            log = Log(host, self._town.cluster.coordinator(node, host))
            await log.start()  # and never closed: these processes are killed, or go on until the test is over
            lease = self.leases[name] = log.lease("n", duration_s=DURATION_S)
            while True:
                await lease.acquire()
                others = [each for each, other in self.leases.items() if other is not lease and self.alive(each)]
                assert not [each for each in others if self.leases[each].held], f"{name} beside one of {others}"
                self.had_s[name] = self._town.world.now
                await lease.lost()

        Node(self._town.cluster, name, live).start()

    def alive(self, name: str) -> bool:
        process = self.nodes[name].process
        return process is not None and not process.dead

    async def until_held_by(self, name: str, within_s: float = 60.0) -> float:
        """Wait until this one holds it. Return the seconds that took."""
        began_s = self._town.world.now
        await wait_until(lambda: name in self.leases and self.leases[name].held, within_s=within_s)
        return self._town.world.now - began_s

    async def both(self) -> None:
        """Start a holder, and one that waits."""
        self.start("first")
        await self.until_held_by("first")
        self.start("second")
        await time_passes(1.0)


@in_a_town
async def test_a_holder_that_is_stopped_finds_its_lease_gone_when_it_goes_on(town: Town) -> None:
    holders = Holders(town)
    await holders.both()
    process = holders.nodes["first"].process
    assert process is not None
    process.pause()
    assert await holders.until_held_by("second") < DURATION_S + SOON_S
    assert not holders.leases["first"].held, "by its own clock, before it has run again"
    process.resume()
    await time_passes(2 * DURATION_S)
    assert holders.leases["second"].held


@in_a_town
async def test_a_holder_that_is_cut_off_stops_before_another_one_begins(town: Town) -> None:
    holders = Holders(town)
    await holders.both()
    stopped = asyncio.ensure_future(holders.leases["first"].lost())
    town.world.network.partition("first", [node.name for node in town.cluster.servers])
    cut_s = town.world.now
    await wait_until(lambda: not holders.leases["first"].held)
    assert not holders.leases["second"].held
    assert town.world.now - cut_s < DURATION_S
    assert await holders.until_held_by("second") < SOON_S
    del stopped


@in_a_town(servers=2)
async def test_a_holder_keeps_its_lease_when_the_owner_is_killed(town: Town) -> None:
    holders = Holders(town)
    await holders.both()
    owner = next(node for node in town.cluster.servers if town.cluster.owns(node))
    held_s = holders.had_s["first"]
    held_down(owner)
    await wait_until(lambda: any(town.cluster.owns(node) for node in town.cluster.servers if node is not owner))
    await time_passes(2 * DURATION_S)
    assert holders.leases["first"].held, "it goes on at the new owner, which does not know it"
    assert holders.had_s == {"first": held_s}, "and was never without it"


PARTITIONS = 4
LEASE_S = 5.0


class Crew:
    """Workers, each on a machine of its own, and all that their handlers were given."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.groups: dict[str, WorkerGroup] = {}
        self.nodes: dict[str, Node] = {}
        self.given: dict[int, list[tuple[int, str]]] = defaultdict(list)
        """(id, worker) by partition."""
        self.count = 0

    def start(self, name: str) -> None:
        async def handle(tx: Transaction) -> None:
            self.given[tx.partition].append((tx.id, name))

        async def live(node: Node, host: Host) -> None:
            self.nodes[name] = node
            log = Log(host, self.town.cluster.coordinator(node, host))
            await log.start()
            group = self.groups[name] = log.group("g", handler=handle, lease_s=LEASE_S)
            await group.__aenter__()
            await group.ended()

        Node(self.town.cluster, name, live).start()

    def working(self, name: str) -> int:
        """How many partitions a worker has, as it sees it; 0 for one that is not there."""
        if name not in self.groups or not self.alive(name):
            return 0
        return len(self.groups[name].partitions)

    async def share(self, **expected: int) -> float:
        """Wait until each of these workers has so many partitions. Return the seconds that took."""
        began_s = self.town.world.now
        await wait_until(lambda: {name: self.working(name) for name in expected} == expected, every_s=0.02)
        return self.town.world.now - began_s

    async def append(self, count: int) -> None:
        """Append so many to each partition."""
        for partition in range(PARTITIONS):
            await self.town.append(*[b"x"] * count, partition=partition)
        self.count += count

    async def all_given(self) -> None:
        """Wait until everything was given, and check that nothing was passed over or came before its turn."""
        ids = {}

        async def read(log: Log) -> None:
            for partition in range(PARTITIONS):
                ids[partition] = [tx.id async for tx in log.read(partition)]

        await self.town.application("reader", read)
        assert all(len(each) == self.count for each in ids.values())
        await wait_until(lambda: all({id for id, _ in self.given[p]} >= set(ids[p]) for p in ids))
        for partition in ids:
            first_times = list(dict.fromkeys(id for id, _ in self.given[partition]))
            assert first_times == ids[partition]

    def again(self) -> int:
        """How many were given more than once."""
        return sum(len(given) - len({id for id, _ in given}) for given in self.given.values())

    def alive(self, name: str) -> bool:
        process = self.nodes[name].process
        return process is not None and not process.dead

    def crash(self, name: str) -> None:
        process = self.nodes[name].process
        assert process is not None
        process.crash()


async def two(town: Town) -> Crew:
    crew = Crew(town)
    crew.start("one")
    crew.start("two")
    await crew.share(one=2, two=2)
    await crew.append(3)
    await crew.all_given()
    assert crew.again() == 0
    return crew


@in_a_town(partitions=PARTITIONS)
async def test_what_a_worker_has_not_saved_comes_again_when_it_is_killed_and_nothing_is_passed_over(town: Town) -> None:
    crew = await two(town)
    crew.crash("one")
    assert await crew.share(two=4) < LEASE_S + 1
    await crew.append(2)
    await crew.all_given()
    assert crew.again() <= 2 * 3, "no more than one second of two partitions"


@pytest.mark.slow
@in_a_town(partitions=PARTITIONS)
async def test_a_worker_that_is_cut_off_is_replaced_and_comes_back(town: Town) -> None:
    crew = await two(town)
    await time_passes(2.0)
    servers = [node.name for node in town.cluster.servers]
    town.world.network.partition("one", servers)
    await crew.share(one=0, two=4)
    assert not crew.groups["one"].health()["well"]
    await crew.append(2)
    town.world.network.heal("one", servers)
    await crew.share(one=2, two=2)
    await crew.append(2)
    await crew.all_given()
    assert crew.again() == 0


@in_a_town(partitions=PARTITIONS, servers=2)
async def test_workers_keep_what_they_have_when_an_owner_is_killed(town: Town) -> None:
    crew = await two(town)
    epochs = {name: crew.groups[name].health()["partitions"] for name in crew.groups}
    owner = next(node for node in town.cluster.servers if town.cluster.owns(node))
    held_down(owner)
    await crew.append(2)
    await crew.all_given()
    assert crew.again() == 0
    for name, before in epochs.items():
        now = crew.groups[name].health()["partitions"]
        assert {p: each["epoch"] for p, each in now.items()} == {p: each["epoch"] for p, each in before.items()}


@in_a_town(servers=2)
async def test_a_group_is_known_to_be_there_when_an_owner_was_killed_whose_successor_it_has_not_asked_yet(
    town: Town,
) -> None:
    crew = Crew(town)
    crew.start("one")
    await crew.share(one=1)

    async def look(log: Log) -> None:
        async with log.group("another", handler=handle, lease_s=LEASE_S) as another:
            await wait_until(lambda: another.health()["well"])
            process = crew.nodes["one"].process
            assert process is not None
            process.pause()
            held_down(next(node for node in town.cluster.servers if town.cluster.owns(node)))
            await town.append(b"x")  # by the next owner
            looking = asyncio.ensure_future(another._groups_present())
            await time_passes(LEASE_S / 4)
            process.resume()
            assert set(await looking) == {"another", "g"}

    async def handle(tx: Transaction) -> None: ...

    await town.application("another", look)


@pytest.mark.slow
@in_a_town(partitions=PARTITIONS)
async def test_workers_that_come_and_go_all_the_time_pass_over_nothing(town: Town) -> None:
    crew = Crew(town)
    chance = town.world.random("crew")
    crew.start("0")
    appending = asyncio.ensure_future(crew.append(60))
    for number in range(1, 12):
        await time_passes(chance.uniform(0.5, 4.0))
        crew.start(str(number))
        await time_passes(chance.uniform(0.2, 3.0))
        crew.crash(chance.choice([name for name in crew.nodes if crew.alive(name)]))
    await appending
    await crew.all_given()
