"""Servers share the partitions: one that joins gets its share, one that stops or dies leaves it to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.client.protocol.locks import Lock
from polonaise.client.settings import ClientSettings
from polonaise.coordination.backend import Entry
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import ASSIGNMENT
from polonaise.errors import LockConflict
from polonaise.host import Host
from polonaise.link.settings import LinkSettings
from polonaise.server.settings import ServerSettings
from polonaise.terms import LockMode
from polonaise_proving.stages.simulated.cluster import Cluster, Knobs, Node
from polonaise_proving.stages.simulated.world import World
from rigs.scenarios import runs_tests_in
from rigs.town import held_down, no_client, on_a_machine
from rigs.waiting import wait_until

PARTITIONS = 4
SETTLE_S = 5.0


class Pair:
    """A cluster of four partitions with two servers, the second of which is not started."""

    def __init__(self, seed: int = 1, **changes: Any) -> None:
        self.world = World(seed)
        knobs = replace(
            Knobs.draw(self.world.random("knobs")),
            storage=3, servers=2, clients=0, partitions=PARTITIONS, lease_s=2.0,
            link=LinkSettings(), server=ServerSettings(settle_s=SETTLE_S), client=ClientSettings(),
            segment_bytes_max=2**20,
        )  # fmt: skip
        self.cluster = Cluster(self.world, replace(knobs, **changes), no_client)
        self.first, self.second, *_ = self.cluster.servers

    def owned(self, node: Node) -> int:
        """How many partitions this server has a session in; 0 while it does not run."""
        server = self.cluster.owners.get(node.name)
        return sum(each.owner.session is not None for each in server.partitions.values()) if server else 0

    def assignment(self) -> Entry:
        return self.cluster.service.snapshot()[ASSIGNMENT]

    async def start(self) -> None:
        self.second.hold_down()
        await self.cluster.start()
        await wait_until(lambda: self.second.running)
        self.second.crash()
        await wait_until(lambda: self.owned(self.first) == PARTITIONS)

    async def start_both(self) -> None:
        """Start, and wait until the second server has its share."""
        await self.start()
        self.second.let_up()
        await wait_until(lambda: self.owned(self.second) == PARTITIONS / 2, within_s=30)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Have an application append meanwhile, and some seconds before."""
        stopped = asyncio.Event()
        working = asyncio.ensure_future(self.work_until(stopped))
        await asyncio.sleep(3)
        yield
        stopped.set()
        assert await working > 100

    async def work_until(self, stopped: asyncio.Event) -> int:
        """Append to all partitions, by contexts and without, with locks and without, until told to stop.

        Return how many appends were committed: all of them, whichever server owned the partition meanwhile, but for
        plain ones with locks, which may be told a conflict and nothing else.
        """

        def locked(tx: Draft) -> None:
            tx.write_lock("account", 1)
            tx.append(b"xl")

        async def live(node: Node, host: Host) -> int:
            committed = 0
            async with Log(host, self.cluster.coordinator(node, host)) as log:
                while not stopped.is_set():
                    runs = [log.run(lambda tx: tx.append(b"x"), partition=n, timeout=10) for n in range(PARTITIONS)]
                    runs += [log.run(locked, partition=n, timeout=10) for n in range(PARTITIONS)]
                    plain = [log.append(b"y", partition=n) for n in range(PARTITIONS) for _ in range(5)]
                    with_lock = [
                        log.append(b"yl", partition=n, locks=[Lock("account", 2, LockMode.WRITE)])
                        for n in range(PARTITIONS)
                    ]
                    told = await asyncio.gather(*with_lock, return_exceptions=True)
                    assert {type(each) for each in told if isinstance(each, BaseException)} <= {LockConflict}, told
                    await asyncio.gather(*runs, *plain)
                    committed += len(runs) + len(plain) + sum(not isinstance(each, BaseException) for each in told)
                    await asyncio.sleep(0.05)
                marks = [await log.high_water_mark(partition) for partition in range(PARTITIONS)]
                assert sum(marks) + PARTITIONS == committed, "each is in the log once"
            return committed

        return await on_a_machine(self.cluster, "application", live)


in_a_pair = runs_tests_in(Pair)


@pytest.mark.slow
@in_a_pair
async def test_a_server_that_joins_gets_its_share_once_it_has_settled_and_no_append_fails(pair: Pair) -> None:
    await pair.start()
    async with pair.at_work():
        pair.second.let_up()
        await asyncio.sleep(SETTLE_S - 2)
        assert (pair.owned(pair.first), pair.owned(pair.second)) == (PARTITIONS, 0)
        await wait_until(lambda: pair.owned(pair.second) == PARTITIONS / 2, within_s=20)
        assert pair.owned(pair.first) == PARTITIONS / 2


@pytest.mark.slow
@in_a_pair
async def test_a_server_that_stops_hands_its_partitions_over_at_once_and_no_append_fails(pair: Pair) -> None:
    await pair.start_both()
    async with pair.at_work():
        pair.first.hold_down()
        began_s = pair.world.now
        await pair.cluster.owners[pair.first.name].close()
        pair.first.crash()
        await wait_until(lambda: pair.owned(pair.second) == PARTITIONS, within_s=20)
        assert pair.world.now - began_s < 0.5, "it did not wait for a lease to run out"
        await asyncio.sleep(3)


@pytest.mark.slow
@in_a_pair
async def test_what_a_dead_server_owned_goes_to_the_other_when_its_lease_has_run_out_and_no_append_fails(
    pair: Pair,
) -> None:
    await pair.start_both()
    async with pair.at_work():
        held_down(pair.first)
        await wait_until(lambda: pair.owned(pair.second) == PARTITIONS, within_s=20)
        await asyncio.sleep(3)


# ------------------------------------------------------------------ three servers: they see each other die one by one


class Trio(Pair):
    """A cluster of six partitions with three servers, which judge each other's leases as in production."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed, servers=3, partitions=6, leases=True, lease_s=LEASE_S)
        self.servers = self.cluster.servers

    async def start(self) -> None:
        await self.cluster.start()
        await self.balanced(2, 2, 2)
        await asyncio.sleep(2 * LEASE_S)

    async def balanced(self, *shares: int) -> None:
        await wait_until(lambda: sorted(map(self.owned, self.servers)) == sorted(shares), within_s=60)


in_a_trio = runs_tests_in(Trio)


@in_a_trio
async def test_what_one_of_three_owned_is_assigned_once_when_it_dies(trio: Trio) -> None:
    await trio.start()
    before = trio.assignment().version
    held_down(trio.first)
    await trio.balanced(0, 3, 3)
    await asyncio.sleep(30)
    assert trio.assignment().version - before <= 2, "the others do not undo what one of them did"
