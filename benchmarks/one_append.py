"""Where does one append spend its time? One at a time, and the processor time of every process on its way.

    python benchmarks/one_append.py [--seconds 5] [--runs 3] [--write]

Prints the latency, and for the client, the server and the mean of the storage nodes: user and system time, and how
often each gave up its processor, per append. With `--write` the table replaces the one in docs/performance.md. Measure
on a quiet machine: what else runs makes every one of these figures larger.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import uvloop

import polonaise
from append import cluster
from document import arguments, command, table, write_figures
from floor import echo_ms, fdatasync_ms
from loads import percentile

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """The processor time and waits of processes so far, over all their threads."""

    user_s: float
    system_s: float
    waits: int
    """How often a thread gave up its processor, because it had nothing to do or waited for the disk."""

    def since(self, before: Usage, appends: int, processes: int) -> Usage:
        """Return the usage since `before`, per append and process."""
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
    """The figures of one run: the floor of the machine, the appends, and what each of the processes used per append."""

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
    before_ms = fdatasync_ms(root)
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
    sync_ms = (before_ms + fdatasync_ms(root)) / 2
    return Profile(sync_ms, 1e3 * percentile(latencies, 50), 1e3 * percentile(latencies, 99), client, server, storage)


def page(profile: Profile, seconds: float, runs: int) -> list[str]:
    used = {"client": profile.client, "server": profile.server, "each storage node": profile.storage}
    return [
        f"{command('one_append.py', seconds=seconds, runs=runs)}; the run with the lowest median of {runs} runs of "
        f"{seconds:g} s: median {profile.median_ms:.2f} ms ({profile.median_ms / profile.sync_ms:.1f} × the fdatasync "
        f"before and after it, {profile.sync_ms:.3f} ms), p99 {profile.p99_ms:.2f} ms. One loopback echo "
        f"{echo_ms():.3f} ms.",
        "",
        *table(
            ["per append", "user µs", "system µs", "waits"],
            [(name, f"{1e6 * u.user_s:.0f}", f"{1e6 * u.system_s:.0f}", f"{u.waits:.1f}") for name, u in used.items()],
        ),
    ]


def main() -> None:
    options = arguments(__doc__, seconds=5.0, runs=3)
    profiles = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            profiles.append(runner.run(measure(options.seconds, Path(scratch))))
    lines = page(min(profiles, key=lambda profile: profile.median_ms), options.seconds, options.runs)
    print("\n".join(lines))
    if options.write:
        write_figures("one_append.py", lines)


if __name__ == "__main__":
    main()
