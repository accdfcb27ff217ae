"""Leases of a simulated cluster over changes of its owners, and of holders that are cut off, killed or stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polonaise.client.lease import Lease
from polonaise.client.log import Log
from polonaise.host import Host
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
async def test_a_holder_that_is_killed_is_replaced_when_its_lease_has_run_out(town: Town) -> None:
    holders = Holders(town)
    await holders.both()
    process = holders.nodes["first"].process
    assert process is not None
    process.crash()
    assert await holders.until_held_by("second") < DURATION_S + SOON_S


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


async def changes_owner(town: Town, end: Callable[[Node], None]) -> None:
    holders = Holders(town)
    await holders.both()
    owner = next(node for node in town.cluster.servers if town.cluster.owns(node))
    held_s = holders.had_s["first"]
    end(owner)
    await wait_until(lambda: any(town.cluster.owns(node) for node in town.cluster.servers if node is not owner))
    await time_passes(2 * DURATION_S)
    assert holders.leases["first"].held, "it goes on at the new owner, which does not know it"
    assert holders.had_s == {"first": held_s}, "and was never without it"


@in_a_town(servers=2)
async def test_a_holder_keeps_its_lease_when_the_owner_is_killed(town: Town) -> None:
    await changes_owner(town, held_down)


@in_a_town(servers=2)
async def test_a_lease_whose_holder_dies_with_the_owner_is_had_when_it_has_run_out(town: Town) -> None:
    holders = Holders(town)
    await holders.both()
    process = holders.nodes["first"].process
    assert process is not None
    process.crash()
    owner = next(node for node in town.cluster.servers if town.cluster.owns(node))
    held_down(owner)
    others = [node for node in town.cluster.servers if node is not owner]
    await wait_until(lambda: any(town.cluster.owns(node) for node in others))
    began_s = town.world.now
    await holders.until_held_by("second")
    assert DURATION_S - SOON_S < town.world.now - began_s < DURATION_S + SOON_S, "the new owner knows of no holder"
