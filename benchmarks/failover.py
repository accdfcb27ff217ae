"""How long do appends wait when a process stops, dies or hangs, or when its host is cut off?

    python benchmarks/failover.py [--rounds 20] [--only BEGINNING] [--loopback] [--write]

Three storage nodes, two servers that share four partitions, and three servers of ZooKeeper, all processes of their own.
Each is on a host of its own, a network namespace, where root runs this and there is `ip`. With `--loopback`, or
elsewhere, all are on this machine, and no host is cut off. A client that knows the servers alone appends to each
partition, one after the other, all the time. Each round of each scenario does something to one node, and measures the
longest time between two commits of one partition from then on until all is well again. No append may fail. At the end
the log is read: it holds each acknowledged append once, in order, and nothing else but perhaps the last append of a
partition, whose answer was not waited for.

With `--write` the tables replace those in docs/performance.md: one for nodes, and one for ZooKeeper's servers.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from polonaise.admin.cluster import ClusterObserver, Wellness
from polonaise.admin.localplan import FILE, ZOOKEEPER, LocalPlan, Wanted
from polonaise.admin.opening import observer_of
from polonaise.admin.zookeeper import ZooKeeperEnsemble, ZooKeeperPlace, ZooKeeperServer
from polonaise.coordination.lease import LEASE_S
from polonaise.host.address import HostPort
from polonaise.node.local import ChildNode, LocalAddresses, LocalCluster
from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.stages.hosts.hosts import NamespaceHosts, namespaces_possible
from polonaise_proving.stages.hosts.leftovers import Notes, sweep

PARTITIONS: Final = 4
STORAGE_HOSTS: Final = ("storage-0", "storage-1", "storage-2")
SERVER_HOSTS: Final = ("server-0", "server-1")
ZOOKEEPER_HOSTS: Final = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
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
        while True:
            # An append that fails ends the benchmark: none may.
            await self._log.append(body_of(self.committed[partition]), partition=partition)
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

    def __init__(self, cluster: BenchCluster, observer: ClusterObserver, appender: Appender) -> None:
        self.cluster = cluster
        self._observer = observer
        self._appender = appender
        self._random = random.Random(1)

    def any_server(self) -> ChildNode:
        return self._random.choice(self.cluster.servers)

    def any_storage(self) -> ChildNode:
        return self._random.choice(self.cluster.storage)

    async def zookeeper_leader(self) -> ZooKeeperServer:
        """Wait until all servers of ZooKeeper serve, and return the one that leads."""
        servers = self.cluster.ensemble.servers
        until_s = time.perf_counter() + PATIENCE_S
        while not all([await asyncio.to_thread(server.is_serving) for server in servers]):
            if time.perf_counter() > until_s:
                raise TimeoutError(f"ZooKeeper does not serve after {PATIENCE_S:g} s")
            await asyncio.sleep(0.1)
        return next(server for server in servers if server.is_leader())

    async def zookeeper_follower(self) -> ZooKeeperServer:
        """Return a server of ZooKeeper that does not lead."""
        leader = await self.zookeeper_leader()
        return self._random.choice([each for each in self.cluster.ensemble.servers if each is not leader])

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


@contextmanager
def hosts_of_their_own() -> Iterator[NamespaceHosts]:
    sweep()
    notes = Notes()  # so that the next run removes what is made here, if this process is killed
    try:
        hosts = NamespaceHosts(notes.prefix, (*STORAGE_HOSTS, *SERVER_HOSTS, *ZOOKEEPER_HOSTS))
        try:
            yield hosts
        finally:
            hosts.close()
    finally:
        notes.tidy()


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


async def server_cut_off(bench: Bench) -> None:
    await cut_off(bench.cluster, bench.any_server(), 2 * LEASE_S)


async def storage_cut_off(bench: Bench) -> None:
    await cut_off(bench.cluster, bench.any_storage(), 2 * LEASE_S)


async def zookeeper_leader_killed(bench: Bench) -> None:
    leader = await bench.zookeeper_leader()
    await in_thread(leader.kill)
    await asyncio.sleep(2 * LEASE_S)
    await in_thread(leader.start)


async def zookeeper_leader_hangs(bench: Bench) -> None:
    await zookeeper_hangs(await bench.zookeeper_leader(), 2 * LEASE_S)


async def zookeeper_follower_hangs(bench: Bench) -> None:
    await zookeeper_hangs(await bench.zookeeper_follower(), 2 * LEASE_S)


async def zookeeper_leader_cut_off(bench: Bench) -> None:
    leader = await bench.zookeeper_leader()
    await host_cut_off(bench.cluster, ZOOKEEPER_HOSTS[leader.number - 1], 2 * LEASE_S)


async def zookeeper_hangs(server: ZooKeeperServer, for_s: float) -> None:
    server.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        server.signal(signal.SIGCONT)


async def cut_off(cluster: BenchCluster, node: ChildNode, for_s: float) -> None:
    await host_cut_off(cluster, host_of(node.name), for_s)


async def host_cut_off(cluster: BenchCluster, host: str, for_s: float) -> None:
    assert cluster.hosts is not None
    cut = Fault(FaultKind.CUT, host)
    cluster.hosts.cut(cut)
    try:
        await asyncio.sleep(for_s)
    finally:
        cluster.hosts.heal(cut)


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
    needs_hosts: bool = False
    """Whether nodes have to be on hosts of their own."""


SCENARIOS: Final = (
    Scenario("server-stops", "a server is stopped (SIGTERM), and started again", server_stops),
    Scenario("server-killed", "a server is killed (SIGKILL)", server_killed),
    Scenario("server-hangs", "a server hangs (SIGSTOP), and goes on after 10 s", server_hangs),
    Scenario("storage-killed", "a storage node is killed, and started again", storage_killed),
    Scenario("storage-hangs", "a storage node hangs (SIGSTOP), and goes on after 10 s", storage_hangs),
    Scenario("server-cut-off", "a server's host is cut off for 10 s", server_cut_off, needs_hosts=True),
    Scenario("storage-cut-off", "a storage node's host is cut off for 10 s", storage_cut_off, needs_hosts=True),
    Scenario(
        "zookeeper-leader-killed", "ZooKeeper's leader is killed, and started after 10 s", zookeeper_leader_killed
    ),
    Scenario("zookeeper-leader-hangs", "ZooKeeper's leader hangs (SIGSTOP) for 10 s", zookeeper_leader_hangs),
    Scenario("zookeeper-follower-hangs", "another server of ZooKeeper hangs for 10 s", zookeeper_follower_hangs),
    Scenario(
        "zookeeper-leader-cut-off",
        "ZooKeeper's leader's host is cut off for 10 s",
        zookeeper_leader_cut_off,
        needs_hosts=True,
    ),
)


def host_of(node: str) -> str:
    """Return the name of a node's host."""
    return node.replace(" ", "-")


class BenchCluster(LocalCluster):
    """A cluster on this machine, or one whose nodes are on hosts of their own, and ZooKeeper's servers too."""

    def __init__(self, directory: Path, hosts: NamespaceHosts | None) -> None:
        self.hosts = hosts
        settings = directory / "settings.toml"
        settings.write_text(f"[server]\nsettle_s = {SETTLE_S:g}\n")
        addresses = LocalPlan.new(Wanted(partitions=PARTITIONS, coordinator=FILE)).addresses
        places: list[ZooKeeperPlace] = []
        if hosts is not None:
            addresses = LocalAddresses(
                tuple(f"{hosts.address(name)}:7100" for name in STORAGE_HOSTS),
                tuple(f"{hosts.address(name)}:7000" for name in SERVER_HOSTS),
            )
            places = [
                ZooKeeperPlace(HostPort(hosts.address(name), 2181), 2888, 3888, hosts.prefix(name))
                for name in ZOOKEEPER_HOSTS
            ]
        super().__init__(directory, partitions=PARTITIONS, addresses=addresses, config=str(settings))
        self.ensemble = ZooKeeperEnsemble(directory / "zookeeper", servers=len(ZOOKEEPER_HOSTS), places=places)
        self.coordinator = f"zookeeper://{self.ensemble.hosts}/bench"

    def start(self, given_up: Callable[[], bool] = lambda: False) -> None:
        self.ensemble.start(PATIENCE_S)
        super().start(given_up)

    def stop(self) -> None:
        super().stop()
        self.ensemble.stop()

    def _node(self, name: str, arguments: list[str], address: str) -> ChildNode:
        host = host_of(name)
        prefix = self.hosts.prefix(host) if self.hosts is not None else []
        return ChildNode(name, arguments, self.directory / f"{host}.log", address=address, prefix=prefix)


async def measure(
    root: Path, scenarios: list[Scenario], rounds: int, hosts: NamespaceHosts | None
) -> dict[str, list[float]]:
    """Run the rounds; return the waits of each scenario, in seconds."""
    waits: dict[str, list[float]] = {}
    with BenchCluster(root, hosts) as cluster:
        async with (
            observer_of(cluster.coordinator, 5.0) as observer,
            polonaise.connect("polonaise://" + ",".join(server.address for server in cluster.servers)) as log,
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
    """Compare the log with what the appender was told. Its last append of each partition was given up: it may be in."""
    for partition, told in enumerate(appender.committed):
        end = await log.flush(partition)
        there = [tx.data async for tx in log.read(partition, until=end, timeout=PATIENCE_S)]
        if there != [body_of(number) for number in range(len(there))] or len(there) not in (told, told + 1):
            raise AssertionError(f"partition {partition}: the log is not the {told} appends that were acknowledged")


def body_of(number: int) -> bytes:
    """Return the body of a partition's append with this number, of 100 bytes."""
    return (b"%d" % number).ljust(100)


def page(waits: dict[str, list[float]], rounds: int, where: str, only: str) -> list[str]:
    what = {scenario.name: scenario.what for scenario in SCENARIOS}
    return [
        f"{command('failover.py', only=only, rounds=rounds)}; {rounds} rounds each, nodes on {where}.",
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
    options = arguments(__doc__, rounds=20, only="", loopback=False)
    impossible = "--loopback was given" if options.loopback else namespaces_possible()
    possible = [scenario for scenario in SCENARIOS if not (impossible and scenario.needs_hosts)]
    scenarios = [scenario for scenario in possible if scenario.name.startswith(options.only)]
    if not scenarios:
        raise SystemExit(f"--only is the beginning of one of {', '.join(scenario.name for scenario in possible)}")
    if impossible:
        print(f"no host is cut off: {impossible}", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory() as scratch,
        nullcontext() if impossible else hosts_of_their_own() as hosts,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        waits = runner.run(measure(Path(scratch), scenarios, options.rounds, hosts))
    where = "this machine" if impossible else "hosts of their own"
    zookeeper = {name: each for name, each in waits.items() if name.startswith(ZOOKEEPER)}
    nodes = {name: each for name, each in waits.items() if name not in zookeeper}
    for figures, name in ((nodes, "failover.py"), (zookeeper, "failover.py, ZooKeeper")):
        if not figures:
            continue
        lines = page(figures, options.rounds, where, options.only)
        print("\n".join(lines))
        if options.write:
            write_figures(name, lines)


if __name__ == "__main__":
    main()
