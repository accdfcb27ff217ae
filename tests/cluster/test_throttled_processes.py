"""Those who do nothing and those who come back late cost the appends of others little, with processes of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rigs.cluster import connected, running
from rigs.goodprocess import good_client, is_hardly_slower, rounded
from rigs.health import until_engaged

pytestmark = [pytest.mark.slow, pytest.mark.alone]

OPENED_S_MAX = 60.0


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
