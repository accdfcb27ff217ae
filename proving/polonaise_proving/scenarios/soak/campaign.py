"""Runs the cluster and its clients, disturbs them, samples them, and compares at the end."""

from __future__ import annotations

import asyncio
import json
import random
import signal
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
from polonaise_proving.judges.flatness import Course, Stretch, courses
from polonaise_proving.judges.histories import TOLD_CHECKS, violations
from polonaise_proving.record.history import Fates, Line, LineKind, PartitionHistory
from polonaise_proving.record.sampling import Sample, look
from polonaise_proving.scenarios.soak.processes import ClientProcess, NodeProcess, SoakProcess
from polonaise_proving.stages.soaknode import PARTITIONS, SEGMENT_BYTES, body
from polonaise_proving.stages.waiting import PATIENCE_S

EVERY_S: Final = 0.5
"""Seconds between two samples of a process."""
SEGMENTS_CACHED: Final = 40
"""The number of segments that the campaign fills first: more than a storage node keeps open."""
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
        self._client_every_s = self._seconds / 2.5 if short else 150.0
        self._storage_every_s = 10.0 if short else 20.0
        self._warm_up_s = 0.15 * self._seconds if short else 60.0

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
        try:
            while (left_s := began_s + self._seconds - time.monotonic()) > 0:
                progress(self._seconds - left_s)
                done, _ = await asyncio.wait(disturbing, timeout=min(1.0, left_s), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in disturbing:
                task.cancel()
            await asyncio.wait(disturbing)
            for node in self._storage:
                node.signal(signal.SIGCONT)
        await asyncio.gather(*self._starting)
        await self._end()

    async def _start(self) -> None:
        await asyncio.gather(*(node.start() for node in self._storage))
        make_cluster(self._coordinator, {node.address: node.address for node in self._storage}, PARTITIONS)
        self._servers = [NodeProcess(self._directory, f"server {n}", ["server", self._coordinator]) for n in range(2)]
        for node in self._servers:
            await node.start()
        await self._fill()
        await asyncio.gather(*(client.start() for client in self._clients))

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
        starting = asyncio.create_task(process.start())
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
