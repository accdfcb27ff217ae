"""How large can a cluster be? 100 servers and 10,000 partitions on paper, in simulation, and on real nodes.

    python benchmarks/scale.py [--servers 100] [--partitions 10000] [--resident 1000] [--write]

The rule that assigns partitions is timed at full size, and so is the value that the coordinator keeps of it. What a
restart of the whole cluster costs the coordinator is counted in the simulator, in clusters of several sizes with three
storage nodes; what grows with partitions, and what with servers, is told apart, and added up for the full size. The
memory per partition is the difference between real processes, with one partition and with `--resident`. With `--write`
the figures replace the ones in docs/scale.md.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polonaise
from document import DOCUMENT, arguments, command, table, write_figures
from polonaise.client.settings import ClientSettings
from polonaise.coordination.backend import Entry
from polonaise.coordination.values import ASSIGNMENT, Assignment
from polonaise.host import Host
from polonaise.link.settings import LinkSettings
from polonaise.node.local import ChildNode, LocalCluster
from polonaise.server.assignment import Candidate, assign
from polonaise.server.settings import ServerSettings
from polonaise_proving.stages.simulated.cluster import Cluster, Knobs, Node
from polonaise_proving.stages.simulated.world import World

ZOOKEEPER_BYTES_MAX = 1_048_575
"""The largest value that ZooKeeper takes, unless `jute.maxbuffer` is changed on every machine."""
SIZES = ((2, 20), (2, 60), (6, 60))
"""Servers and partitions of the simulated clusters: two differ in partitions only, two in servers only."""
AT_ONCE = 64
SETTLE_S = 5.0


# ---------------------------------------------------------------------- the rule


@dataclass
class Rule:
    """What the rule of assignment costs at one size."""

    first_s: float
    died_s: float
    died_moves: int
    returned_s: float
    returned_moves: int
    value_bytes: int


def address_of(server: int) -> str:
    return f"server-{server:03}.example.com:7000"


def moves(before: Assignment, after: Assignment) -> int:
    return sum(owner.server != after.owners[partition].server for partition, owner in before.owners.items())


def rule_at(servers: int, partitions: int) -> Rule:
    candidates = {server: Candidate(address_of(server)) for server in range(1, servers + 1)}

    def timed(current: Assignment, living: Mapping[int, Candidate]) -> tuple[Assignment, float]:
        began = time.perf_counter()
        made = assign(current, living, partitions)
        return made, time.perf_counter() - began

    first, first_s = timed(Assignment(), candidates)
    left = {server: candidate for server, candidate in candidates.items() if server != servers // 2}
    without, died_s = timed(first, left)
    again, returned_s = timed(without, candidates)
    return Rule(first_s, died_s, moves(first, without), returned_s, moves(without, again), len(again.encode()))


# ---------------------------------------------------------------------- a restart, in simulation


@dataclass
class Restart:
    """What the coordinator had to do until every partition was owned, in session and settled."""

    servers: int
    partitions: int
    counts: Counter[str]
    """Requests by kind. The assignment's are counted apart from those of partitions."""
    sizes: Counter[str]
    """The bytes of the values in them."""
    seconds: float
    """Virtual seconds until every partition had a session again."""


def counted(cluster: Cluster, restart: Restart) -> None:
    """Count what the simulated coordinator is asked for from now on."""
    service: Any = cluster.service
    read, change, registered = service.read, service.compare_and_set, service.registered

    def kind(what: str, key: str) -> str:
        return (
            f"{what} {'assignment' if key == ASSIGNMENT else 'partition' if key.startswith('partition') else 'other'}"
        )

    def note(what: str, entry: Entry | None) -> None:
        restart.counts[what] += 1
        restart.sizes[what] += len(entry.contents) if entry is not None else 0

    def counted_read(key: str) -> Entry | None:
        entry: Entry | None = read(key)
        note(kind("read", key), entry)
        return entry

    def counted_change(key: str, contents: bytes, present: Entry | None, least: int) -> Entry | None:
        entry: Entry | None = change(key, contents, present, least)
        note(kind("change", key), entry)
        return entry

    def counted_members(folder: str) -> dict[str, Entry]:
        found: dict[str, Entry] = registered(folder)
        restart.counts["list members"] += 1
        restart.sizes["list members"] += sum(len(entry.contents) for entry in found.values())
        return found

    service.read, service.compare_and_set, service.registered = counted_read, counted_change, counted_members


async def _no_client(node: Node, host: Host) -> None:
    raise NotImplementedError("this cluster has no clients")


def restart_of(servers: int, partitions: int) -> Restart:
    world = World(1)
    knobs = replace(
        Knobs.draw(world.random("knobs")),
        storage=3, servers=servers, clients=0, partitions=partitions, leases=True,
        link=LinkSettings(), server=ServerSettings(settle_s=SETTLE_S), client=ClientSettings(),
        segment_bytes_max=2**20,
    )  # fmt: skip
    cluster = Cluster(world, knobs, _no_client)
    restart = Restart(servers, partitions, Counter(), Counter(), 0.0)

    def in_session() -> bool:
        owned = [
            served.owner.session is not None for each in cluster.running_servers for served in each.partitions.values()
        ]
        return len(owned) == partitions and all(owned)

    def balanced() -> bool:
        loads = [len(each.partitions) for each in cluster.running_servers]
        return in_session() and len(loads) == servers and max(loads) - min(loads) <= 1

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.05)

    async def story() -> None:
        await cluster.start()
        await until(balanced)
        for node in cluster.nodes:
            node.hold_down()
            node.crash()
        await until(lambda: not any(node.running for node in cluster.nodes))
        counted(cluster, restart)
        began_s = world.now
        for node in cluster.nodes:
            node.let_up()
        await until(in_session)
        restart.seconds = world.now - began_s
        await until(balanced)

    world.run(story())
    return restart


def added_up(few: Restart, more: Restart, wide: Restart, servers: int, partitions: int) -> tuple[list[list[str]], int]:
    """Return a row per kind of request for the full size, and the number of all.

    `few` and `more` differ in partitions only, `more` and `wide` in servers only; what grows is taken to grow evenly.
    """
    rows, total = [], 0
    for kind in sorted(few.counts | more.counts | wide.counts):
        each_partition = (more.counts[kind] - few.counts[kind]) / (more.partitions - few.partitions)
        each_server = (wide.counts[kind] - more.counts[kind]) / (wide.servers - more.servers)
        rest = few.counts[kind] - each_partition * few.partitions - each_server * few.servers
        count = max(0, round(each_partition * partitions + each_server * servers + rest))
        total += count
        rows.append([
            kind, *(f"{each.counts[kind]:,}" for each in (few, more, wide)),
            f"{each_partition:.2f}", f"{each_server:.2f}", f"{count:,}",
        ])  # fmt: skip
    return rows, total


def assignment_bytes_read(wide: Restart, rule: Rule, servers: int) -> float:
    """Return how many bytes of the assignment all servers read in a restart, if each reads it as often as here."""
    return wide.counts["read assignment"] / wide.servers * servers * rule.value_bytes


# ---------------------------------------------------------------------- memory of real nodes


def resident(node: ChildNode | None) -> int:
    assert node is not None
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def append_to_each(address: str, partitions: int) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async with polonaise.connect(address) as log:

        async def append(partition: int) -> None:
            async with turn:
                await log.append(bytes(100), partition=partition)

        await asyncio.gather(*map(append, range(partitions)))


def memory_of(partitions: int, scratch: Path) -> tuple[int, int]:
    """Return the resident bytes of a server and of a storage node once each partition has an append."""
    with LocalCluster(scratch / str(partitions), partitions=partitions) as cluster:
        asyncio.run(append_to_each(cluster.coordinator, partitions))
        time.sleep(SETTLE_S)
        return resident(cluster.server), resident(cluster.storage[0])


# ---------------------------------------------------------------------- the page


def main() -> None:
    options = arguments(__doc__, servers=100, partitions=10_000, resident=1_000)
    servers, partitions, many = options.servers, options.partitions, options.resident
    rule = rule_at(servers, partitions)
    few, more, wide = (restart_of(*size) for size in SIZES)
    rows, total = added_up(few, more, wide, servers, partitions)
    with tempfile.TemporaryDirectory() as scratch:
        one, full = memory_of(1, Path(scratch)), memory_of(many, Path(scratch))
    each = [(with_many - with_one) / (many - 1) / 1024 for with_one, with_many in zip(one, full, strict=True)]
    sizes = [f"{each.servers} servers, {each.partitions} partitions" for each in (few, more, wide)]
    per_partition = rule.value_bytes / partitions
    lines = [
        f"{command('scale.py', servers=servers, partitions=partitions, resident=many)}.",
        "",
        *table(
            [f"the rule, {servers:,} servers, {partitions:,} partitions", "seconds", "partitions that move"],
            [
                ["the first assignment", f"{rule.first_s:.2f}", "0"],
                ["a server dies", f"{rule.died_s:.2f}", f"{rule.died_moves:,}"],
                ["it comes back", f"{rule.returned_s:.2f}", f"{rule.returned_moves:,}"],
            ],
        ),
        "",
        *table(
            ["the assignment at the coordinator", ""],
            [
                [f"bytes with {partitions:,} partitions", f"{rule.value_bytes:,}"],
                ["bytes for each", f"{per_partition:.1f}"],
                ["part of what ZooKeeper takes in one value, %", f"{100 * rule.value_bytes / ZOOKEEPER_BYTES_MAX:.0f}"],
                ["partitions that fit into one value", f"{int(ZOOKEEPER_BYTES_MAX / per_partition):,}"],
            ],
        ),
        "",
        *table(
            [
                "requests to the coordinator in a restart of all nodes", *sizes, "each partition", "each server",
                f"{servers:,} servers, {partitions:,} partitions",
            ],
            [*rows, ["all", *(f"{sum(each.counts.values()):,}" for each in (few, more, wide)), "", "", f"{total:,}"]],
        ),
        "",
        f"Until all partitions took appends: {few.seconds:.1f}, {more.seconds:.1f} and {wide.seconds:.1f} virtual "
        f"seconds. If {servers:,} servers read the assignment as often as those of the last cluster, that is "
        f"{assignment_bytes_read(wide, rule, servers) / 1e6:,.0f} MB.",
        "",
        *table(
            ["memory, MB", "1 partition", f"{many:,} partitions", "KB for each"],
            [
                [name, f"{one[place] / 1e6:.0f}", f"{full[place] / 1e6:.0f}", f"{each[place]:.0f}"]
                for place, name in enumerate(("the server that owns them all", "a storage node"))
            ],
        ),
    ]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        write_figures("scale.py", lines, DOCUMENT.with_name("scale.md"))


if __name__ == "__main__":
    main()
