"""A replica that is filled from the fragments holds about what the others hold, and hardly more on the way there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.trimming import trim
from polonaise.fragments.store import ObstoreStore
from rigs import trimmed
from rigs.trimmed import Cluster, archived, contents, fill, running
from rigs.waiting import time_passes, wait_until

pytestmark = pytest.mark.slow


def used_bytes(cluster: Cluster, number: int) -> int:
    total = 0
    for path in (cluster.directory / f"storage-{number}" / "0").glob("*.seq"):
        with suppress(FileNotFoundError):  # dropped meanwhile
            total += path.stat().st_size
    return total


async def wipe_and_await(cluster: Cluster, log: polonaise.Log, number: int, engaged: int) -> int:
    """Give a node a new disk, and wait until it takes part: the most that it held on the way there."""
    await cluster.restart_node(number, wiped=True)
    most = 0

    async def takes_part() -> bool:
        nonlocal most
        for _ in range(50):
            most = max(most, used_bytes(cluster, number))
            await time_passes(0.001)
        told = (await log.health(0))["partitions"]["0"]
        return told["ready"] and cluster.names[number] in told["engaged"] and len(told["engaged"]) == engaged

    await wait_until(takes_part)
    return most


def trimmed_to(cluster: Cluster, bytes_max: float) -> int:
    """Return the most bytes that nodes 0 and 2 use; 0 as long as that is `bytes_max` or more."""
    most = max(used_bytes(cluster, 0), used_bytes(cluster, 2))
    return most if most < bytes_max else 0


async def test_a_wiped_replica_holds_no_more_than_the_others_once_it_is_filled_and_hardly_more_on_the_way(
    tmp_path: Path, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be large enough for what is left of the log, and not for all of its history."""
    monkeypatch.setattr(trimmed, "SETTINGS", replace(trimmed.SETTINGS, copy_bytes=1_500))
    async with running(tmp_path, storage=3) as cluster, cluster.served(store) as log:
        await fill(log, 500)
        await archived(log, store)
        # On a busy machine one of them may be late, and hold and trim less than the others until it has caught up.
        before, whole = await contents(log), max(used_bytes(cluster, node) for node in range(3))
        await trim(log, store, 0)
        others = await wait_until(lambda: trimmed_to(cluster, whole / 5))
        most = await wipe_and_await(cluster, log, 1, engaged=3)
        segment = 4_000  # as they get here, with the batch that fills them
        assert used_bytes(cluster, 1) <= others + segment
        assert most <= others + 3 * segment
        assert 0 <= cluster.first_held(0) - cluster.first_held(1) < 150
        assert await contents(log) == before
        await fill(log, 10)
        await archived(log, store)
        await trim(log, store, 0)


async def test_a_replica_that_a_session_needs_is_filled_within_the_same_bound(
    tmp_path: Path, store: ObstoreStore
) -> None:
    async with running(tmp_path, storage=3) as cluster, cluster.served(store) as log:
        await fill(log, 300)
        await archived(log, store)
        await trim(log, store, 0)
        await cluster.stop_node(2)
        await fill(log, 20)
        before = await contents(log)
        await wipe_and_await(cluster, log, 1, engaged=2)
        assert used_bytes(cluster, 1) <= used_bytes(cluster, 0) + 4_000
        assert cluster.first_held(1) > 100
        assert await contents(log) == before
