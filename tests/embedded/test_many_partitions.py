"""An embedded log of hundreds of partitions opens at once, takes appends to all of them, rests, and opens again."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import pytest

import polonaise
from polonaise.client.log import Log
from polonaise.host.files import DiskThreads
from rigs.waiting import time_passes, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

COUNT = 512
"""An eighth of what a log may have; `benchmarks/partitions.py` tries and measures all of them."""
OPENS_S_MAX = 30.0
DESCRIPTORS_MAX = 500
TIMES_MAX = 1.25
"""How many times as much as a log of one partition a log of all these may take of a core while nobody asks it."""
TRIPS_TIMES_MAX = 2.0
"""How many times as many trips to the disk it may make meanwhile: its storage node looks for more files each second."""
LOOKS_MAX = 12
"""Enough for the storage node to have looked for all files that were written to, so many each second."""
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


def processor_s(directory: Path) -> float:
    """The seconds of processor time that the thread has taken which hosts the log in this directory."""
    (thread,) = (each for each in threading.enumerate() if each.name == f"host {directory}")
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each thread had a thread of a disk do something for it so far.

    Counted rather than the wakes of threads, of which a busy machine has twice as many for the same work.
    """
    counted = Counter[str]()
    run = DiskThreads.run

    def counting(threads: DiskThreads, call: Callable[[], object]) -> asyncio.Future[object]:
        counted[threading.current_thread().name] += 1
        return run(threads, call)

    monkeypatch.setattr(DiskThreads, "run", counting)
    return counted


async def check_costs_of_rest(many: Path, one: Path, trips: Counter[str]) -> None:
    """While nothing is asked of the logs in these directories, the first costs hardly more than the second: processor
    time, and trips to a disk; in the best of some looks.

    Both are looked at in the same seconds: a wake costs three times as much when others use the machine.
    """
    times = trips_times = inf
    for _ in range(LOOKS_MAX):
        before, made = (processor_s(many), processor_s(one)), trips.copy()
        await time_passes(3)
        times = min(times, (processor_s(many) - before[0]) / (processor_s(one) - before[1]))
        made = trips - made
        trips_times = min(trips_times, made[f"host {many}"] / made[f"host {one}"])
        if times < TIMES_MAX and trips_times < TRIPS_TIMES_MAX:
            break
    assert times < TIMES_MAX
    assert trips_times < TRIPS_TIMES_MAX


async def all_ready(log: Log) -> None:
    async def look() -> bool:
        return all(partition["ready"] for partition in (await log.health(0))["partitions"].values())

    await wait_until(look, "all partitions are ready", within_s=PATIENCE_S, every_s=1)


@pytest.mark.timeout(900)
async def test_hundreds_of_partitions_cost_what_is_used_of_them(tmp_path: Path, trips: Counter[str]) -> None:
    many, one = tmp_path / "many", tmp_path / "one"
    async with polonaise.connect(f"embedded:{one}") as small:
        await small.append(b"x")
        async with opened(many) as log:
            assert await append_to_all(log) < DESCRIPTORS_MAX
            await all_ready(log)
            await check_costs_of_rest(many, one, trips)
            assert descriptors() < DESCRIPTORS_MAX
        async with opened(many) as log:
            async with asyncio.timeout(PATIENCE_S):
                assert (await log.high_water_mark(17, timeout=PATIENCE_S)) == 0
                assert [tx.data async for tx in log.read(COUNT - 24)] == [b"x" * 100]
            await all_ready(log)  # those that nobody asks for are started as well
            assert await append_to_all(log) < DESCRIPTORS_MAX
            await check_costs_of_rest(many, one, trips)
