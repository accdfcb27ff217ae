"""`make torture-delivery`: targets, players and the nodes of the log are killed and stopped at random moments.

A writer appends meanwhile. At the end `judges.rows` compares what each target has applied, in its order, with the
route of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

import polonaise
from polonaise.errors import PolonaiseError
from polonaise.node.local import LocalCluster
from polonaise_proving.judges.rows import Entries, mistakes, routed
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.arguments import above_zero
from polonaise_proving.scenarios.running import Figures
from polonaise_proving.stages.databaseservers import KINDS, Databases
from polonaise_proving.stages.hosts.parts import NodePart
from polonaise_proving.stages.processes import PATIENCE_S, Program
from polonaise_proving.work.deliverytarget import applied
from polonaise_proving.work.deliverywriter import PARTITIONS, TARGETS

PLAYERS: Final = 2
LEASE_S: Final = 2.0
CAUGHT_UP_S_MAX: Final = 120.0
"""The longest that the targets may take, once nothing fails any more, to get what they lack."""


@dataclass
class DeliveryTortureReport:
    """The faults of a campaign, what was delivered, and the mistakes found."""

    faults: Counter[str] = field(default_factory=Counter)
    """How often, by what was done to what: `kill a target`."""
    transactions: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    """By target, the number of entries."""
    caught_up_s: float = 0.0
    """How long it took, once nothing failed any more, until every target had all."""
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> list[Figures]:
        figures: dict[str, int | str] = dict(sorted(self.faults.items()))
        figures["transactions in the log"] = self.transactions
        for name, count in self.delivered.items():
            figures[f"entries of target {name}"] = count
        figures["until every target had all, once nothing failed any more"] = f"{self.caught_up_s:.1f} s"
        figures["mistakes"] = len(self.wrong)
        return [Figures("Faults of targets, players and the log", figures)]


class _Victim(Protocol):
    """Something that may be killed or stopped."""

    name: str

    def signal(self, number: signal.Signals, /) -> None: ...

    def start(self) -> None: ...


class DeliveryTorture:
    """A cluster, targets, players and a writer, each a process. Use as a context manager: none outlives it."""

    def __init__(self, directory: Path, seed: int, schemes: Sequence[str], *, database: str = "sqlite") -> None:
        """Targets are served by these transports in turn, and keep what they apply in this kind of database."""
        self._databases = Databases(database, directory)
        self._directory = directory
        self._random = random.Random(seed)
        self._cluster = LocalCluster(directory / "cluster", storage=3, servers=2, partitions=PARTITIONS, apart=True)
        self._seed = seed
        self._schemes = [scheme for _, scheme in zip(TARGETS, itertools.cycle(schemes), strict=False)]
        self._programs: list[Program] = []
        self._down: set[str] = set()
        self._stack = contextlib.ExitStack()
        self.report = DeliveryTortureReport()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.enter_context(self._databases)
            stack.callback(self._end)
            self._cluster.start()
            self._log = "polonaise://" + ",".join(server.address for server in self._cluster.servers)
            self._start_programs()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for program in self._programs:
            program.kill()
        for node in self._cluster.nodes:
            node.ask_to_end(signal.SIGCONT)
        self._cluster.stop()

    def _start_programs(self) -> None:
        self._shards = [self._start_shard(name, scheme) for name, scheme in zip(TARGETS, self._schemes, strict=True)]
        settings = self._directory / "player.toml"
        settings.write_text(self._player_settings())
        command = ["polonaise.cli", "player", "start", "--config", str(settings)]
        self._players = [self._program(f"player-{number}", command, speaks=False) for number in range(PLAYERS)]
        for player in self._players:
            player.start()
        self._writer = self._program("writer", ["polonaise_proving.work.deliverywriter", self._log, str(self._seed)])
        self._writer.start()
        self._writer.says("listening")

    def _start_shard(self, name: str, scheme: str) -> Program:
        address = f"{scheme}://127.0.0.1:0"
        command = ["polonaise_proving.work.deliverytarget", self._databases.url(name), address]
        shard = self._program(f"target-{name}", command)
        shard.start()
        # In its later lives it has the port that the system has chosen for the first one.
        shard.command[2] = shard.says("listening ").removeprefix("listening ")
        return shard

    def _player_settings(self) -> str:
        lines = [
            "[player]",
            'name = "torture"',
            f'log = "{self._log}"',
            'route = "polonaise_proving.work.deliverywriter:route"',
            f"lease_s = {LEASE_S}",
            # Quick, so that a minute holds many of each.
            "open_s_max = 1.0",
            "progress_s_max = 2.0",
            "retry_s_max = 0.5",
            # Small, so that targets are caught up by reads, and leave the main stream.
            "queue_entries_max = 500",
            "join_transactions = 100",
        ]
        for name, shard in zip(TARGETS, self._shards, strict=True):
            lines += [f"[targets.{name}]", f'address = "{shard.command[2]}"']
        return "\n".join(lines) + "\n"

    def _program(self, name: str, command: list[str], *, speaks: bool = True) -> Program:
        program = Program(name, self._directory / f"{name}.log", command=command, speaks=speaks)
        self._programs.append(program)
        return program

    # ------------------------------------------------------------------ faults

    def run(self, seconds: float, progress: Callable[[float], None] = lambda done_s: None) -> None:
        """Let faults happen for so long, then end them, and compare. Raises `GaveUp`."""
        began_s = time.monotonic()
        heals: list[tuple[float, int, str, Callable[[], None]]] = []
        number = itertools.count()
        next_s = began_s + 1.0
        while (now_s := time.monotonic()) < began_s + seconds:
            progress(now_s - began_s)
            while heals and heals[0][0] <= now_s:
                self._heal(*heapq.heappop(heals)[2:])
            if now_s >= next_s:
                next_s = now_s + self._random.uniform(0.1, 1.2)
                if (drawn := self._draw()) is not None:
                    lasts_s, heal = self._harm(*drawn)
                    heapq.heappush(heals, (now_s + lasts_s, next(number), drawn[1].name, heal))
            self._check_alive()
            time.sleep(0.01)
        for _, _, name, heal in heals:
            self._heal(name, heal)

    def _draw(self) -> tuple[str, _Victim] | None:
        """Return who is to be harmed next, and its kind; None if the one that was drawn may not be."""
        kinds = {"target": 4, "player": 4, "server": 1, "storage node": 1, "database": int(self._databases.can_crash)}
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        victims: dict[str, Sequence[_Victim]] = {
            "target": self._shards,
            "player": self._players,
            "server": [NodePart(node.name, node) for node in self._cluster.servers],
            "storage node": [NodePart(node.name, node) for node in self._cluster.storage],
            "database": [self._databases],
        }
        if kind in ("server", "storage node") and any(each.name in self._down for each in victims[kind]):
            return None  # a quorum stays, and a server: the log goes on
        victim = self._random.choice(victims[kind])
        return None if victim.name in self._down else (kind, victim)

    def _harm(self, kind: str, victim: _Victim) -> tuple[float, Callable[[], None]]:
        """Kill, stop or end the victim; return for how long, and what ends that."""
        ways = ["kill"] + (["stop"] if kind != "database" else [])
        ways += ["end"] if kind in ("target", "player") else []
        way = self._random.choice(ways)
        self._down.add(victim.name)
        self.report.faults[f"{way} a {kind}"] += 1
        if way == "stop":
            victim.signal(signal.SIGSTOP)
            # Longer than a lease, and than a target may be silent, or shorter.
            return self._random.choice((0.1, 1.0, 2.0 * LEASE_S)), lambda: victim.signal(signal.SIGCONT)
        victim.signal(signal.SIGKILL if way == "kill" else signal.SIGTERM)
        return self._random.uniform(0.0, 2.0), victim.start

    def _heal(self, name: str, heal: Callable[[], None]) -> None:
        self._down.discard(name)
        heal()

    def _check_alive(self) -> None:
        for each in self._programs:
            if each.name not in self._down and (how := each.ended()):
                raise GaveUp(f"{each.name} has ended by itself: {how}")

    # ------------------------------------------------------------------ the end

    async def compare(self) -> None:
        """After `run`, wait until every target has got what it lacks, and compare. Raises `GaveUp`."""
        self._writer.signal(signal.SIGTERM)
        self._writer.wait_ended()
        self._down.add(self._writer.name)
        began_s = time.monotonic()
        # For each target: one that had all that is due when it was last started would be compared before it is
        # delivered anything again, and what is doubled is doubled then.
        await self._append_last()
        log = await self._read_log()
        self.report.transactions = sum(len(bodies) for bodies in log.values())
        due = {name: routed(log, name) for name in TARGETS}
        while True:
            found = {name: applied(self._databases.url(name)) for name in TARGETS}
            self.report.wrong = [
                each for name in TARGETS for each in mistakes(f"target {name}", due[name], found[name])
            ]
            self.report.caught_up_s = time.monotonic() - began_s
            lacking = any(_count(found[name]) < _count(due[name]) for name in TARGETS)
            if not (self.report.wrong and lacking) or self.report.caught_up_s > CAUGHT_UP_S_MAX:
                break
            self._check_alive()
            await asyncio.sleep(0.2)
        self.report.delivered = {name: _count(found[name]) for name in TARGETS}
        for each in (*self._players, *self._shards):
            each.signal(signal.SIGTERM)
        for each in (*self._players, *self._shards):
            # One that has just been started may die of it before it can hear it.
            if (status := each.wait_ended()) not in (0, -signal.SIGTERM):
                self.report.wrong.append(f"{each.name} stopped with status {status}: {each.last_words}")

    async def _append_last(self) -> None:
        """Append an entry for every target to each partition."""
        async with polonaise.connect(self._log) as log, asyncio.timeout(PATIENCE_S):
            for partition in range(PARTITIONS):
                while True:
                    with contextlib.suppress(PolonaiseError):
                        await log.append(f"{TARGETS}:last".encode(), partition=partition)
                        break

    async def _read_log(self) -> dict[int, list[tuple[int, bytes]]]:
        async with polonaise.connect(self._log) as log:
            found = {}
            for partition in range(PARTITIONS):
                found[partition] = [(tx.id, tx.data) async for tx in log.read(partition, timeout=PATIENCE_S)]
            return found


def _count(entries: Entries) -> int:
    return sum(len(each) for each in entries.values())


def main() -> int:
    parser = running.options("delivery", "make torture-delivery MINUTES=10 SEED=1 DATABASE=sqlite", __doc__)
    parser.add_argument("--minutes", type=above_zero, default=10.0)
    parser.add_argument("--database", choices=KINDS, default="sqlite", help="in which targets keep what they apply")
    options = running.parsed(parser)

    def campaign(directory: Path, progress: running.Progressed) -> DeliveryTortureReport:
        with DeliveryTorture(directory, options.seed, ("link", "grpc"), database=options.database) as begun:
            begun.run(60 * options.minutes, progress)
            asyncio.run(begun.compare())
        return begun.report

    return running.carry_out(options, 60 * options.minutes, "seconds", campaign)


if __name__ == "__main__":
    sys.exit(main())
