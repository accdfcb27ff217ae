"""Where does one append spend its time? One at a time, and the processor time of every process on its way.

    python benchmarks/one_append.py [--seconds 5] [--runs 3] [--write]

Prints the latency, and for the client, the server and the mean of the storage nodes: user and
system time, and how often each gave up its processor, per append. With `--write` the table replaces the one in
docs/performance.md. Measure on a quiet machine: what else runs makes every one of these figures larger.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import uvloop

import polonaise
from append import cluster, echo_s, fdatasync_s
from document import write_figures

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What processes have used so far, in all their threads."""

    user_s: float
    system_s: float
    waits: int
    """How often one of them had nothing to do, or waited for the disk."""

    def since(self, before: Usage, appends: int, processes: int) -> Usage:
        """Per append and process."""
        share = 1 / appends / processes
        return Usage(
            (self.user_s - before.user_s) * share,
            (self.system_s - before.system_s) * share,
            (self.waits - before.waits) * share,  # type: ignore[arg-type]
        )


def usage(pids: Iterable[int]) -> Usage:
    user = system = 0.0
    waits = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11]) * TICK_S
        system += int(fields[12]) * TICK_S
        for task in Path(f"/proc/{pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    waits += int(line.split()[1])
    return Usage(user, system, waits)


class Profile(NamedTuple):
    """One run."""

    sync_ms: float
    median_ms: float
    p99_ms: float
    client: Usage
    server: Usage
    storage: Usage


async def append_one_by_one(log: polonaise.Log, seconds: float) -> list[float]:
    latencies = []
    data = bytes(100)
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        await log.append(data, partition=0)
        latencies.append(time.perf_counter() - began)
    return latencies


async def measure(seconds: float, root: Path) -> Profile:
    before_ms = 1e3 * fdatasync_s(root)
    async with cluster(root / "cluster") as (local, log):
        await append_one_by_one(log, min(1.0, seconds))
        assert local.server is not None
        assert local.server.pid is not None
        groups = [[os.getpid()], [local.server.pid], [node.pid for node in local.storage if node.pid is not None]]
        before = [usage(pids) for pids in groups]
        latencies = await append_one_by_one(log, seconds)
        client, server, storage = (
            usage(pids).since(was, len(latencies), len(pids)) for pids, was in zip(groups, before, strict=True)
        )
    latencies.sort()
    return Profile(
        (before_ms + 1e3 * fdatasync_s(root)) / 2,
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[len(latencies) * 99 // 100],
        client,
        server,
        storage,
    )


def table(profile: Profile, seconds: float, runs: int, echo_ms: float) -> list[str]:
    lines = [
        f"`python benchmarks/one_append.py --seconds {seconds:g} --runs {runs} --write` on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; the run with the lowest median of {runs} runs of {seconds:g} s: "
        f"median {profile.median_ms:.2f} ms ({profile.median_ms / profile.sync_ms:.1f} × the fdatasync before and "
        f"after it, {profile.sync_ms:.3f} ms), p99 {profile.p99_ms:.2f} ms. One loopback echo {echo_ms:.3f} ms.",
        "",
        "| per append | user µs | system µs | waits |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name in ("client", "server", "storage"):
        used: Usage = getattr(profile, name)
        shown = "each storage node" if name == "storage" else name
        lines.append(f"| {shown} | {1e6 * used.user_s:.0f} | {1e6 * used.system_s:.0f} | {used.waits:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    options = parser.parse_args()
    profiles = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            profiles.append(runner.run(measure(options.seconds, Path(scratch))))
    best = min(profiles, key=lambda profile: profile.median_ms)
    lines = table(best, options.seconds, options.runs, 1e3 * echo_s())
    print("\n".join(lines))
    if options.write:
        write_figures("one_append.py", lines)


if __name__ == "__main__":
    main()
