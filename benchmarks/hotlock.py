"""How well do contexts share one hot lock? Tasks in several processes that all change the same thing.

    python benchmarks/hotlock.py [--processes 3] [--tasks 20] [--seconds 10] [--write]

Each process has an embedded log open, one of them hosts it, and keeps a counter as its view; each task runs contexts,
one after the other, that read the counter, under one WRITE lock, and append the next number. Says how often one ran
for each commit, how many commits each process got, and how long a context waited at most; and checks that no number is
missing or there twice. With `--write` the figures replace the ones in docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path

import uvloop

import polonaise
from append import fdatasync_s
from document import write_figures


class Counter:
    """A view: the last number, and how far it is applied."""

    def __init__(self) -> None:
        self.mark = -1
        self.number = 0

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    def apply(self, tx: polonaise.Transaction) -> None:
        self.mark, self.number = tx.id, int(tx.data)

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise error


@dataclass
class Shared:
    """What one process got done."""

    runs: int = 0
    waits_s: list[float] = field(default_factory=list)
    """Of each commit, from `run` to the receipt."""


async def share(address: str, tasks: int, seconds: float, ready: Barrier) -> Shared:
    counter, shared = Counter(), Shared()

    def count(tx: polonaise.Draft) -> None:
        shared.runs += 1
        tx.write_lock("counter", 1)
        tx.append(b"%d" % (counter.number + 1))

    async with polonaise.connect(address, view=counter) as log:
        await log.ready(0)
        await asyncio.to_thread(ready.wait)
        until_s = time.perf_counter() + seconds

        async def task() -> None:
            while (began_s := time.perf_counter()) < until_s:
                await log.run(count, partition=0)
                shared.waits_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*[task() for _ in range(tasks)])
        await asyncio.to_thread(ready.wait)
    return shared


def process(
    address: str, tasks: int, seconds: float, ready: Barrier, told: multiprocessing.SimpleQueue[Shared]
) -> None:
    told.put(uvloop.run(share(address, tasks, seconds, ready)))


async def check(address: str, commits: int) -> None:
    async with polonaise.connect(address) as log:
        numbers = [int(tx.data) async for tx in log.read(0)]
    assert numbers == list(range(1, commits + 1)), "a number is missing, or there twice"


def measure(processes: int, tasks: int, seconds: float) -> tuple[float, list[Shared]]:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        floor_s = fdatasync_s(Path(scratch))
        address = f"embedded:{scratch}/log"
        ready, told = spawn.Barrier(processes), spawn.SimpleQueue()
        started = [spawn.Process(target=process, args=(address, tasks, seconds, ready, told)) for _ in range(processes)]
        for each in started:
            each.start()
        found = [told.get() for _ in started]
        for each in started:
            each.join()
        asyncio.run(check(address, sum(len(each.waits_s) for each in found)))
    return floor_s, found


def table(floor_s: float, found: list[Shared], tasks: int, seconds: float) -> list[str]:
    waits_s = sorted(wait_s for each in found for wait_s in each.waits_s)
    commits, runs = len(waits_s), sum(each.runs for each in found)
    shares = " · ".join(f"{len(each.waits_s):,}" for each in sorted(found, key=lambda each: len(each.waits_s)))
    worst_of = " · ".join(f"{each.runs / max(1, len(each.waits_s)):.1f}" for each in found)
    return [
        f"`python benchmarks/hotlock.py --processes {len(found)} --tasks {tasks} --seconds {seconds:g} --write` on "
        f"{os.cpu_count()} cores, Python {platform.python_version()}.",
        f"Floor in the same run: one fdatasync {1e3 * floor_s:.3f} ms.",
        "",
        "| | |",
        "| --- | ---: |",
        f"| commits a second | {commits / seconds:,.0f} |",
        f"| runs of a context for each commit | {runs / commits:.1f} |",
        f"| the same in each process | {worst_of} |",
        f"| commits of each process | {shares} |",
        f"| wait for a commit, median · 99 % · worst | {1e3 * waits_s[commits // 2]:,.0f} · "
        f"{1e3 * waits_s[commits * 99 // 100]:,.0f} · {1e3 * waits_s[-1]:,.0f} ms |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    floor_s, found = measure(given.processes, given.tasks, given.seconds)
    lines = table(floor_s, found, given.tasks, given.seconds)
    print("\n".join(lines))
    if given.write:
        write_figures(Path(__file__).name, lines)


if __name__ == "__main__":
    main()
