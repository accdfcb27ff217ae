"""What do those who do nothing cost a cluster? Idle clients, a reader that never reads, and partitions at rest.

    python benchmarks/idle_clients.py [--clients 1000] [--partitions 1000] [--rounds 3] [--seconds 10] [--idle 30]
        [--file] [--write]

Three storage nodes and two servers, processes of their own, with ZooKeeper (with `--file` a coordinator in a
directory). First one partition: a client keeps eight appends of 100 bytes unanswered, alone; then beside so many
clients in processes of their own, each with a connection and nothing to do; then also beside a reader that mounts the
partition and takes nothing of what it is sent. These take turns, and of each the round with the lowest p99 is told: on
a shared machine most of what disturbs a round is neither. Then a new cluster with many partitions: the time
until all are ready, and what its processes use while nothing is asked for. With `--write` the figures replace the ones
in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import uvloop

import polonaise
from document import arguments, command, table, write_figures
from loads import Load, keep
from polonaise.admin.cluster import Wellness
from polonaise.admin.localplan import LocalPlan, Wanted
from polonaise.admin.opening import observer_of, opened_coordinator
from polonaise.link.protocol.greeting import hello
from polonaise.node.local import ChildNode, LocalCluster
from polonaise.wire.codec import Message
from polonaise.wire.messages import ROLE_CLIENT, Mount, Ping

OUTSTANDING: Final = 8
BODY: Final = bytes(100)
PROCESSES: Final = 4
"""The idle clients are spread over so many processes."""
PATIENCE_S: Final = 300.0
SETTLE_S: Final = 5.0
READER: Final = 2**30
"""The client id of the reader that never reads: no client is given one so high."""


@dataclass
class Idle:
    """What was measured beside idle clients."""

    alone: list[Load] = field(default_factory=list)
    beside_clients: list[Load] = field(default_factory=list)
    beside_reader: list[Load] = field(default_factory=list)
    memory_mb: float = 0.0
    """The most resident memory of a server, at any time."""


@dataclass
class Resting:
    """What so many partitions cost a cluster at rest."""

    partitions: int
    opened_s: float = 0.0
    idle: float = 0.0
    """The share of a core that all processes use together."""
    memory_mb: dict[str, float] = field(default_factory=dict)
    """The resident memory of servers and of storage nodes, each kind summed up."""


def resident_mb(pid: int, *, most: bool = False) -> float:
    """Return the resident memory of a process, now or at most so far."""
    name = "VmHWM:" if most else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pids(nodes: list[ChildNode]) -> list[int]:
    return [node.pid for node in nodes if node.pid is not None]


# ---------------------------------------------------------------------- those who do nothing


async def _be_idle(addresses: str, clients: int, told: Connection) -> None:
    """Open so many clients, each with a connection to a server; end when the parent says so."""
    async with contextlib.AsyncExitStack() as stack:
        for first in range(0, clients, 25):
            logs = [
                await stack.enter_async_context(polonaise.connect(f"polonaise://{addresses}"))
                for _ in range(min(25, clients - first))
            ]
            await asyncio.gather(*(log.high_water_mark(0, timeout=PATIENCE_S) for log in logs))
        told.send(clients)
        await asyncio.to_thread(told.recv)


def _idle_process(addresses: str, clients: int, told: Connection) -> None:
    uvloop.run(_be_idle(addresses, clients, told))


@contextlib.contextmanager
def idle_clients(addresses: str, count: int) -> Iterator[None]:
    """Have so many clients connected and idle, in processes of their own, for the `with` block."""
    spawn = multiprocessing.get_context("spawn")
    started = []
    for number in range(PROCESSES):
        here, there = spawn.Pipe()
        share = count // PROCESSES + (number < count % PROCESSES)
        process = spawn.Process(target=_idle_process, args=(addresses, share, there), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    try:
        connected = sum(here.recv() for _, here in started)
        assert connected == count
        yield
    finally:
        for process, here in started:
            with contextlib.suppress(OSError):
                here.send("end")
            process.join(SETTLE_S)
            if process.is_alive():
                process.kill()
                process.join()


def frame_of(message: Message, *, partition: int = -1) -> bytes:
    return b"".join(bytes(part) for part in message.frame(request=1, partition=partition))


@contextlib.asynccontextmanager
async def reader_that_never_reads(address: str, key: bytes) -> AsyncIterator[None]:
    """Mount partition 0 with all the credit there is, at the end of the log, and take nothing that comes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame_of(hello(ROLE_CLIENT, "a reader that never reads", cluster_key=key, node=READER)))
    await reader.read(1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(frame_of(Mount(1, 0, -1, 0, 0, 0, 2**62), partition=0))

    async def stay() -> None:
        while True:  # a silent peer would be taken for dead
            writer.write(frame_of(Ping()))
            await asyncio.sleep(1)

    staying = asyncio.create_task(stay())
    try:
        yield
        assert not writer.is_closing(), "the reader that never reads was there to the end"
    finally:
        staying.cancel()
        writer.transport.abort()


# ---------------------------------------------------------------------- the measurements


def cluster_in(directory: Path, partitions: int, *, in_file: bool) -> LocalCluster:
    plan = LocalPlan.new(Wanted(coordinator="file" if in_file else None, partitions=partitions))
    return LocalCluster(directory, partitions=partitions, addresses=plan.addresses)


async def until_well(cluster: LocalCluster) -> None:
    """Wait until every partition of the cluster is ready with all its replicas."""
    until_s = time.perf_counter() + PATIENCE_S
    async with observer_of(cluster.coordinator, 5.0) as observer:
        while (status := await observer.look()).wellness is not Wellness.WELL:
            if time.perf_counter() > until_s:
                raise TimeoutError(f"not well after {PATIENCE_S:g} s: {status.wellness}")
            await asyncio.sleep(1.0)


async def beside(cluster: LocalCluster, clients: int, rounds: int, seconds: float) -> Idle:
    """Measure appends to one partition alone, beside idle clients, and beside a reader that never reads."""
    await until_well(cluster)
    addresses = ",".join(server.address for server in cluster.servers)
    async with opened_coordinator(cluster.coordinator) as (_, coordinator):
        key = (await coordinator.describe()).key
        owner = (await coordinator.assignment()).value.owners[0].address
    found = Idle()
    async with polonaise.connect(cluster.coordinator) as log:

        async def load() -> Load:
            return await keep(lambda: log.append(BODY, partition=0), OUTSTANDING, seconds)

        await load()
        for _ in range(rounds):
            found.alone.append(await load())
            with idle_clients(addresses, clients):
                await asyncio.sleep(SETTLE_S)
                found.beside_clients.append(await load())
                async with reader_that_never_reads(owner, key):
                    await asyncio.sleep(SETTLE_S)
                    found.beside_reader.append(await load())
            await asyncio.sleep(SETTLE_S)
    found.memory_mb = max(resident_mb(pid, most=True) for pid in pids(cluster.servers))
    return found


def rest(directory: Path, partitions: int, idle_s: float, *, in_file: bool) -> Resting:
    """Start a cluster with so many partitions, and measure it at rest."""
    found = Resting(partitions)
    began_s = time.perf_counter()
    with cluster_in(directory, partitions, in_file=in_file) as cluster:
        asyncio.run(until_well(cluster))
        found.opened_s = time.perf_counter() - began_s
        time.sleep(SETTLE_S)
        everyone = pids(cluster.nodes)
        began_s, used_s = time.perf_counter(), sum(map(cpu_s, everyone))
        time.sleep(idle_s)
        found.idle = (sum(map(cpu_s, everyone)) - used_s) / (time.perf_counter() - began_s)
        for kind, nodes in (("servers", cluster.servers), ("storage", cluster.storage)):
            found.memory_mb[kind] = sum(map(resident_mb, pids(nodes)))
    return found


def page(idle: Idle, clients: int, one: Resting, many: Resting, *, how: str) -> list[str]:
    rounds = [
        ("alone", idle.alone),
        (f"beside {clients:,} idle clients", idle.beside_clients),
        ("and a reader that never reads", idle.beside_reader),
    ]
    loads = [(what, min(each, key=lambda load: load.p99_ms)) for what, each in rounds]
    more = many.partitions - one.partitions

    def each_kb(kind: str) -> float:
        return 1024 * (many.memory_mb[kind] - one.memory_mb[kind]) / more

    return [
        how,
        "",
        *table(
            [f"{OUTSTANDING} appends unanswered", "per second", "median ms", "p99 ms"],
            [(what, f"{load.per_second:,.0f}", f"{load.p50_ms:.1f}", f"{load.p99_ms:.1f}") for what, load in loads],
        ),
        "",
        f"The most memory that a server took: {idle.memory_mb:.0f} MB.",
        "",
        *table(
            ["partitions at rest, all processes", f"{one.partitions:,}", f"{many.partitions:,}"],
            [
                ("from the start until all are ready, s", *(f"{each.opened_s:.1f}" for each in (one, many))),
                ("idle, % of a core", *(f"{100 * each.idle:.1f}" for each in (one, many))),
                *(
                    (f"memory of the {kind}, MB", *(f"{each.memory_mb[key]:.0f}" for each in (one, many)))
                    for kind, key in (("2 servers", "servers"), ("3 storage nodes", "storage"))
                ),
            ],
        ),
        "",
        f"For each partition: {each_kb('servers'):.0f} KB on its server, and {each_kb('storage') / 3:.0f} KB on each "
        "of three storage nodes.",
    ]


def main() -> None:
    options = arguments(__doc__, clients=1_000, partitions=1_000, rounds=3, seconds=10.0, idle=30.0, file=False)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with cluster_in(root / "clients", 1, in_file=options.file) as cluster:
            idle = uvloop.run(beside(cluster, options.clients, options.rounds, options.seconds))
        one = rest(root / "one", 1, options.idle, in_file=options.file)
        many = rest(root / "many", options.partitions, options.idle, in_file=options.file)
    asked = {name: getattr(options, name) for name in ("clients", "partitions", "rounds", "seconds", "idle", "file")}
    made = command("idle_clients.py", **asked)
    how = f"{made}, load {os.getloadavg()[1]:.0f} over the last minutes."
    lines = page(idle, options.clients, one, many, how=how)
    print("\n".join(lines))
    if options.write:
        write_figures("idle_clients.py", lines)


if __name__ == "__main__":
    main()
