"""A refused `Store` is the last of its connection in the session: an acknowledgement speaks for all before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.errors import NotJoined, TooManyOpenFiles
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise_proving.stages.simulated.diskimages import FileImage
from rigs.log import Maker
from rigs.storage import Node, Owner, connected, opened, simulate

_LONG_S = 1.0
"""Virtual seconds in which everything that was sent has been answered."""

Way = Callable[[Owner, Node, Batch, Batch], Awaitable[None]]


async def _disk_full(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    node.disk.fill(100)
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)
    node.disk.free()


async def _failed_sync(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    node.disk.fail_syncs(1)
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)


async def _too_many_open_files(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    """In the moment in which a full segment has to be followed by a new one."""
    create = node.disk.create

    def refuse(path: str) -> FileImage:
        if path.endswith(".seq.new"):
            raise TooManyOpenFiles("planted")
        return create(path)

    node.disk.create = refuse  # type: ignore[method-assign]
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)
    node.disk.create = create  # type: ignore[method-assign]


async def _a_gap(owner: Owner, _: Node, __: Batch, after: Batch) -> None:
    owner.send(2, after)
    await asyncio.sleep(_LONG_S)


async def _damaged_on_the_way(owner: Owner, _: Node, batch: Batch, __: Batch) -> None:
    raw = bytearray(batch.view)
    raw[-1] ^= 1
    damaged = Batch.parse(raw, verify=False)
    owner.send(2, damaged)
    await asyncio.sleep(_LONG_S)


WAYS: dict[str, tuple[Way, str, str]] = {
    "disk full": (_disk_full, "disk_full", "not_joined"),
    "failed sync": (_failed_sync, "disk_failed", "partition_unavailable"),
    "too many open files": (_too_many_open_files, "too_many_open_files", "not_joined"),
    "a gap": (_a_gap, "out_of_order", "not_joined"),
    "damaged on the way": (_damaged_on_the_way, "batch_damaged", "not_joined"),
}
"""What goes wrong with the second `Store`, how it is refused, and how what follows is."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("then", ["a barrier", "a batch that fits"])
def test_no_acknowledgement_covers_a_store_that_was_refused(way: str, then: str) -> None:
    refuse, code, code_after = WAYS[way]

    async def script(host: Host, node: Node) -> tuple[int, list[tuple[int, str]]]:
        owner = await opened(host)
        maker = Maker()
        first, second, third = maker.batches(3, size=2000)
        await owner.store(1, first)
        await refuse(owner, node, second, third)
        fits = [Maker(first.last, first.crc).batch(salt=9)] if then == "a batch that fits" else []
        owner.send(3, *fits)
        await asyncio.sleep(_LONG_S)
        return owner.acknowledged, [(number, error.code) for number, error in owner.refusals]

    acknowledged, refusals = simulate(script, segment_batches_max=1)
    assert acknowledged == 1
    assert refusals == [(2, code), (3, code_after)]


@pytest.mark.parametrize("refuse", [_disk_full, _too_many_open_files])
def test_after_what_passes_the_next_session_goes_on_where_the_log_ends(refuse: Way) -> None:
    async def script(host: Host, node: Node) -> Any:
        owner = await opened(host)
        first, second = Maker().batches(2, size=2000)
        await owner.store(1, first)
        await refuse(owner, node, second, second)
        owner.refusals.clear()
        with pytest.raises(NotJoined):
            await owner.store(3)
        owner.refusals.clear()
        owner.acknowledged = 0
        info = await owner.open(2)
        assert (info.max_synced, info.last_crc) == (first.last, first.crc)
        await owner.store(1, second)
        return [batch.crc for batch in await owner.read_all()] == [first.crc, second.crc]

    assert simulate(script, segment_batches_max=1)


def test_a_refused_store_of_an_older_session_does_not_end_the_newer_one_on_another_connection() -> None:
    async def script(host: Host, _: Node) -> int:
        older, newer = await connected(host), await connected(host)
        await older.open(1)
        await newer.open(2)
        older.send(1)
        await asyncio.sleep(_LONG_S)
        assert [error.code for _, error in older.refusals] == ["fenced"]
        await newer.store(1, Maker().batch(session=2))
        return newer.acknowledged

    assert simulate(script) == 1
