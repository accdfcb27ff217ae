"""What a careless client and disks do to a whole cluster: each has its own error, and nothing is lost by it.

Through the public client, against the production server and storage nodes in the simulator.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.draft import Limits
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.errors import (
    AppendFailed,
    PolonaiseError,
)
from polonaise.host import Host
from rigs.health import until_engaged
from rigs.town import Town, held_down, in_a_town, in_an_application

BEFORE = b"was there before"


@in_a_town
async def test_a_body_over_the_servers_limit_by_a_client_that_knows_of_none(town: Town) -> None:
    """The whole connection's frame is refused by name; what was sent before and after it is decided."""
    receipts: list[Any] = []

    async def careless(host: Host, coordinator: Coordinator) -> None:
        settings = ClientSettings(limits=Limits(body_bytes_max=2**24))
        async with Log(host, coordinator, settings=settings) as log:
            await log.ready(0)
            receipts.append(await asyncio.gather(log.append(bytes(2**20 + 1), 0), return_exceptions=True))
            await log.append(BEFORE, 0)

    await town.operator(careless, "careless")
    ((outcome,),) = receipts
    assert isinstance(outcome, PolonaiseError)
    assert await town.log() == [BEFORE]


# ---------------------------------------------------------------------- who is who


# ---------------------------------------------------------------------- disks


@in_a_town
async def test_a_full_disk_on_a_minority_is_left_out_and_comes_back(town: Town) -> None:
    async def main(log: Log) -> None:
        for number in range(10):
            await log.append(b"%d" % number, 0)
        disk = town.cluster.storage[0].machine.disk
        disk.fill(10)
        for number in range(10, 60):
            receipt = await log.run(lambda tx, n=number: tx.append(b"%d" % n), partition=0, timeout=60)
            assert receipt.committed
        disk.free()

    await town.application("writer", main)
    assert await town.log() == [b"%d" % number for number in range(60)]
    assert town.world.faults["full_disk"]
    await engaged(town, 3)


@in_a_town
async def test_full_disks_everywhere_refuse_appends_by_name_and_lose_nothing(town: Town) -> None:
    async def main(log: Log) -> None:
        for number in range(10):
            await log.append(b"%d" % number, 0)
        town.fill_disks()
        waits = log.submit(lambda tx: tx.append(b"waits"), partition=0)
        with pytest.raises(AppendFailed):
            await log.append(bytes(1_000), 0)
        assert not waits.done
        # What is there is served all the same.
        assert [tx.data async for tx in log.read(0, timeout=60)] == [b"%d" % number for number in range(10)]
        for node in town.cluster.storage:
            node.machine.disk.free()
        assert (await waits).id == 10

    await town.application("writer", main)
    assert await town.log() == [*(b"%d" % number for number in range(10)), b"waits"]
    await engaged(town, 3)


@pytest.mark.parametrize("seed", range(4))
def test_failed_syncs_of_a_minority_lose_nothing_and_the_replica_comes_back(seed: int) -> None:
    async def story(town: Town) -> None:
        async def main(log: Log) -> None:
            for number in range(60):
                if number % 20 == 10:
                    town.cluster.storage[number // 20].machine.disk.fail_syncs(1)
                await log.run(lambda tx, n=number: tx.append(b"%d" % n), partition=0, timeout=60)
                if number % 20 == 19:
                    await until_engaged(log, 3, within_s=120)

        await town.application("writer", main)
        assert town.world.faults["failed_sync"] == 3
        assert await town.log() == [b"%d" % number for number in range(60)]

    Town(seed).run(story)


@pytest.mark.parametrize("strike", ["nothing else", "crash", "power loss"])
@pytest.mark.parametrize("seed", range(3))
def test_syncs_that_fail_on_a_majority_at_once_lose_nothing_and_the_partition_goes_on_by_itself(
    seed: int, strike: str
) -> None:
    """Nobody has acknowledged the batch that none of them could sync, so nobody may have lost anything."""

    async def story(town: Town) -> None:
        async def main(log: Log) -> None:
            await log.append(BEFORE, 0)
            for node in town.cluster.storage:
                node.machine.disk.fail_appends(1)
            await log.run(lambda tx: tx.append(b"struck"), partition=0, timeout=60)
            if strike == "nothing else":
                await until_engaged(log, 3, within_s=120)
                return
            for node in town.cluster.storage:
                node.machine.disk.fail_appends(1)
            appending = asyncio.create_task(log.run(lambda tx: tx.append(b"again"), partition=0, timeout=60))
            while any(node.machine.disk.appends_to_fail for node in town.cluster.storage):
                await asyncio.sleep(0.001)
            for node in town.cluster.storage:
                if strike == "power loss":
                    node.machine.power_loss()
                else:
                    node.crash()
            await appending
            await until_engaged(log, 3, within_s=120)

        await town.application("writer", main)
        assert town.world.faults["failed_append"] == (3 if strike == "nothing else" else 6)
        assert await town.log() == [BEFORE, b"struck", b"again"][: 2 if strike == "nothing else" else 3]

    Town(seed).run(story)


async def engaged(town: Town, count: int) -> None:
    async def look(log: Log) -> None:
        await until_engaged(log, count, within_s=120)

    await town.application("operator", look)


# ---------------------------------------------------------------------- old disks


async def _restored_from_old_copies(town: Town, log: Log) -> None:
    """Two of three storage nodes come back with copies from before the last commits; the third one stays away."""
    first, second, third = town.cluster.storage
    await until_engaged(log, 3, within_s=120)
    old = [node.machine.disk.snapshot() for node in (first, second)]
    for number in range(3):
        await log.append(b"%d" % number, 0)
    for node in town.cluster.storage:
        held_down(node)
    for node, snapshot in zip((first, second), old, strict=True):
        node.machine.disk.restore(snapshot)
    first.let_up()
    second.let_up()
    await asyncio.sleep(10)
    waits_for = town.server.health()["partitions"]["0"]["waits_for"]
    assert third.name in waits_for, waits_for


@in_a_town
async def test_old_copies_of_a_majority_are_not_believed_by_an_owner_that_knows_better(town: Town) -> None:
    """Nothing is cut and nobody engaged: when the third one is back, all that was committed is there."""

    async def main(log: Log) -> None:
        await log.append(BEFORE, 0)
        await _restored_from_old_copies(town, log)
        town.cluster.storage[2].let_up()
        await log.run(lambda tx: tx.append(b"after"), partition=0, timeout=60)

    await town.application("writer", main)
    assert await town.log() == [BEFORE, b"0", b"1", b"2", b"after"]
    await engaged(town, 3)


@in_an_application
async def test_when_every_disk_is_old_the_partition_stops_and_says_so(town: Town, log: Log) -> None:
    await log.append(BEFORE, 0)
    third = town.cluster.storage[2]
    old = third.machine.disk.snapshot()
    await _restored_from_old_copies(town, log)
    third.machine.disk.restore(old)
    third.let_up()
    await asyncio.sleep(10)
    health = town.server.health()["partitions"]["0"]
    assert not health["ready"]
    for told in ("committed up to 3", "no more than 0", "Restore newer ones"):
        assert told in health["waits_for"]
    with pytest.raises(PolonaiseError):
        await log.run(lambda tx: tx.append(b"after"), partition=0, timeout=10)
