"""Disks that are full, slow or hang: a storage node says so itself, and what it keeps in memory is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.errors import ConnectionLost, DiskFull, PolonaiseError
from polonaise.host import Host
from polonaise.node.monitoring.face import ObservedStorage
from polonaise.node.monitoring.metriclist import DISK_WAITS, NODE_DEGRADED
from polonaise.node.monitoring.samples import Detail
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import ReadBatches
from polonaise_proving.stages.simulated.diskimages import FileImage
from rigs.log import Maker, crcs, remove_entry
from rigs.storage import DIRECTORY, Node, Owner, connected, opened, simulate, simulated
from rigs.waiting import wait_until

LOOKED_S = 2.5
"""The room on the disk is looked at once a second."""
MINUTE_S = 61.0
MIB = 1024 * 1024


async def told(node: Node) -> dict[str, Any]:
    """The node's health, with which its metrics and `/ready` agree."""
    observed = ObservedStorage(node.node, node.node._host, DIRECTORY)
    document = await observed.health()
    samples = await observed.samples(Detail())
    by_metrics = [labels[0] for labels, value in samples[NODE_DEGRADED] if value]
    assert sorted(by_metrics) == document["reasons"]
    assert document["ready"] == (not observed.not_ready())
    return document


async def is_well(node: Node) -> None:
    document = await told(node)
    assert (document["status"], document["reasons"], document["problems"]) == ("ok", [], [])


async def is_full(node: Node, how: str) -> str:
    """Assert that the node says only that its disk is full, in these words, and is ready; return what it says."""
    document = await told(node)
    assert (document["status"], document["ready"], document["reasons"]) == ("degraded", True, ["disk_full"])
    (problem,) = document["problems"]
    assert problem.startswith(f"the disk of {DIRECTORY} {how}")
    assert ": archive and trim the log, or " in problem
    return str(problem)


async def refused(owner: Owner, number: int, session: int, size: int) -> None:
    """Have a `Store` refused that finds no room, in a session of its own."""
    await owner.open(session)
    owner.refusals.clear()
    with pytest.raises(DiskFull):
        await owner.store(number, Maker().batch(size=size, session=session))


@simulated
async def test_a_full_disk_is_told_before_anything_is_refused_and_until_there_is_room(host: Host, node: Node) -> None:
    await opened(host)
    await asyncio.sleep(LOOKED_S)
    await is_well(node)
    node.disk.fill(MIB - 1)
    await asyncio.sleep(LOOKED_S)
    await is_full(node, "is full")
    node.disk.fill(MIB)
    await asyncio.sleep(LOOKED_S)
    await is_well(node)


@simulated
async def test_a_batch_for_which_there_is_no_room_is_told_though_many_bytes_are_free(host: Host, node: Node) -> None:
    owner = await connected(host)
    await owner.open(1)
    node.disk.fill(2 * MIB)
    await asyncio.sleep(LOOKED_S)
    await is_well(node)
    for session in (2, 3):
        await refused(owner, session, session, 3 * MIB)
        assert "no space left" in await is_full(node, "had no room for something that was to be stored")
        await asyncio.sleep(MINUTE_S / 2)
        await is_full(node, "had no room")
    node.disk.free()
    await asyncio.sleep(MINUTE_S / 2)
    await is_well(node)


@simulated(segment_batches_max=1)
async def test_a_quota_that_is_used_up_is_told(host: Host, node: Node) -> None:
    """Where no file can be made any more, though the file system says that it has room."""
    create, refusing = node.disk.create, False

    def limited(path: str) -> FileImage:
        if refusing and path.endswith(".seq.new"):
            raise DiskFull(f"no space left for {path!r}")
        return create(path)

    node.disk.create = limited  # type: ignore[method-assign]
    owner = await opened(host)
    first, second = Maker().batches(2)
    await owner.store(1, first)
    refusing = True
    with pytest.raises(DiskFull):
        await owner.store(2, second)
    await is_full(node, "had no room")
    refusing = False
    await owner.open(2)
    owner.refusals.clear()
    await owner.store(3, second)
    await asyncio.sleep(MINUTE_S)
    await is_well(node)


@simulated
async def test_a_new_node_that_has_no_room_for_its_first_file_says_so_and_goes_on_when_there_is_some(
    host: Host, node: Node
) -> None:
    owner = await connected(host)
    node.disk.fill()
    with pytest.raises(PolonaiseError, match="disk_full"):
        await owner.identify("a")
    await is_full(node, "")
    with pytest.raises(PolonaiseError, match="disk_full"):
        await owner.fence(1)
    node.disk.free()
    await owner.identify("a")
    await owner.open(1)
    await owner.store(1, Maker().batch())
    await asyncio.sleep(MINUTE_S)
    await is_well(node)


@simulated
async def test_nothing_is_told_of_the_disk_of_a_directory_that_is_gone(host: Host, node: Node) -> None:
    await opened(host)
    node.disk.fill(10)
    await asyncio.sleep(LOOKED_S)
    await is_full(node, "is full")
    remove_entry(node.disk, DIRECTORY)
    await asyncio.sleep(LOOKED_S)
    assert "disk_full" not in (await told(node))["reasons"]


async def told_of_a_hanging_disk(node: Node) -> tuple[str, bool, list[str], list[str]]:
    """The node's verdict on itself, with which its metrics agree."""
    observed = ObservedStorage(node.node, node.node._host, DIRECTORY)
    document = await observed.health()
    samples = await observed.samples(Detail())
    assert sorted(labels[0] for labels, value in samples[NODE_DEGRADED] if value) == document["reasons"]
    ((_, waits_s),) = samples[DISK_WAITS]
    assert abs(waits_s - document["disk_waits_s"]) < 0.1
    return document["status"], document["ready"], document["reasons"], document["problems"]


@simulated
async def test_a_disk_that_hangs_is_told_until_it_has_done_what_it_was_asked_for(host: Host, node: Node) -> None:
    owner = await opened(host)
    first, second = Maker().batches(2)
    await owner.store(1, first)
    node.disk.slow(15.0)  # and a sync twice as long
    owner.send(2, second)
    await asyncio.sleep(4.0)
    assert await told_of_a_hanging_disk(node) == ("ok", True, [], [])
    slept_s = 4
    for waited_s in (8, 20, 30):
        await asyncio.sleep(waited_s - slept_s)
        slept_s = waited_s
        status, ready, reasons, (problem,) = await told_of_a_hanging_disk(node)
        assert (status, ready, reasons) == ("degraded", True, ["disk_hangs"])
        assert problem.startswith(f"the disk of {DIRECTORY} hangs: it was asked for something {waited_s} s ago")
    node.disk.slow(0.0)
    await owner.settled(2)
    assert await told_of_a_hanging_disk(node) == ("ok", True, [], [])


@simulated
async def test_a_disk_that_is_only_busy_does_not_hang(host: Host, node: Node) -> None:
    owner = await opened(host)
    node.disk.slow(1.0)
    for number, batch in enumerate(Maker().batches(8), 1):
        owner.send(number, batch)
        await asyncio.sleep(0.5)
        assert await told_of_a_hanging_disk(node) == ("ok", True, [], [])
    await owner.settled(8)


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
