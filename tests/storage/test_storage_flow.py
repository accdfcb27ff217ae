"""Slow disks, peers that do not read, and the end: what a storage node keeps in memory, and what it leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host import Host
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import ReadBatches
from rigs.log import Maker, crcs
from rigs.storage import DIRECTORY, Node, connected, opened, simulate, simulated
from rigs.waiting import wait_until


@simulated(reads_max=4)
async def test_a_peer_that_does_not_read_its_answers_does_not_fill_the_nodes_memory(host: Host, node: Node) -> None:
    made = Maker().batches(20, size=100_000)
    owner, good = await connected(host), await connected(host)
    await owner.open(1)
    await owner.store(1, *made)
    owner.link.pause("never mind")
    for number in range(1, 500):
        owner.link.send(ReadBatches(1, 0, 19, 1 << 20, 1, 0), request=number, partition=3)
    await asyncio.sleep(3)
    held = [connection.unsent_bytes for connection in node.node._connections]
    assert max(held) < 4 * (1 << 20) + 4 * (1 << 20), "one answer above the mark at which writers wait"
    good.session = 1
    assert crcs(await good.read(19, 19)) == crcs(made[19:])


@simulated(queue_bytes_max=100_000)
async def test_a_slow_disk_stops_reading_and_loses_nothing(host: Host, node: Node) -> None:
    made = Maker().batches(60, size=20_000)
    owner = await opened(host)
    node.disk.slow(0.05)
    for number, batch in enumerate(made, 1):
        owner.send(number, batch)
    most = 0
    while owner.acknowledged < 60:
        most = max(most, node.node._partitions[3]._queue_bytes)
        await asyncio.sleep(0.005)
    assert 100_000 < most < 100_000 + 2 * 256 * 1024, "what had arrived when it stopped reading, and no more"
    assert crcs(await owner.read_all()) == crcs(made)


@simulated(queue_bytes_max=100_000)
async def test_who_filled_the_queue_and_left_takes_nothing_of_it_along(host: Host, node: Node) -> None:
    made = Maker().batches(60, size=20_000)
    owner, later = await connected(host), await connected(host)
    await owner.open(1)
    node.disk.slow(60)
    for number, batch in enumerate(made, 1):
        owner.send(number, batch)
    await asyncio.sleep(0.1)
    owner.link.abort(ConnectionLost("gone"))
    await asyncio.sleep(5)
    assert node.node._partitions[3]._queue_bytes == 0
    node.disk.slow(0)
    await asyncio.sleep(130)  # what had begun takes as long as it takes
    await later.fence(2)


@pytest.mark.parametrize("seed", range(6))
def test_stopped_in_the_middle_of_an_append_nothing_acknowledged_is_missing(seed: int) -> None:
    async def script(host: Host, node: Node) -> None:
        made = Maker().batches(40, size=3_000)
        owner = await opened(host)
        for number, batch in enumerate(made, 1):
            owner.send(number, batch)
        await asyncio.sleep(0.001 + seed * 0.0007)
        await node.node.close()
        acknowledged = owner.acknowledged
        await wait_until(lambda: owner.link.closed)
        node.process.terminate()
        await node.process.ended()
        node.start()
        info = await (later := await connected(host)).fence(2)
        assert info.lost_above == UNRESOLVED
        assert info.max_synced >= acknowledged - 1
        assert crcs(await later.read_all()) == crcs(made[: info.max_synced + 1])

    simulate(script, seed=seed, segment_bytes_max=20_000)


@simulated(started=False)
async def test_a_node_that_was_closed_leaves_its_directory_to_the_next_in_the_same_process(
    host: Host, node: Node
) -> None:
    for session in range(1, 4):
        here = StorageNode(host, StorageSettings(DIRECTORY, "server:1"))
        await here.start()
        owner = await connected(host, "server")
        assert (await owner.open(session)).max_synced == session - 2
        await owner.store(1, Maker(session - 2, (await owner.fence(session)).last_crc).batch())
        await here.close()
        await wait_until(lambda owner=owner: owner.link.closed)
