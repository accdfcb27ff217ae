"""Appends that need copies, in a whole cluster: refused at once, proved on disks, told truthfully when a node goes."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.admin.requiring import set_zone
from polonaise.client.log import Log
from polonaise.errors import CopiesUnproved, InsufficientReplicas
from rigs.town import Town, held_down, in_a_town, in_an_application
from rigs.waiting import wait_until


def engaged(town: Town) -> int:
    value = town.cluster.partition_value(0)
    return sum(each.unresolved for each in value.engagements.values())


def zones_known(town: Town) -> int:
    """Of how many storage nodes the present session knows the zone."""
    session = town.server.partitions[0].owner.session
    return 0 if session is None else len(session.zones)


@in_an_application
async def test_success_means_that_the_copies_are_on_disks(town: Town, log: Log) -> None:
    for number in range(20):
        receipt = await log.append(b"%d" % number, 0, copies=3)
        assert min(town.lasts()) >= receipt.id


@in_a_town
async def test_with_fewer_engaged_an_append_is_refused_at_once_and_others_go_on(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0, copies=3)
        held_down(town.cluster.storage[0])
        await log.append(b"2", 0)
        await wait_until(lambda: engaged(town) == 2)
        before, began_s = max(town.lasts()), town.cluster.world.now
        with pytest.raises(InsufficientReplicas, match="nothing was written"):
            await log.append(b"refused", 0, copies=3)
        assert town.cluster.world.now - began_s < 1.0
        assert max(town.lasts()) == before
        await log.append(b"3", 0, copies=2)
        town.cluster.storage[0].let_up()
        await wait_until(lambda: engaged(town) == 3)
        await log.append(b"4", 0, copies=3)

    await town.application("client", main)
    assert await town.log() == [b"1", b"2", b"3", b"4"]


@in_an_application
async def test_a_node_that_goes_before_the_proof_leaves_a_committed_append_that_is_proved_when_it_is_back(
    town: Town,
    log: Log,
) -> None:
    await log.append(b"1", 0, copies=3)
    # Ordered while three are engaged, and one of them hangs: nobody knows yet.
    process = town.cluster.storage[0].process
    assert process is not None
    process.pause()
    receipt = log.append(b"2", 0, copies=3)
    await wait_until(lambda: receipt.committed)
    with pytest.raises(CopiesUnproved, match=r"in the log as 1, for good, and is not proved to be on 3 copies"):
        await receipt.applied(timeout=0.2)
    await wait_until(lambda: engaged(town) == 2)
    with pytest.raises(CopiesUnproved):
        await receipt.applied(timeout=2.0)
    assert not receipt.done
    process.resume()
    await receipt
    assert min(town.lasts()) >= receipt.id


@in_a_town
async def test_a_context_that_needs_copies_runs_until_they_can_be_had(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0)
        held_down(town.cluster.storage[0])
        await log.append(b"2", 0)
        await wait_until(lambda: engaged(town) == 2)

        def build(tx: object) -> None:
            tx.append(b"3")  # type: ignore[attr-defined]
            tx.need(copies=3)  # type: ignore[attr-defined]

        running = asyncio.ensure_future(log.run(build, partition=0))
        await asyncio.sleep(2.0)
        assert not running.done()
        town.cluster.storage[0].let_up()
        receipt = await running
        assert min(town.lasts()) >= receipt.id

    await town.application("client", main)
    assert await town.log() == [b"1", b"2", b"3"]


@in_a_town
async def test_zones_count_from_when_they_are_told_though_nothing_is_required_of_the_cluster(town: Town) -> None:
    async def main(log: Log) -> None:
        await log.append(b"1", 0)
        with pytest.raises(InsufficientReplicas):
            await log.append(b"refused", 0, zones=2)
        for number, zone in enumerate(("north", "north", "south")):
            name = town.name(number)
            await town.operator(lambda host, coordinator, n=name, z=zone: set_zone(host, coordinator, n, z, 20.0))  # type: ignore[misc]
        await wait_until(lambda: zones_known(town) == 3)
        receipt = await log.append(b"2", 0, zones=2)
        assert town.lasts()[2] >= receipt.id
        assert town.cluster.partition_value(0).required is None

    await town.application("client", main)
