"""Leases of a cluster of real processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from rigs.cluster import connected, running
from rigs.waiting import nothing_happens_for

DURATION_S = 2.0


@pytest.mark.slow
async def test_one_of_two_clients_has_a_lease_and_the_other_when_it_is_released_or_runs_out(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        async with connected(cluster) as log, connected(cluster) as other:
            first, second = log.lease("n", duration_s=DURATION_S), other.lease("n", duration_s=DURATION_S)
            await first.acquire(timeout=30)
            waiting = asyncio.ensure_future(second.acquire(timeout=30))
            await nothing_happens_for(1.5 * DURATION_S)
            assert (first.held, waiting.done()) == (True, False)
            released_s = time.monotonic()
            await first.release()
            await waiting
            assert time.monotonic() - released_s < DURATION_S / 2, "not when it would have run out"
            waiting = asyncio.ensure_future(first.acquire(timeout=30))
            await other.close()  # without a release
            closed_s = time.monotonic()
            assert not second.held
            await waiting
            assert time.monotonic() - closed_s < DURATION_S + 1
            assert await log.high_water_mark(0) == -1, "nothing is appended"
            assert (await log.health(0))["partitions"]["0"]["leases"] == 1
