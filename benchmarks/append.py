"""How fast are appends? One server, three storage processes, every commit synced, one partition.

    python benchmarks/append.py [--seconds 30] [--runs 5] [--only NAME] [--tls] [--write]

Prints the floor of this machine first (one fdatasync, one loopback echo), then each load: best of the runs; then how
fast a new client reads, and the server's memory. `--only` takes a part of a load's name, `reads` or `memory`. With
`--tls` each load runs without TLS and with it, by turns, and the rest is left out. With `--write` the figures replace
the ones in docs/performance.md; nobody types them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from floor import echo_ms, fdatasync_ms
from loads import Load, keep
from polonaise.admin import certificates
from polonaise.host.tls import TlsFiles
from polonaise.node.local import LocalCluster

TLS = "append.py --tls"
"""What the figures with TLS are called on the page."""
ACCOUNTS = 50_000
"""The number of locks in use: far more than appends outstanding, so that none conflicts."""


# ---------------------------------------------------------------------- loads


async def append_load(
    log: polonaise.Log, outstanding: int, seconds: float, *, size: int = 100, lock: bool = False
) -> Load:
    """Make appends without contexts, of `size` bytes each, `outstanding` of them unanswered at any time."""
    data, numbers = bytes(size), itertools.count(1)

    def append() -> polonaise.Receipt:
        locks = [polonaise.Lock("account", next(numbers) % ACCOUNTS, polonaise.LockMode.WRITE)] if lock else ()
        return log.append(data, partition=0, locks=locks)

    return await keep(append, outstanding, seconds)


async def context_load(log: polonaise.Log, outstanding: int, seconds: float, accounts: int = 10_000) -> Load:
    """Run transaction contexts, each with a WRITE lock on a random one of `accounts`."""
    data = bytes(100)

    def context(tx: Any, account: int) -> None:
        tx.write_lock("account", account)
        tx.append(data)

    return await keep(lambda: log.run(context, random.randrange(accounts), partition=0), outstanding, seconds)


async def read_objects(log: polonaise.Log) -> float:
    """Return how many transactions a second are read from the beginning, as one object each."""
    count = 0
    began = time.perf_counter()
    async for _ in log.read(0, after=-1):
        count += 1
    return count / (time.perf_counter() - began)


async def read_batches(log: polonaise.Log) -> float:
    """Return how many transactions a second are read from the beginning, in whole batches, each verified."""
    count = 0
    began = time.perf_counter()
    async for batch in log.read_batches(0, after=-1):
        count += batch.count
    return count / (time.perf_counter() - began)


# ---------------------------------------------------------------------- running


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, nodes: TlsFiles | None = None, client: TlsFiles | None = None
) -> AsyncIterator[tuple[LocalCluster, polonaise.Log]]:
    with LocalCluster(directory, tls=nodes) as local:
        async with polonaise.connect(local.coordinator, tls=client) as log:
            await log.append(b"first", partition=0)
            yield local, log


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB, from the kernel."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def memory(directory: Path) -> dict[str, float]:
    """Return the server's resident memory in MB after half a million and after two million transactions."""
    async with cluster(directory) as (local, log):
        assert local.server is not None
        assert local.server.pid is not None
        sizes = {}
        written = 0
        for goal in (500_000, 2_000_000):
            while written < goal:
                await asyncio.gather(*(log.append(bytes(100), partition=0) for _ in range(2_000)))
                written += 2_000
            sizes[f"{goal:,}"] = resident_mb(local.server.pid)
    return sizes


LOADS: dict[str, Callable[[polonaise.Log, float], Awaitable[Load]]] = {
    "1 outstanding": lambda log, s: append_load(log, 1, s),
    "64 outstanding": lambda log, s: append_load(log, 64, s),
    "1,024 outstanding": lambda log, s: append_load(log, 1_024, s),
    "1,024 outstanding, one WRITE lock each": lambda log, s: append_load(log, 1_024, s, lock=True),
    "1,024 outstanding, 1 KB": lambda log, s: append_load(log, 1_024, s, size=1_024),
    "1,024 contexts, 10,000 accounts": lambda log, s: context_load(log, 1_024, s),
}


async def measure(seconds: float, runs: int, only: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"loads": {}, "reads": {}, "memory_mb": {}}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        figures["fdatasync_ms"] = fdatasync_ms(root)
        figures["echo_ms"] = echo_ms()
        print(
            f"floor: fdatasync {figures['fdatasync_ms']:.3f} ms, loopback echo {figures['echo_ms']:.3f} ms", flush=True
        )
        for number, (name, load) in enumerate(LOADS.items()):
            if only and only not in name:
                continue
            results = []
            for run in range(runs):
                async with cluster(root / f"load-{number}-{run}") as (_, log):
                    results.append(await load(log, seconds))
            figures["loads"][name] = max(results, key=lambda result: result.per_second)
            print(f"{name}: {figures['loads'][name]}", flush=True)
        if not only or only in "reads":
            figures["reads"] = await measure_reads(root / "reads", runs)
        if not only or only in "memory":
            figures["memory_mb"] = await memory(root / "memory")
            print(f"server's resident memory, MB: {figures['memory_mb']}", flush=True)
    return figures


async def measure_tls(seconds: float, runs: int, only: str) -> dict[str, tuple[Load, Load]]:
    """Return the best run of each load, without TLS and with it. The two take turns: a shared machine changes."""
    best: dict[str, tuple[Load, Load]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        certificates.make(root / "tls", [certificates.node("localhost"), certificates.client("client")])
        files = [certificates.files_of_holder(root / "tls", name) for name in ("localhost", "client")]
        for number, (name, load) in enumerate(LOADS.items()):
            if only and only not in name:
                continue
            results: tuple[list[Load], list[Load]] = ([], [])
            for run in range(runs):
                for side, given in enumerate(([], files)):
                    async with cluster(root / f"load-{number}-{run}-{side}", *given) as (_, log):
                        results[side].append(await load(log, seconds))
            plain, encrypted = (max(side, key=lambda result: result.per_second) for side in results)
            best[name] = plain, encrypted
            ratio = encrypted.per_second / plain.per_second
            print(f"{name}: {plain} without TLS, {encrypted} with it: {ratio:.0%}", flush=True)
    return best


async def measure_reads(directory: Path, runs: int) -> dict[str, float]:
    rates = {}
    async with cluster(directory) as (local, log):
        for _ in range(500):
            await asyncio.gather(*(log.append(bytes(100), partition=0) for _ in range(2_000)))
        assert local.server is not None
        local.server.stop()
        local.server.start()
        async with polonaise.connect(local.coordinator) as cold:
            for name, read in (("objects", read_objects), ("batches", read_batches)):
                rates[name] = max([await read(cold) for _ in range(runs)])
                print(f"cold reader, {name}: {rates[name]:,.0f}/s", flush=True)
    return rates


def main() -> None:
    options = arguments(__doc__, seconds=30.0, runs=5, only="", tls=False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.tls:
            pairs = runner.run(measure_tls(options.seconds, options.runs, options.only))
            if options.write:
                write_figures(TLS, tls_page(pairs, options.seconds, options.runs))
            return
        figures = runner.run(measure(options.seconds, options.runs, options.only))
    if options.write:
        write_figures("append.py", page(figures, options.seconds, options.runs))


def page(figures: dict[str, Any], seconds: float, runs: int) -> list[str]:
    sync_ms = figures["fdatasync_ms"]
    loads = [
        (name, f"{load.per_second:,.0f}", f"{load.p50_ms:.2f}", f"{load.p99_ms:.2f}", f"{load.p50_ms / sync_ms:.1f}")
        for name, load in figures["loads"].items()
    ]
    return [
        f"{command('append.py', seconds=seconds, runs=runs)}; best of {runs} runs of {seconds:g} s.",
        f"Floor in the same run: one fdatasync {sync_ms:.3f} ms, one loopback echo {figures['echo_ms']:.3f} ms.",
        "",
        *table(["load", "transactions/s", "median ms", "p99 ms", "median ÷ fdatasync"], loads),
        "",
        *table(["cold reader", "transactions/s"], [(name, f"{rate:,.0f}") for name, rate in figures["reads"].items()]),
        "",
        *table(
            ["transactions written", "server's resident memory, MB"],
            [(name, f"{size:.1f}") for name, size in figures["memory_mb"].items()],
        ),
    ]


def tls_page(pairs: dict[str, tuple[Load, Load]], seconds: float, runs: int) -> list[str]:
    rows = [
        (
            name, f"{plain.per_second:,.0f}", f"{tls.per_second:,.0f}", f"{tls.per_second / plain.per_second:.0%}",
            f"{plain.p50_ms:.2f}", f"{tls.p50_ms:.2f}",
        )
        for name, (plain, tls) in pairs.items()
    ]  # fmt: skip
    return [
        f"{command(TLS, seconds=seconds, runs=runs)}; best of {runs} runs of {seconds:g} s each, by turns.",
        "",
        *table(["load", "transactions/s", "with TLS", "ratio", "median ms", "with TLS"], rows),
    ]


if __name__ == "__main__":
    main()
