"""A storage node whose disk hangs says so itself, and no longer once the disk has done what it was asked for."""

from __future__ import annotations

import asyncio

from polonaise.host import Host
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import ObservedStorage
from polonaise.node.monitoring.metriclist import DISK_WAITS, NODE_DEGRADED
from rigs.log import Maker
from rigs.storage import DIRECTORY, Node, opened, simulated


async def told(node: Node) -> tuple[str, bool, list[str], list[str]]:
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
    assert await told(node) == ("ok", True, [], [])
    slept_s = 4
    for waited_s in (8, 20, 30):
        await asyncio.sleep(waited_s - slept_s)
        slept_s = waited_s
        status, ready, reasons, (problem,) = await told(node)
        assert (status, ready, reasons) == ("degraded", True, ["disk_hangs"])
        assert problem.startswith(f"the disk of {DIRECTORY} hangs: it was asked for something {waited_s} s ago")
    node.disk.slow(0.0)
    await owner.settled(2)
    assert await told(node) == ("ok", True, [], [])


@simulated
async def test_a_disk_that_is_only_busy_does_not_hang(host: Host, node: Node) -> None:
    owner = await opened(host)
    node.disk.slow(1.0)
    for number, batch in enumerate(Maker().batches(8), 1):
        owner.send(number, batch)
        await asyncio.sleep(0.5)
        assert await told(node) == ("ok", True, [], [])
    await owner.settled(8)
