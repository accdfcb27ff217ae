"""How fast are appends? One server, three storage processes, every commit synced, one partition.

    python benchmarks/append.py [--seconds 30] [--runs 5] [--only NAME] [--write]

Prints the floor of this machine first (one fdatasync, one loopback echo), then each load: best of the runs. With
`--write` the figures replace the ones in docs/performance.md; nobody types them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

import polonaise
from document import write_figures
from polonaise.node.local import LocalCluster

ACCOUNTS = 50_000
"""Locks in use: far more than appends outstanding, so that none conflicts."""


# ---------------------------------------------------------------------- the floor


def fdatasync_s(directory: Path, count: int = 400) -> float:
    """Median time of appending 200 bytes to a file and syncing it."""
    times = []
    with open(directory / "floor", "wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def echo_s(count: int = 2_000) -> float:
    """Median round trip of 200 bytes over loopback TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer:
                while data := peer.recv(4096):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        with socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(count):
                began = time.perf_counter()
                client.sendall(bytes(200))
                client.recv(4096)
                times.append(time.perf_counter() - began)
    return statistics.median(times)


# ---------------------------------------------------------------------- loads


@dataclass
class Result:
    """What one run measured."""

    per_second: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


async def append_load(
    log: polonaise.Log, outstanding: int, seconds: float, *, size: int = 100, lock: bool = False
) -> Result:
    """Lower-level appends, `outstanding` of them unanswered at any time."""
    data = bytes(size)
    latencies: list[float] = []
    done = 0
    number = 0
    until = time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal done, number
        while (began := time.perf_counter()) < until:
            number += 1
            locks = [polonaise.Lock("account", number % ACCOUNTS, polonaise.LockMode.WRITE)] if lock else ()
            await log.append(data, partition=0, locks=locks)
            done += 1
            if done % 16 == 0:
                latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return _result(done, time.perf_counter() - began, latencies)


def _result(done: int, took: float, latencies: list[float]) -> Result:
    latencies.sort()
    return Result(done / took, 1e3 * latencies[len(latencies) // 2], 1e3 * latencies[len(latencies) * 99 // 100])


async def context_load(log: polonaise.Log, outstanding: int, seconds: float, accounts: int = 10_000) -> Result:
    """Transaction contexts with a WRITE lock each."""
    data = bytes(100)
    until = time.perf_counter() + seconds
    done = 0
    latencies: list[float] = []

    def context(tx: Any, account: int) -> None:
        tx.write_lock("account", account)
        tx.append(data)

    async def client(start: int) -> None:
        nonlocal done
        account = start
        while time.perf_counter() < until:
            account = (account * 1_103_515_245 + 12_345) % 2**31
            began = time.perf_counter()
            await log.run(context, account % accounts, partition=0)
            done += 1
            if done % 16 == 0:
                latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(client(n * 7_919 + 1) for n in range(outstanding)))
    return _result(done, time.perf_counter() - began, latencies)


async def read_objects(log: polonaise.Log) -> Result:
    """One object per transaction, from the beginning."""
    count = 0
    began = time.perf_counter()
    async for _ in log.read(0, after=-1):
        count += 1
    return Result(count / (time.perf_counter() - began))


async def read_batches(log: polonaise.Log) -> Result:
    """Whole batches, each verified, from the beginning."""
    count = 0
    began = time.perf_counter()
    async for batch in log.read_batches(0, after=-1):
        count += batch.count
    return Result(count / (time.perf_counter() - began))


# ---------------------------------------------------------------------- running


@contextlib.asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[LocalCluster, polonaise.Log]]:
    with LocalCluster(directory) as local:
        async with polonaise.connect(local.coordinator) as log:
            await log.append(b"first", partition=0)
            yield local, log


def resident_mb(pid: int) -> float:
    """Resident memory of a process, from the kernel."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def memory(directory: Path) -> dict[str, float]:
    """The server's resident memory after half a million and after two million transactions."""
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


LOADS: dict[str, Callable[[polonaise.Log, float], Awaitable[Result]]] = {
    "1 outstanding": lambda log, s: append_load(log, 1, s),
    "64 outstanding": lambda log, s: append_load(log, 64, s),
    "1,024 outstanding": lambda log, s: append_load(log, 1_024, s),
    "1,024 outstanding, one WRITE lock each": lambda log, s: append_load(log, 1_024, s, lock=True),
    "1,024 outstanding, 1 KB": lambda log, s: append_load(log, 1_024, s, size=1_024),
    "1,024 contexts, 10,000 accounts": lambda log, s: context_load(log, 1_024, s),
}


async def measure(seconds: float, runs: int, only: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"loads": {}, "reads": {}}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        figures["fdatasync_ms"] = 1e3 * fdatasync_s(root)
        figures["echo_ms"] = 1e3 * echo_s()
        print(
            f"floor: fdatasync {figures['fdatasync_ms']:.3f} ms, loopback echo {figures['echo_ms']:.3f} ms", flush=True
        )
        for number, (name, load) in enumerate(LOADS.items()):
            if only and only not in name:
                continue
            best: Result | None = None
            for run in range(runs):
                async with cluster(root / f"load-{number}-{run}") as (_, log):
                    result = await load(log, seconds)
                if best is None or result.per_second > best.per_second:
                    best = result
            assert best is not None
            figures["loads"][name] = vars(best)
            print(
                f"{name}: {best.per_second:,.0f}/s, median {best.p50_ms:.2f} ms, p99 {best.p99_ms:.2f} ms", flush=True
            )
        if not only or only in "reads":
            await measure_reads(root, runs, figures)
        if not only or only in "memory":
            figures["memory_mb"] = await memory(root / "memory")
            print(f"server's resident memory, MB: {figures['memory_mb']}", flush=True)
    return figures


async def measure_reads(root: Path, runs: int, figures: dict[str, Any]) -> None:
    directory = root / "reads"
    async with cluster(directory) as (local, log):
        for _ in range(500):
            await asyncio.gather(*(log.append(bytes(100), partition=0) for _ in range(2_000)))
        assert local.server is not None
        local.server.stop()
        local.server.start()
        async with polonaise.connect(local.coordinator) as cold:
            for name, read in (("objects", read_objects), ("batches", read_batches)):
                best = max([await read(cold) for _ in range(runs)], key=lambda result: result.per_second)
                figures["reads"][name] = vars(best)
                print(f"cold reader, {name}: {best.per_second:,.0f}/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(options.seconds, options.runs, options.only))
    if options.write:
        write(figures, options.seconds, options.runs)


def write(figures: dict[str, Any], seconds: float, runs: int) -> None:
    """Replace the figures in docs/performance.md by these."""
    sync_ms = figures["fdatasync_ms"]
    lines = [
        f"`python benchmarks/append.py --seconds {seconds:g} --runs {runs} --write` on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; best of {runs} runs of {seconds:g} s.",
        f"Floor in the same run: one fdatasync {sync_ms:.3f} ms, one loopback echo {figures['echo_ms']:.3f} ms.",
        "",
        "| load | transactions/s | median ms | p99 ms | median ÷ fdatasync |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, load in figures["loads"].items():
        lines.append(
            f"| {name} | {load['per_second']:,.0f} | {load['p50_ms']:.2f} | {load['p99_ms']:.2f} "
            f"| {load['p50_ms'] / sync_ms:.1f} |"
        )
    lines += ["", "| cold reader | transactions/s |", "| --- | ---: |"]
    lines += [f"| {name} | {load['per_second']:,.0f} |" for name, load in figures["reads"].items()]
    lines += ["", "| transactions written | server's resident memory, MB |", "| --- | ---: |"]
    lines += [f"| {name} | {size:.1f} |" for name, size in figures.get("memory_mb", {}).items()]
    write_figures("append.py", lines)


if __name__ == "__main__":
    main()
