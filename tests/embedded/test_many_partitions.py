"""An embedded log of thousands of partitions opens at once, takes appends to all of them, rests, and opens again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import polonaise
from polonaise.client.log import Log
from rigs.waiting import time_passes, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

COUNT = 1_024
"""A quarter of what a log may have; `benchmarks/partitions.py` tries and measures all of them."""
OPENS_S_MAX = 30.0
DESCRIPTORS_MAX = 500
IDLE_MAX = 0.05
"""Of one core; more on one that is slow at present, see `idle_max`."""
IDLE_TURNS_MAX = 1_500_000
"""The turns of a plain loop that take as much of a core as a log that nobody asks may take, in each second."""
PATIENCE_S = 300.0
"""For what must come to an end; a shared machine may take its time."""
AT_ONCE = 256


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Log]:
    began = time.monotonic()
    async with polonaise.connect(f"embedded:{directory}?partitions={COUNT}") as log:
        await log.append(b"first", partition=COUNT - 1)
        assert time.monotonic() - began < OPENS_S_MAX
        yield log


async def append_to_all(log: Log) -> int:
    """One append to each partition, so many at a time; the most descriptors that were open."""
    turn, most = asyncio.Semaphore(AT_ONCE), 0

    async def append(partition: int) -> None:
        nonlocal most
        async with turn:
            await log.append(b"x" * 100, partition=partition)
            most = max(most, descriptors())

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(append, range(COUNT)))
    return most


async def idle() -> float:
    """The part of a core that this process takes when nothing is asked of it; the least of a few looks."""
    least = 1.0
    for _ in range(6):
        began, cpu = time.monotonic(), time.process_time()
        await time_passes(3)
        least = min(least, (time.process_time() - cpu) / (time.monotonic() - began))
        if least < IDLE_MAX:
            break
    return least


def idle_max() -> float:
    """The part of a core that may be taken. A machine that others use at the same time does everything more slowly."""
    least = 1.0
    for _ in range(5):
        cpu, total = time.process_time(), 0
        for number in range(IDLE_TURNS_MAX):
            total += number & 7
        least = min(least, time.process_time() - cpu)
    return max(IDLE_MAX, least)


async def all_ready(log: Log) -> None:
    async def look() -> bool:
        return all(partition["ready"] for partition in (await log.health(0))["partitions"].values())

    await wait_until(look, "all partitions are ready", within_s=PATIENCE_S, every_s=1)


@pytest.mark.timeout(900)
async def test_thousands_of_partitions_cost_what_is_used_of_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        assert await append_to_all(log) < DESCRIPTORS_MAX
        await all_ready(log)
        assert await idle() < idle_max()
        assert descriptors() < DESCRIPTORS_MAX
    async with opened(tmp_path) as log:
        async with asyncio.timeout(PATIENCE_S):
            assert (await log.high_water_mark(17, timeout=PATIENCE_S)) == 0
            assert [tx.data async for tx in log.read(1_000)] == [b"x" * 100]
        await all_ready(log)  # those that nobody asks for are started as well
        assert await append_to_all(log) < DESCRIPTORS_MAX
        assert await idle() < idle_max()
