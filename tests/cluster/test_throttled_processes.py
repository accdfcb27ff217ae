"""Those who do nothing and those who come back late cost the appends of others little, with processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

import polonaise
from polonaise.node.local import LocalCluster
from polonaise.wire.messages import Ping
from rigs.cluster import connected, running
from rigs.goodprocess import TURNS_MAX, good_client, is_hardly_slower, rounded
from rigs.health import until_engaged
from rigs.hostile import Peer, Target, bytes_of, greet, mount, peak_bytes, processor_s, target_of
from rigs.waiting import time_passes, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

IDLE_CLIENTS = 1_000
SERVER_BYTES_MAX = 400 * 2**20
PARTITIONS = 300
OPENED_S_MAX = 60.0
RATIO_MAX = 1.5
"""How many times as much of a core as those of a cluster with one partition its processes may take at rest."""


@contextlib.asynccontextmanager
async def idle_connections(server: Target, count: int) -> AsyncIterator[None]:
    """Keep so many greeted connections that say that they are alive, and nothing else."""
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(greet(server)) for _ in range(count)]
        with kept_alive(peers, 2.0):
            yield


@contextlib.contextmanager
def kept_alive(peers: list[Peer], every_s: float) -> Iterator[None]:
    """Let each of these say so often that it is alive."""

    async def keep_alive() -> None:
        while True:
            for peer in peers:
                peer.say(bytes_of(Ping()))
                await time_passes(every_s / len(peers))

    keeping = asyncio.create_task(keep_alive())
    try:
        yield
    finally:
        keeping.cancel()


@contextlib.asynccontextmanager
async def reader_that_never_reads(server: Target) -> AsyncIterator[None]:
    async with greet(server) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.say(mount(-1), partition=0, request=1)
        with kept_alive([peer], 1.0):
            yield


async def test_a_thousand_idle_clients_and_a_reader_that_never_reads_are_hardly_noticed(tmp_path: Path) -> None:
    calm: list[float] = []
    beside: list[float] = []
    with running(tmp_path) as cluster:
        server = await target_of(cluster, "server")
        async with good_client(cluster.coordinator) as client:
            for turn in range(TURNS_MAX):
                await client.windows(1)
                calm += await client.windows(2)
                async with idle_connections(server, IDLE_CLIENTS), reader_that_never_reads(server):
                    await client.windows(1)
                    beside += await client.windows(2)
                if turn and is_hardly_slower(calm, beside, 2):
                    break
        assert server.node.pid is not None
        peak = peak_bytes(server.node.pid)
    print(f"p99 of appends in ms, alone: {rounded(calm)}; beside: {rounded(beside)}; {peak / 2**20:.0f} MB")  # noqa: T201
    assert is_hardly_slower(calm, beside, 2)
    assert peak < SERVER_BYTES_MAX


async def all_ready(log: polonaise.Log, count: int) -> bool:
    health = await log.health(0, timeout=OPENED_S_MAX)
    partitions = health["partitions"].values()
    return len(partitions) == count and all(len(each["engaged"]) == 3 for each in partitions)


def used_s(cluster: LocalCluster) -> float:
    return sum(processor_s(node.pid) for node in cluster.nodes if node.pid is not None)


async def test_partitions_at_rest_cost_little(tmp_path: Path) -> None:
    """The two clusters are measured in the same seconds: what a wake costs depends on who else uses the machine."""
    ratios: list[float] = []
    with running(tmp_path / "many", partitions=PARTITIONS) as many, running(tmp_path / "one", partitions=1) as one:
        for cluster, count in ((many, PARTITIONS), (one, 1)):
            async with connected(cluster) as log:
                ready = partial(all_ready, log, count)
                await wait_until(ready, "all partitions are ready", within_s=OPENED_S_MAX, every_s=0.5)
        for _ in range(TURNS_MAX):
            await time_passes(1)
            began = used_s(many), used_s(one)
            await time_passes(4)
            ratios.append((used_s(many) - began[0]) / (used_s(one) - began[1]))
            if ratios[-1] < RATIO_MAX:
                break
    print(f"{PARTITIONS} partitions at rest take {min(ratios):.2f} times as much of a core as one")  # noqa: T201
    assert min(ratios) < RATIO_MAX


async def test_appends_keep_their_latency_while_a_storage_node_that_lacks_much_is_brought_up_to_date(
    tmp_path: Path,
) -> None:
    """The other half of the promise is that it comes back although there are appends all the time."""
    lacks = 200
    with running(tmp_path) as cluster:
        late = cluster.storage[2]
        async with connected(cluster) as log, good_client(cluster.coordinator) as client:
            await until_engaged(log, 3, within_s=120)
            await client.windows(1)
            calm = await client.windows(3)
            late.kill()
            await until_engaged(log, 2, within_s=120)
            for _ in range(lacks):
                await log.append(bytes(2**20), partition=0)
            late.start()
            catching = asyncio.create_task(until_engaged(log, 3, within_s=120))
            disturbed: list[float] = []
            while not catching.done():
                disturbed += await client.windows(1)
            await catching
            health = await log.health(0, timeout=OPENED_S_MAX)
    print(f"p99 of appends in ms, before: {rounded(calm)}; in the catch-up: {rounded(disturbed)}; {health['copies']}")  # noqa: T201
    assert health["copies"]["bytes"] > lacks * 0.9 * 2**20
    assert is_hardly_slower(calm, disturbed, 3)
