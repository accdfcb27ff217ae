"""`make soak`: a whole cluster works for a while, loses processes, and must be as small at the end as at the beginning.

Three storage nodes, two servers of which one stands by, and clients that do all that an application may, giving up now
and then, are started, killed, stopped and sampled; `judges.flatness` says which figures of which process have grown,
and `judges.histories` compares what clients were told with what is in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polonaise
from polonaise.admin.asking import health_on
from polonaise.errors import PolonaiseError
from polonaise.host.real import RealHost
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.node.local import make_cluster
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER
from polonaise_proving.judges.flatness import SAMPLES_MIN, Course, Stretch, courses
from polonaise_proving.judges.histories import TOLD_CHECKS, violations
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.history import Fates, Line, LineKind, PartitionHistory
from polonaise_proving.record.journal import Follower, journal_of, lines_of
from polonaise_proving.record.sampling import FIGURES, Sample, look
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.arguments import above_zero
from polonaise_proving.scenarios.running import Figures
from polonaise_proving.stages.processes import PATIENCE_S, Program
from polonaise_proving.stages.soaknode import PARTITIONS, SEGMENT_BYTES, body
from polonaise_proving.work.leaks import LEAKS

EVERY_S: Final = 0.5
"""Seconds between two samples of a process."""
SEGMENTS_CACHED: Final = 40
"""The number of segments that the campaign fills first: more than a storage node keeps open."""
_WARM_UP_SHARE: Final = 0.15
_CLIENT_SHARE: Final = 0.4
"""How much of a short soak is its warm-up, and the first life of the client that lives for the shortest time."""
MINUTES_MIN: Final = SAMPLES_MIN * EVERY_S / (_CLIENT_SHARE - _WARM_UP_SHARE) / 60
"""The length of a soak in which that client can just be judged."""
ROLES: Final = ("storage 0", "storage 1", "storage 2", f"server of 1 of {PARTITIONS}", "client a", "client b")
"""The processes, each of which must be judged in at least one of its lives.

A server is judged while it shares the partitions with the other one. After a kill the other one has all of them for a
while: a stretch of its own, mostly too short.
"""


@dataclass
class SoakReport:
    """The events of a soak, and the mistakes found."""

    minutes: float
    server_kills: int = 0
    client_restarts: int = 0
    storage_stops: int = 0
    courses: list[Course] = field(default_factory=list)
    fates: Fates = field(default_factory=Fates)
    problems: list[str] = field(default_factory=list)
    """A text for each mistake of a process, or of this campaign, and each broken promise."""
    unanswered: str = ""
    """Why the last request for a server's health got no answer."""

    @property
    def wrong(self) -> list[str]:
        grown = [
            f"{course.stretch}: {course.figure} grew from {course.early:g} to {course.late:g}"
            for course in self.courses
            if course.grown
        ]
        judged = {course.stretch.partition(" life ")[0] for course in self.courses}
        missed = [f"{role}: no life was long enough to be judged" for role in ROLES if role not in judged]
        if missed and self.unanswered:
            missed.append(f"a server did not tell how it is: {self.unanswered}")
        return [*grown, *missed, *self.problems]

    def figures(self) -> list[Figures]:
        title = "Medians of the second and the last quarter, after the warm-up"
        return [
            Figures(f"{self.minutes:g} minutes of work", self._work()),
            Figures(title, self._courses(), ("process", *FIGURES)),
        ]

    def _work(self) -> dict[str, int | str]:
        """What was done to the cluster, and what came of what clients asked for."""
        told = self.fates
        return {
            "kills of a server": self.server_kills,
            "restarts of a client": self.client_restarts,
            "storage nodes stopped for a while": self.storage_stops,
            "operations asked for": told.asked,
            "acknowledged": told.acknowledged,
            "reported failed": told.refused,
            "given up before an answer": told.unknown,
            "transactions in the log": told.transactions,
            "wrong": len(self.wrong),
        }

    def _courses(self) -> dict[str, list[str]]:
        """What each process held early and late in each part of its lives; what grew is marked."""
        rows: dict[str, dict[str, Course]] = {}
        for course in self.courses:
            rows.setdefault(course.stretch, {})[course.figure] = course
        return {name: [_cell(row.get(figure)) for figure in FIGURES] for name, row in sorted(rows.items())}


class SoakProcess(Program):
    """One process, through all its lives."""

    def __init__(self, directory: Path, name: str, arguments: list[str], *, speaks: bool = False) -> None:
        super().__init__(name, directory / f"{name}.errors", command=arguments, speaks=speaks)
        self.life = 0
        self._stopping = False

    @property
    def failed(self) -> bool:
        """Whether the process has ever written of a fault that no code handled."""
        return "Traceback" in self.output

    def check(self) -> None:
        """Check that the process runs. Raises `GaveUp` if it has ended by itself."""
        if not self._stopping and (how := self.ended()):
            raise GaveUp(f"{self.name} ended by itself: {how}")

    async def stop(self) -> None:
        """Ask the process to stop. Raises `GaveUp` if it does not, or ends with an error."""
        self._stopping = True  # or `check` could see it ended before this does
        self.signal(signal.SIGTERM)
        status = await asyncio.to_thread(self.wait_ended)
        self._stopping = False
        if status:
            raise GaveUp(f"{self.name} stopped with {status}: {self.last_words}")


class NodeProcess(SoakProcess):
    """A storage node or a server: `stages.soaknode`."""

    def __init__(self, directory: Path, name: str, arguments: list[str]) -> None:
        super().__init__(directory, name, ["polonaise_proving.stages.soaknode", *arguments], speaks=True)
        self.address = ""
        self.asked: Connection | None = None
        """The connection on which the server of this life is asked for its health."""

    async def begin(self) -> None:
        if self.asked is not None:
            self.asked.close()
            self.asked = None
        self.life += 1
        self.start()
        self.address = (await asyncio.to_thread(self.says, "listening ")).removeprefix("listening ")


class ClientProcess(SoakProcess):
    """A client: `work.soakclient`."""

    def __init__(self, directory: Path, name: str, coordinator: str, leak: str) -> None:
        arguments = ["polonaise_proving.work.soakclient", str(directory), coordinator, name[-1], leak]
        super().__init__(directory, name, arguments)
        self._directory = directory
        self.journal = Follower(Path())

    @property
    def lines(self) -> list[Line]:
        """The journal's lines of all the client's lives."""
        return lines_of(self._directory, self.name[-1], self.life)

    async def begin(self) -> None:
        self.life += 1
        self.journal = reader = Follower(journal_of(self._directory, self.name[-1], self.life))
        self.launch([*self.command, str(self.life)])

        def opened() -> bool:
            reader.follow()
            return reader.opened

        await self._until(opened, "an open log")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            self.check()
            if time.monotonic() >= until_s:
                raise GaveUp(f"{self.name}: {what}: not within {PATIENCE_S:g} s: {self.last_words}")
            await asyncio.sleep(0.02)


class SoakCampaign:
    """A soak. Use as a context manager: no process outlives it."""

    def __init__(self, directory: Path, minutes: float, seed: int = 1, leak: str = "") -> None:
        """Prepare a soak. `leak` names what the clients leak on purpose; see `leaks`."""
        self._seconds = 60 * minutes
        self._random = random.Random(seed)
        self._coordinator = f"file:{directory / 'coordinator'}"
        self._storage = [
            NodeProcess(directory, f"storage {n}", ["storage", str(directory / f"storage-{n}")]) for n in range(3)
        ]
        self._directory = directory
        self._starting: set[asyncio.Task[None]] = set()
        self._servers: list[NodeProcess] = []
        self._clients = [ClientProcess(directory, f"client {name}", self._coordinator, leak) for name in "ab"]
        self._stretches: dict[str, list[Sample]] = {}
        self._filled: list[Line] = []
        self._host: RealHost
        self._key = b""
        self.report = SoakReport(minutes)
        short = self._seconds < 600
        self._server_every_s = self._seconds / 2 if short else 240.0
        self._client_every_s = self._seconds * _CLIENT_SHARE if short else 150.0
        self._storage_every_s = 10.0 if short else 20.0
        self._warm_up_s = _WARM_UP_SHARE * self._seconds if short else 60.0

    def __enter__(self) -> SoakCampaign:
        self._host = RealHost()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.kill()
        self._host.close()

    @property
    def _processes(self) -> list[SoakProcess]:
        return [*self._storage, *self._servers, *self._clients]

    async def run(self, progress: Callable[[float], None] = lambda seconds: None) -> None:
        """Run the whole soak, which fills the report. Raises `GaveUp`."""
        await self._start()
        began_s = time.monotonic()
        disturbing = [
            asyncio.create_task(each())
            for each in (self._kill_servers, self._restart_clients, self._stop_storage, self._sample)
        ]
        going = set(disturbing)
        try:
            while (left_s := began_s + self._seconds - time.monotonic()) > 0:
                progress(self._seconds - left_s)
                done, going = await asyncio.wait(going, timeout=min(1.0, left_s), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in disturbing:
                task.cancel()
            await asyncio.wait(disturbing)
            for node in self._storage:
                node.signal(signal.SIGCONT)
        for task in going:
            if not task.cancelled():
                task.result()  # what it raised in the very end
        await asyncio.gather(*self._starting)
        await self._end()

    async def _start(self) -> None:
        await asyncio.gather(*(node.begin() for node in self._storage))
        make_cluster(self._coordinator, {node.address: node.address for node in self._storage}, PARTITIONS)
        self._servers = [NodeProcess(self._directory, f"server {n}", ["server", self._coordinator]) for n in range(2)]
        for node in self._servers:
            await node.begin()
        await self._fill()
        await asyncio.gather(*(client.begin() for client in self._clients))

    async def _fill(self) -> None:
        """Fill the caches of segments first, or they would grow for as long as a busy machine takes to do so."""
        async with polonaise.connect(self._coordinator) as log:
            self._key = log.cluster_key
            for partition in range(PARTITIONS):
                for number in range(SEGMENTS_CACHED):
                    operation = f"fill/{partition}/{number}"
                    receipt = await log.append(body(operation, SEGMENT_BYTES), partition)
                    self._filled += [
                        Line(LineKind.ASK, partition, operation),
                        Line(LineKind.ACK, partition, operation, receipt.id),
                    ]

    async def _end(self) -> None:
        for client in self._clients:
            await client.stop()
        lines = [*self._filled, *(line for client in self._clients for line in client.lines)]
        async with polonaise.connect(self._coordinator) as log:
            for partition in range(PARTITIONS):
                entries = [(tx.id, tx.data) async for tx in log.read(partition, timeout=PATIENCE_S) if tx.data]
                self._compare(partition, entries, lines)
        for node in [*self._servers, *self._storage]:
            await node.stop()
        self.report.problems += [
            f"{each.name} wrote a traceback: {each.last_words}" for each in self._processes if each.failed
        ]
        (self._directory / "samples.json").write_text(json.dumps(self._stretches))
        for name, samples in self._stretches.items():
            self.report.courses += courses(Stretch(name, samples), self._warm_up_s)

    def _compare(self, partition: int, entries: list[tuple[int, bytes]], lines: list[Line]) -> None:
        """Compare what clients were told of a partition with what is in it."""
        history = PartitionHistory(partition, copies=0, entries=entries)
        history.lines = [line for line in lines if line.partition == partition]
        self.report.fates.add(history)
        self.report.problems += [line.operation for line in history.lines if line.kind is LineKind.WRONG]
        self.report.problems += [f"{each.promise}: {each.text}" for each in violations(history, TOLD_CHECKS)]

    # ------------------------------------------------------------------ looking

    async def _sample(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.gather(*(self._sample_one(each) for each in self._processes))
            await asyncio.sleep(max(0.0, began_s + EVERY_S - time.monotonic()))

    async def _sample_one(self, process: SoakProcess) -> None:
        process.check()
        role, tasks = process.name, -1
        pid, life = process.pid or 0, process.life
        if isinstance(process, ClientProcess):
            process.journal.follow()
            tasks = process.journal.tasks
            if tasks < 0:
                return
        elif isinstance(process, NodeProcess) and process in self._servers:
            health = await self._health(process)
            if health is None:
                return
            role, tasks = f"server of {len(health['partitions'])} of {PARTITIONS}", health["tasks"]
        sample = look(pid, time.monotonic(), tasks) if process.pid == pid else None
        if sample is not None:
            which = f"{role} life {life}" if role == process.name else f"{role} life {process.name[-1]}.{life}"
            self._stretches.setdefault(which, []).append(sample)

    async def _health(self, server: NodeProcess) -> dict[str, Any] | None:
        """Return the health that a server reports; None if it does not answer."""

        def make() -> Connection:
            greeting = hello(ROLE_CLIENT, "soak", cluster_key=self._key)
            return Connection(self._host, hello=greeting, peer_roles=(ROLE_SERVER,), on_message=lambda *_: None)

        try:
            asked = server.asked
            if asked is None or asked.closed:
                asked = server.asked = await connect(self._host, server.address, make, deadline_s=2)
            return await health_on(asked, 2)
        except PolonaiseError as error:
            self.report.unanswered = f"{server.name}: {error}"
            return None

    # ------------------------------------------------------------------ disturbing

    async def _kill_servers(self) -> None:
        """Kill one server, then the other one, and so on; leave the last one running long enough to be judged."""
        for kill in range(max(1, round(self._seconds / self._server_every_s) - 1)):
            await asyncio.sleep(self._server_every_s)
            victim = self._servers[kill % 2]
            victim.kill()
            self.report.server_kills += 1
            await asyncio.sleep(1)
            await self._start_again(victim)

    async def _restart_clients(self) -> None:
        """Restart the second of the two clients again and again, by a kill and by a clean stop in turn."""
        client = self._clients[1]
        while True:
            await asyncio.sleep(self._client_every_s)
            if self.report.client_restarts % 2:
                await client.stop()
            else:
                client.kill()
            await self._start_again(client)
            self.report.client_restarts += 1

    async def _start_again(self, process: NodeProcess | ClientProcess) -> None:
        """Start a process; its start goes on when the campaign ends, because until then SIGTERM is a failure."""
        starting = asyncio.create_task(process.begin())
        self._starting.add(starting)
        await asyncio.shield(starting)
        self._starting.discard(starting)

    async def _stop_storage(self) -> None:
        """Stop a storage node, mostly for a moment, now and then for longer than its session waits for it."""
        while True:
            await asyncio.sleep(self._storage_every_s * self._random.uniform(0.5, 1.5))
            node = self._random.choice(self._storage)
            node.signal(signal.SIGSTOP)
            self.report.storage_stops += 1
            await asyncio.sleep(self._random.choice([0.2, 1.0, 4.0]))
            node.signal(signal.SIGCONT)


def main() -> int:
    parser = running.options("soak", "make soak MINUTES=20 SEED=1", __doc__)
    parser.add_argument("--minutes", type=_minutes, default=20, help=f"{MINUTES_MIN:g} or more")
    parser.add_argument("--leak", default="", choices=LEAKS, help="what clients lose on purpose: must be found")
    options = running.parsed(parser)

    def campaign(directory: Path, progress: running.Progressed) -> SoakReport:
        with SoakCampaign(directory, options.minutes, options.seed, options.leak) as begun:
            asyncio.run(begun.run(progress))
        return begun.report

    planted = f"the leak of {options.leak}" if options.leak else ""
    return running.carry_out(options, 60 * options.minutes, "seconds", campaign, planted)


def _minutes(text: str) -> float:
    """Return how long a soak is to last. Raises `ArgumentTypeError` if no process could be judged in that time."""
    minutes = above_zero(text)
    if minutes < MINUTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is too short to judge any process: write {MINUTES_MIN:g} or more")
    return minutes


def _cell(course: Course | None) -> str:
    if course is None:
        return ""
    form = "{:.1f}" if course.figure == "memory_mb" else "{:.0f}"
    cell = f"{form.format(course.early)} → {form.format(course.late)}"
    return f"[red]{cell} ![/]" if course.grown else cell


if __name__ == "__main__":
    sys.exit(main())
