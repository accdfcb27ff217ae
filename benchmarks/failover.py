"""How long do appends wait when a process stops, dies or hangs?

    python benchmarks/failover.py [--rounds 20] [--only NAME] [--file] [--write]

Three storage nodes, two servers that share four partitions, and ZooKeeper (with `--file` a coordinator in a directory),
all processes of their own. A client appends to each partition, one after the other, all the time. Each round of each
scenario does something to one process, and measures the longest time between two commits of one partition from then on
until all is well again. No append may fail. At the end the length of each partition is compared with the number of
appends that were acknowledged there: it may be longer by one, the last append, whose answer was not waited for.

With `--write` the table replaces the one in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from polonaise.admin.cluster import ClusterObserver, Wellness, observer_of
from polonaise.admin.localplan import LocalPlan, Wanted
from polonaise.coordination.lease import LEASE_S
from polonaise.node.local import ChildNode, LocalCluster

PARTITIONS: Final = 4
SETTLE_S: Final = 1.0
"""A server that was started again is given its share after so long. Only rounds would take longer with the default."""
STEADY_S: Final = 0.5
"""Appends go on for so long before a round, and after it."""
PATIENCE_S: Final = 60.0
"""A round that is not over after so long has failed."""


class Appender:
    """Appends to each partition, one append after the other, and notes when each was committed."""

    def __init__(self, log: polonaise.Log) -> None:
        self._log = log
        self.committed = [0] * PARTITIONS
        self._last_s = [time.perf_counter()] * PARTITIONS
        self._longest_s = [0.0] * PARTITIONS
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Appender:
        self._tasks = [asyncio.create_task(self._append_for_ever(partition)) for partition in range(PARTITIONS)]
        return self

    async def __aexit__(self, *ended: object) -> None:
        for task in self._tasks:
            task.cancel()
        failures = [each for each in await asyncio.gather(*self._tasks, return_exceptions=True) if each is not None]
        for failure in failures:
            if not isinstance(failure, asyncio.CancelledError):
                raise failure

    async def _append_for_ever(self, partition: int) -> None:
        body = bytes(100)
        while True:
            # An append that fails ends the benchmark: none may.
            await self._log.append(body, partition=partition)
            now_s = time.perf_counter()
            self._longest_s[partition] = max(self._longest_s[partition], now_s - self._last_s[partition])
            self._last_s[partition] = now_s
            self.committed[partition] += 1

    def begin(self) -> None:
        """Measure from now on."""
        self._longest_s = [0.0] * PARTITIONS

    def longest_s(self) -> float:
        """Return the longest time between two commits of one partition since `begin`, in seconds."""
        for task in self._tasks:
            if task.done():
                task.result()
        now_s = time.perf_counter()
        return max(max(longest, now_s - last) for longest, last in zip(self._longest_s, self._last_s, strict=True))


class Bench:
    """A cluster with an appender, and what can be done to its processes."""

    def __init__(self, cluster: LocalCluster, observer: ClusterObserver, appender: Appender) -> None:
        self.cluster = cluster
        self._observer = observer
        self._appender = appender
        self._random = random.Random(1)

    def any_server(self) -> ChildNode:
        return self._random.choice(self.cluster.servers)

    def any_storage(self) -> ChildNode:
        return self._random.choice(self.cluster.storage)

    async def until_well(self) -> None:
        """Wait until every node is there, every replica is engaged, and each server owns its share."""
        until_s = time.perf_counter() + PATIENCE_S
        while True:
            status = await self._observer.look()
            shares = [server.partitions for server in status.servers]
            servers = len(self.cluster.servers)
            if status.wellness is Wellness.WELL and shares == [PARTITIONS // servers] * servers:
                return
            if time.perf_counter() > until_s:
                raise TimeoutError(f"not well after {PATIENCE_S:g} s: {status.document()}")
            await asyncio.sleep(0.05)

    async def round(self, scenario: Scenario) -> float:
        """Do it once; return the longest that appends to a partition waited, in seconds."""
        await self.until_well()
        await asyncio.sleep(STEADY_S)
        self._appender.begin()
        await scenario.do(self)
        await self.until_well()
        await asyncio.sleep(STEADY_S)
        return self._appender.longest_s()


async def in_thread(call: Callable[[], None]) -> None:
    """Wait for a call that blocks, such as for the end of a process, while appends go on."""
    await asyncio.to_thread(call)


async def server_stops(bench: Bench) -> None:
    server = bench.any_server()
    await in_thread(server.stop)
    await in_thread(server.start)


async def server_killed(bench: Bench) -> None:
    server = bench.any_server()
    await in_thread(server.kill)
    await asyncio.sleep(2 * LEASE_S)
    await in_thread(server.start)


async def server_hangs(bench: Bench) -> None:
    await hangs(bench.any_server(), 2 * LEASE_S)


async def storage_killed(bench: Bench) -> None:
    node = bench.any_storage()
    await in_thread(node.kill)
    await in_thread(node.start)


async def storage_hangs(bench: Bench) -> None:
    await hangs(bench.any_storage(), 2 * LEASE_S)


async def hangs(node: ChildNode, for_s: float) -> None:
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        os.kill(node.pid, signal.SIGCONT)


class Scenario(NamedTuple):
    name: str
    what: str
    do: Callable[[Bench], Awaitable[None]]


SCENARIOS: Final = (
    Scenario("server-stops", "a server is stopped (SIGTERM), and started again", server_stops),
    Scenario("server-killed", "a server is killed (SIGKILL)", server_killed),
    Scenario("server-hangs", "a server hangs (SIGSTOP), and goes on after 10 s", server_hangs),
    Scenario("storage-killed", "a storage node is killed, and started again", storage_killed),
    Scenario("storage-hangs", "a storage node hangs (SIGSTOP), and goes on after 10 s", storage_hangs),
)


def cluster_in(directory: Path, *, in_file: bool) -> LocalCluster:
    settings = directory / "settings.toml"
    settings.write_text(f"[server]\nsettle_s = {SETTLE_S:g}\n")
    plan = LocalPlan.new(Wanted(coordinator="file" if in_file else None, partitions=PARTITIONS))
    return LocalCluster(directory, partitions=PARTITIONS, addresses=plan.addresses, config=str(settings))


async def measure(root: Path, scenarios: list[Scenario], rounds: int, *, in_file: bool) -> dict[str, list[float]]:
    """Run the rounds; return the waits of each scenario, in seconds."""
    waits: dict[str, list[float]] = {}
    with cluster_in(root, in_file=in_file) as cluster:
        async with (
            observer_of(cluster.coordinator, 5.0) as observer,
            polonaise.connect(cluster.coordinator) as log,
        ):
            async with Appender(log) as appender:
                bench = Bench(cluster, observer, appender)
                for scenario in scenarios:
                    for _ in range(rounds):
                        waits.setdefault(scenario.name, []).append(await bench.round(scenario))
                        print(f"{scenario.name}: {1e3 * waits[scenario.name][-1]:.0f} ms", file=sys.stderr)
            await check(log, appender)
    return waits


async def check(log: polonaise.Log, appender: Appender) -> None:
    """Compare lengths with what the appender was told. Its last append of each partition was given up: it may be in."""
    for partition, told in enumerate(appender.committed):
        there = await log.flush(partition) + 1
        if not told <= there <= told + 1:
            raise AssertionError(f"partition {partition}: {told} appends were acknowledged, and {there} are in the log")


def page(waits: dict[str, list[float]], rounds: int, *, in_file: bool) -> list[str]:
    what = {scenario.name: scenario.what for scenario in SCENARIOS}
    return [
        f"{command('failover.py', rounds=rounds, file=in_file)}; {rounds} rounds each.",
        "",
        *table(
            ["what happens", "median ms", "worst ms"],
            [
                (what[name], f"{1e3 * statistics.median(each):,.0f}", f"{1e3 * max(each):,.0f}")
                for name, each in waits.items()
            ],
        ),
    ]


def main() -> None:
    options = arguments(__doc__, rounds=20, only="", file=False)
    scenarios = [scenario for scenario in SCENARIOS if options.only in ("", scenario.name)]
    if not scenarios:
        raise SystemExit(f"--only is one of {', '.join(scenario.name for scenario in SCENARIOS)}")
    with tempfile.TemporaryDirectory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        waits = runner.run(measure(Path(scratch), scenarios, options.rounds, in_file=options.file))
    lines = page(waits, options.rounds, in_file=options.file)
    print("\n".join(lines))
    if options.write:
        write_figures("failover.py", lines)


if __name__ == "__main__":
    main()
