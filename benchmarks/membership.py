"""How long do appends wait while an operator adds, drains and removes nodes?

    python benchmarks/membership.py [--megabytes 200] [--seconds 20] [--rounds 3] [--file] [--write]

Three storage nodes, two servers that share four partitions, and ZooKeeper (with `--file` a coordinator in a directory),
all processes of their own. The log is filled with `--megabytes` first. Then a client keeps two appends unanswered in
each partition, all the time, while each change is made with the command that an operator would type. Every round makes
them all: a storage node is added and given its share of the copies; another one is drained and removed; a server joins
and takes its share of the partitions; a server is stopped, and hands its partitions over. No append may fail. At the
end the length of each partition is compared with the number of appends that were acknowledged there: it may be longer
by the last ones, whose answers were not waited for.

With `--write` the table replaces the one in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from loads import percentile
from polonaise.admin.cluster import ClusterObserver, ServerStatus, Wellness
from polonaise.admin.localplan import LocalPlan, Wanted
from polonaise.admin.opening import observer_of
from polonaise.node.local import ChildNode, LocalCluster

PARTITIONS: Final = 4
TASKS: Final = 2
"""How many appends are unanswered in each partition."""
BODY: Final = bytes(1_000)
FILLING: Final = 200
"""How many appends are unanswered in each partition while the log is filled."""
SETTLE_S: Final = 1.0
"""A server that joined is given its share after so long. Only rounds would take longer with the default."""
PATIENCE_S: Final = 120.0
ALONE: Final = "no change"
ADDED: Final = "a storage node is added and given its share (`storage add`, `storage balance`)"
DRAINED: Final = "a storage node is drained and removed (`storage drain`, `storage remove`)"
JOINED: Final = "a server joins, and partitions move to it"
LEFT: Final = "a server is stopped, and its partitions move"


class Waits(NamedTuple):
    """How long appends waited during one kind of change, in all rounds."""

    latencies_ms: list[float]
    took_s: list[float]


class Appender:
    """Keeps `TASKS` appends unanswered in each partition, and notes how long each waits."""

    def __init__(self, log: polonaise.Log) -> None:
        self._log = log
        self.committed = [0] * PARTITIONS
        self.latencies_ms: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Appender:
        self._tasks = [
            asyncio.create_task(self._append_for_ever(partition)) for partition in [*range(PARTITIONS)] * TASKS
        ]
        return self

    async def __aexit__(self, *ended: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ending in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(ending, asyncio.CancelledError):
                raise AssertionError("an append failed") from ending

    async def _append_for_ever(self, partition: int) -> None:
        while True:
            sent_s = time.perf_counter()
            # An append that fails ends the benchmark: none may.
            await self._log.append(BODY, partition=partition)
            self.latencies_ms.append(1e3 * (time.perf_counter() - sent_s))
            self.committed[partition] += 1

    async def fill(self, count: int) -> None:
        """Append so many transactions to each partition."""

        async def append_some(partition: int) -> None:
            for _ in range(count // FILLING):
                await self._log.append(BODY, partition=partition)
                self.committed[partition] += 1

        await asyncio.gather(*(append_some(partition) for partition in [*range(PARTITIONS)] * FILLING))


class Bench:
    """A cluster under load, and an operator's changes of it."""

    def __init__(self, cluster: LocalCluster, observer: ClusterObserver, appender: Appender, scratch: Path) -> None:
        self._cluster = cluster
        self._observer = observer
        self._appender = appender
        self._scratch = scratch
        self._named = dict(cluster.named)
        self._servers = list(cluster.servers)
        self._made = 0
        self.waits: dict[str, Waits] = {}

    async def during(self, what: str, change: Callable[[], Awaitable[None]]) -> None:
        """Measure the appends from the beginning of a change until all is well again."""
        began_s = time.perf_counter()
        self._appender.latencies_ms = []
        await change()
        waits = self.waits.setdefault(what, Waits([], []))
        waits.latencies_ms.extend(self._appender.latencies_ms)
        waits.took_s.append(time.perf_counter() - began_s)
        print(
            f"{what}: {waits.took_s[-1]:.1f} s, p99 {percentile(self._appender.latencies_ms, 99):.1f} ms, "
            f"worst {max(self._appender.latencies_ms):.0f} ms",
            file=sys.stderr,
        )

    async def round(self, seconds: float) -> None:
        """Make every change once. Afterwards the cluster has as many nodes as before."""
        await self.until_well()
        await self.during(ALONE, lambda: asyncio.sleep(seconds))
        await self.during(ADDED, self._add)
        await self.during(DRAINED, self._drain)
        await self.during(JOINED, self._join)
        await self.during(LEFT, self._leave)

    async def until_well(self) -> None:
        """Wait until every node is there, every copy is in sync, and each server owns its share of the partitions."""
        until_s = time.perf_counter() + PATIENCE_S
        while True:
            status = await self._observer.look()
            if status.wellness is Wellness.WELL and self._is_shared(status.servers):
                return
            if time.perf_counter() > until_s:
                raise TimeoutError(f"not well after {PATIENCE_S:g} s: {status.document()}")
            await asyncio.sleep(0.2)

    def _is_shared(self, servers: tuple[ServerStatus, ...]) -> bool:
        shares = sorted(server.partitions for server in servers)
        return len(shares) == len(self._servers) and sum(shares) == PARTITIONS and shares[-1] - shares[0] <= 1

    async def _add(self) -> None:
        self._made += 1
        name = f"new-{self._made}"
        arguments = ["storage", "run", "--directory", str(self._scratch / name), "--name", name]
        node = ChildNode(name, arguments, self._scratch / f"{name}.log")
        await asyncio.to_thread(node.start)
        self._named[name] = node
        await self._operate("storage", "add", name, node.address)
        await self._operate("storage", "balance")
        await self.until_well()

    async def _drain(self) -> None:
        name = next(iter(self._named))  # the one that is there longest
        await self._operate("storage", "drain", name)
        await self._operate("storage", "remove", name)
        await asyncio.to_thread(self._named.pop(name).stop)
        await self.until_well()

    async def _join(self) -> None:
        self._made += 1
        arguments = ["server", "run", "--coordinator", self._cluster.coordinator]
        arguments += ["--config", str(self._scratch / "settings.toml")]
        node = ChildNode("server", arguments, self._scratch / f"server-{self._made}.log")
        await asyncio.to_thread(node.start)
        self._servers.append(node)
        await self.until_well()

    async def _leave(self) -> None:
        await asyncio.to_thread(self._servers.pop(0).stop)
        await self.until_well()

    async def _operate(self, *words: str) -> None:
        """Run a command of `polonaise` as an operator would."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "polonaise.cli", *words, "--coordinator", self._cluster.coordinator),
            stdout=asyncio.subprocess.DEVNULL,
        )
        if await process.wait():
            raise AssertionError(f"polonaise {' '.join(words)} failed")

    async def stop_new_nodes(self) -> None:
        """Stop the nodes that are not the cluster's own."""
        ours = [*self._cluster.servers, *self._cluster.storage]
        for node in [*self._servers, *self._named.values()]:
            if node not in ours:
                await asyncio.to_thread(node.stop)


async def measure(root: Path, megabytes: int, seconds: float, rounds: int, *, in_file: bool) -> dict[str, Waits]:
    """Run the rounds; return how long appends waited during each kind of change."""
    settings = root / "settings.toml"
    settings.write_text(f"[server]\nsettle_s = {SETTLE_S:g}\n")
    plan = LocalPlan.new(Wanted(coordinator="file" if in_file else None, partitions=PARTITIONS))
    cluster = LocalCluster(root / "cluster", partitions=PARTITIONS, addresses=plan.addresses, config=str(settings))
    with cluster:
        async with (
            observer_of(cluster.coordinator, 5.0) as observer,
            polonaise.connect(cluster.coordinator) as log,
        ):
            appender = Appender(log)
            await appender.fill(megabytes * 1_000_000 // len(BODY) // PARTITIONS)
            bench = Bench(cluster, observer, appender, root)
            async with contextlib.AsyncExitStack() as ending:
                ending.push_async_callback(bench.stop_new_nodes)
                async with appender:
                    for _ in range(rounds):
                        await bench.round(seconds)
                await check(log, appender)
    return bench.waits


async def check(log: polonaise.Log, appender: Appender) -> None:
    """Compare lengths with what the appender was told. Its last appends of each partition were given up: may be in."""
    for partition, told in enumerate(appender.committed):
        there = await log.flush(partition) + 1
        if not told <= there <= told + TASKS:
            raise AssertionError(f"partition {partition}: {told} appends were acknowledged, and {there} are in the log")


def page(waits: dict[str, Waits], **options: float) -> list[str]:
    alone = percentile(waits[ALONE].latencies_ms, 99)
    appends = sum(len(each.latencies_ms) for each in waits.values())

    def cells(what: str, each: Waits) -> tuple[str, ...]:
        p99 = percentile(each.latencies_ms, 99)
        took = sum(each.took_s) / len(each.took_s)
        return what, f"{took:.1f}", f"{p99:.1f}", f"{p99 / alone:.2f}", f"{max(each.latencies_ms):,.0f}"

    return [
        f"{command('membership.py', **options)}; {appends:,} appends, of which none failed.",
        "",
        *table(
            ["what happens", "takes s", "p99 ms", "÷ no change", "worst ms"],
            [cells(what, each) for what, each in waits.items()],
        ),
    ]


def main() -> None:
    options = arguments(__doc__, megabytes=200, seconds=20.0, rounds=3, file=False)
    with tempfile.TemporaryDirectory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        waits = runner.run(
            measure(Path(scratch), options.megabytes, options.seconds, options.rounds, in_file=options.file)
        )
    lines = page(waits, megabytes=options.megabytes, seconds=options.seconds, rounds=options.rounds, file=options.file)
    print("\n".join(lines))
    if options.write:
        write_figures("membership.py", lines)


if __name__ == "__main__":
    main()
