"""A storage node whose disk is full says so itself, in its health and its metrics, and no longer once there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.errors import DiskFull, PolonaiseError
from polonaise.host import Host
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import ObservedStorage
from polonaise.node.monitoring.metriclist import NODE_DEGRADED
from polonaise_proving.stages.simulated.diskimages import FileImage
from rigs.log import Maker, remove_entry
from rigs.storage import DIRECTORY, Node, Owner, connected, opened, simulated

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
async def test_a_new_node_that_has_no_room_for_its_first_file_says_so(host: Host, node: Node) -> None:
    owner = await connected(host)
    node.disk.fill()
    with pytest.raises(PolonaiseError, match="disk_full"):
        await owner.identify("a")
    await is_full(node, "")
    node.disk.free()
    await owner.identify("a")
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
