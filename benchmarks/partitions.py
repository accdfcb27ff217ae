"""What do many partitions cost? One process that hosts an embedded log of them and appends to each.

    python benchmarks/partitions.py [--partitions 64,512,4096] [--idle 20] [--write]

Measures how long it takes to open a new log until the first commit, one commit in each partition (256 under way at a
time), and one more in each; then the descriptors, the memory, and the processor time while nothing is asked for. Then
the same log is opened again, and the time measured until the first commit, and until every partition is ready. With
`--write` the figures replace the ones in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from floor import fdatasync_ms

AT_ONCE = 256
SETTLE_S = 3.0


@dataclass
class Cost:
    """The costs of a log of so many partitions; times in seconds."""

    partitions: int
    opened_s: float = 0.0
    """From connecting to a directory without a log to the first commit."""
    each_s: float = 0.0
    """From then to a commit in each partition."""
    again_s: float = 0.0
    """From then to one more in each."""
    descriptors: int = 0
    """The most descriptors that were open while appends were under way."""
    resident_mb: float = 0.0
    idle: float = 0.0
    """The share of a core used while nothing is asked for and the client has mounted all partitions."""
    reopened_s: float = 0.0
    """From connecting to the same log again to the first commit."""
    ready_s: float = 0.0
    """From connecting to the same log again until all partitions are ready."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def append_to_each(log: polonaise.Log, cost: Cost) -> float:
    turn = asyncio.Semaphore(AT_ONCE)

    async def append(partition: int) -> None:
        async with turn:
            await log.append(bytes(100), partition=partition)
            cost.descriptors = max(cost.descriptors, descriptors())

    began = time.perf_counter()
    await asyncio.gather(*map(append, range(cost.partitions)))
    return time.perf_counter() - began


async def until_ready(log: polonaise.Log) -> None:
    ready = False
    while not ready:
        await asyncio.sleep(1)  # telling the health of thousands takes its time, too
        ready = all(partition["ready"] for partition in (await log.health(0))["partitions"].values())


async def measure(address: str, partitions: int, idle_s: float) -> Cost:
    cost = Cost(partitions)
    began = time.perf_counter()
    async with polonaise.connect(f"{address}?partitions={partitions}") as log:
        await log.append(b"first", partition=partitions - 1)
        cost.opened_s = time.perf_counter() - began
        cost.each_s = await append_to_each(log, cost)
        cost.again_s = await append_to_each(log, cost)
        await asyncio.sleep(SETTLE_S)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(idle_s)
        cost.idle = (time.process_time() - cpu) / (time.perf_counter() - began)
        cost.resident_mb = resident_mb()
    began = time.perf_counter()
    async with polonaise.connect(address) as log:
        await log.append(b"first", partition=partitions - 1)
        cost.reopened_s = time.perf_counter() - began
        await until_ready(log)
        cost.ready_s = time.perf_counter() - began
    return cost


def process(address: str, partitions: int, idle_s: float, told: Connection) -> None:
    """Measure one size in a process of its own, so that it does not count the memory of an earlier one."""
    told.send(uvloop.run(measure(address, partitions, idle_s)))


def cost_of(partitions: int, idle_s: float, scratch: Path) -> Cost:
    spawn = multiprocessing.get_context("spawn")
    there, here = spawn.Pipe()
    measuring = spawn.Process(target=process, args=(f"embedded:{scratch}/{partitions}", partitions, idle_s, here))
    measuring.start()
    here.close()
    cost: Cost = there.recv()
    measuring.join()
    return cost


def page(sync_ms: float, costs: list[Cost], idle_s: float) -> list[str]:
    sizes = ",".join(str(cost.partitions) for cost in costs)
    rows = [
        ("new log: until the first commit, s", *(f"{cost.opened_s:.1f}" for cost in costs)),
        ("then a commit in each partition, s", *(f"{cost.each_s:.1f}" for cost in costs)),
        ("and one more in each, s", *(f"{cost.again_s:.1f}" for cost in costs)),
        ("most descriptors", *(f"{cost.descriptors:,}" for cost in costs)),
        ("resident memory, client and nodes, MB", *(f"{cost.resident_mb:,.0f}" for cost in costs)),
        ("idle, % of a core", *(f"{100 * cost.idle:.1f}" for cost in costs)),
        ("opened again: until the first commit, s", *(f"{cost.reopened_s:.1f}" for cost in costs)),
        ("until every partition is ready, s", *(f"{cost.ready_s:.1f}" for cost in costs)),
    ]
    return [
        f"{command('partitions.py', partitions=sizes, idle=idle_s)}, load {os.getloadavg()[1]:.0f} over the last "
        "minutes.",
        f"Floor in the same run: one fdatasync {sync_ms:.3f} ms.",
        "",
        *table(["partitions", *(f"{cost.partitions:,}" for cost in costs)], rows),
    ]


def main() -> None:
    options = arguments(__doc__, partitions="64,512,4096", idle=20.0)
    with tempfile.TemporaryDirectory() as scratch:
        sync_ms = fdatasync_ms(Path(scratch))
        costs = [cost_of(int(size), options.idle, Path(scratch)) for size in options.partitions.split(",")]
    lines = page(sync_ms, costs, options.idle)
    print("\n".join(lines))
    if options.write:
        write_figures("partitions.py", lines)


if __name__ == "__main__":
    main()
