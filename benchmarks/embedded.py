"""How fast is an embedded log? One process that hosts it and appends; every commit synced.

    python benchmarks/embedded.py [--seconds 10] [--runs 3] [--write]

Measures the time from `connect` on an empty directory to the first commit, appends with one and three storage
directories, and how long another process takes over after a kill, also when the last segment is full of small
batches. With `--write` the figures replace the ones in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

import polonaise
from append import append_load
from document import arguments, command, table, write_figures
from floor import fdatasync_ms
from loads import Load

OUTSTANDING = (1, 64, 1_024)
FIRST_COMMITS = 9
TAKE_OVERS = 9
SINGLE = 30_000
"""The number of commits of one transaction each: nearly as many as a segment of an embedded log takes."""


@dataclass
class Figures:
    """The figures measured; times in seconds, but for the floor."""

    fdatasync_ms: float = 0.0
    first_commit_s: dict[int, float] = field(default_factory=dict)
    """The median time until the first commit of a new log, by the number of storage directories."""
    loads: dict[tuple[int, int], Load] = field(default_factory=dict)
    """The best run of each load, by the numbers of storage directories and of outstanding appends."""
    take_over_s: dict[int, list[float]] = field(default_factory=dict)
    """The time of each take-over, rising, by the number of commits in the log."""


async def first_commit_s(directory: Path, storage: int) -> float:
    began = time.perf_counter()
    async with polonaise.connect(f"embedded:{directory}?storage={storage}") as log:
        await log.append(b"first", partition=0)
        return time.perf_counter() - began


def host(directory: Path, transactions: int, ready: Connection) -> None:
    """Host the log until this process is killed; make so many commits, then send a message through `ready`."""

    async def serve() -> None:
        async with polonaise.connect(f"embedded:{directory}") as log:
            for _ in range(transactions):
                await log.append(bytes(100), partition=0)
            ready.send(None)
            await asyncio.get_running_loop().create_future()

    uvloop.run(serve())


async def take_over_s(directory: Path, transactions: int) -> float:
    """Return the seconds from the host's kill to the first commit that an attached process asked for after the kill."""
    spawn = multiprocessing.get_context("spawn")
    ready, ready_end = spawn.Pipe()
    process = spawn.Process(target=host, args=(directory, transactions, ready_end))
    process.start()
    await asyncio.to_thread(ready.recv)
    async with polonaise.connect(f"embedded:{directory}") as log:
        await log.append(b"attached", partition=0)
        process.kill()
        began = time.perf_counter()
        await log.run(lambda tx: tx.append(b"after"), partition=0)
        took_s = time.perf_counter() - began
    process.join()
    return took_s


async def measure(seconds: float, runs: int) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        figures.fdatasync_ms = fdatasync_ms(root)
        for storage in (1, 3):
            times = [await first_commit_s(root / f"first-{storage}-{n}", storage) for n in range(FIRST_COMMITS)]
            figures.first_commit_s[storage] = statistics.median(times)
            print(f"first commit, {storage} storage: {1e3 * figures.first_commit_s[storage]:.0f} ms", flush=True)
            for outstanding in OUTSTANDING:
                results: list[Load] = []
                for run in range(runs):
                    directory = root / f"load-{storage}-{outstanding}-{run}"
                    async with polonaise.connect(f"embedded:{directory}?storage={storage}") as log:
                        await log.append(b"first", partition=0)
                        results.append(await append_load(log, outstanding, seconds))
                best = max(results, key=lambda result: result.per_second)
                figures.loads[storage, outstanding] = best
                print(f"{storage} storage, {outstanding} outstanding: {best.per_second:,.0f}/s", flush=True)
        for transactions in (1, SINGLE):
            count = TAKE_OVERS if transactions == 1 else 3
            figures.take_over_s[transactions] = sorted(
                [await take_over_s(root / f"take-over-{transactions}-{n}", transactions) for n in range(count)]
            )
            told = ", ".join(f"{1e3 * took_s:.0f}" for took_s in figures.take_over_s[transactions])
            print(f"take-over after {transactions:,} commits: {told} ms", flush=True)
    return figures


def page(figures: Figures, seconds: float, runs: int) -> list[str]:
    loads = [
        (str(storage), f"{count:,} outstanding", f"{load.per_second:,.0f}", f"{load.p50_ms:.2f}", f"{load.p99_ms:.2f}")
        for (storage, count), load in figures.loads.items()
    ]
    firsts = [(f"{storage} storage", f"{1e3 * took_s:.0f}") for storage, took_s in figures.first_commit_s.items()]
    take_overs = [
        (f"{count:,} commits in the last segment", f"{1e3 * statistics.median(took):.0f}", f"{1e3 * took[-1]:.0f}")
        for count, took in figures.take_over_s.items()
    ]
    return [
        f"{command('embedded.py', seconds=seconds, runs=runs)}; best of {runs} runs of {seconds:g} s.",
        f"Floor in the same run: one fdatasync {figures.fdatasync_ms:.3f} ms.",
        "",
        *table(["storage directories", "load", "transactions/s", "median ms", "p99 ms"], loads),
        "",
        *table(["from connecting to an empty directory to the first commit", "median ms"], firsts),
        "",
        *table(["take-over after kill -9 of the host", "median ms", "longest ms"], take_overs),
    ]


def main() -> None:
    options = arguments(__doc__, seconds=10.0, runs=3)
    figures = uvloop.run(measure(options.seconds, options.runs))
    if options.write:
        write_figures("embedded.py", page(figures, options.seconds, options.runs))


if __name__ == "__main__":
    main()
