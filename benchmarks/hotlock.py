"""How well do contexts share one hot lock? Tasks in several processes that all change the same thing.

    python benchmarks/hotlock.py [--processes 3] [--tasks 20] [--seconds 10] [--write]

Each process has an embedded log open, one of them hosts it, and keeps a counter as its view; each task runs contexts,
one after the other, that read the counter, under one WRITE lock, and append the next number. Says how often a
context ran for each commit, how many commits each process got, and how long a context waited at most; and checks that
no number is missing or there twice. With `--write` the figures replace the ones in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from floor import fdatasync_ms
from loads import percentile


class Counter:
    """A view that keeps the last number and its applied high-water mark."""

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
    """The runs of contexts in one process, and its commits."""

    runs: int = 0
    waits_s: list[float] = field(default_factory=list)
    """For each commit, the seconds from the call of `run` to its end."""


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
        sync_ms = fdatasync_ms(Path(scratch))
        address = f"embedded:{scratch}/log"
        ready, told = spawn.Barrier(processes), spawn.SimpleQueue()
        started = [spawn.Process(target=process, args=(address, tasks, seconds, ready, told)) for _ in range(processes)]
        for each in started:
            each.start()
        shares = [told.get() for _ in started]
        for each in started:
            each.join()
        asyncio.run(check(address, sum(len(each.waits_s) for each in shares)))
    return sync_ms, shares


def page(sync_ms: float, shares: list[Shared], tasks: int, seconds: float) -> list[str]:
    waits_ms = [1e3 * wait_s for share in shares for wait_s in share.waits_s]
    commits = [len(share.waits_s) for share in shares]
    waits = (percentile(waits_ms, 50), percentile(waits_ms, 99), max(waits_ms))
    rows = [
        ("commits a second", f"{sum(commits) / seconds:,.0f}"),
        ("runs of a context for each commit", f"{sum(share.runs for share in shares) / sum(commits):.1f}"),
        (
            "the same in each process",
            " · ".join(f"{share.runs / max(1, count):.1f}" for share, count in zip(shares, commits, strict=True)),
        ),
        ("commits of each process", " · ".join(f"{count:,}" for count in sorted(commits))),
        ("wait for a commit, median · 99 % · worst", " · ".join(f"{wait_ms:,.0f}" for wait_ms in waits) + " ms"),
    ]
    return [
        f"{command('hotlock.py', processes=len(shares), tasks=tasks, seconds=seconds)}.",
        f"Floor in the same run: one fdatasync {sync_ms:.3f} ms.",
        "",
        *table(["", ""], rows),
    ]


def main() -> None:
    options = arguments(__doc__, processes=3, tasks=20, seconds=10.0)
    sync_ms, shares = measure(options.processes, options.tasks, options.seconds)
    lines = page(sync_ms, shares, options.tasks, options.seconds)
    print("\n".join(lines))
    if options.write:
        write_figures("hotlock.py", lines)


if __name__ == "__main__":
    main()
