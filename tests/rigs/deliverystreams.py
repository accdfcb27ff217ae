"""Streams of deliveries for tests: the transports, a target in memory, and what streams tell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from polonaise.errors import ViewUnfit
from polonaise.host.tls import TlsFiles
from polonaise.player import TargetServer, remote, serve
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget, Judge
from polonaise.player.directstream import DirectEndpoint
from polonaise.player.endpoint import DeliveryEndpoint, DeliveryStream
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception, Verdict
from rigs.waiting import wait_until

SOURCE = DeliverySource(b"k" * 16, "payments", "shard-0")


FIRST = Fence(1, 1)


class MemoryTarget:
    """Keeps what it applies, in memory. The test says which partitions wait, and which payloads are refused."""

    def __init__(self) -> None:
        self.kept = NO_FENCE
        self.source: DeliverySource | None = None
        self.ids: dict[int, int] = {}
        self.applied: list[tuple[int, int, bytes | None]] = []
        """Partition, id and payload of each entry that was applied, in their order."""
        self.refuses: set[bytes] = set()
        self.accepts = asyncio.Event()
        self.accepts.set()
        self.waits: dict[int, asyncio.Event] = {}
        """By partition, what an `apply` waits for."""
        self.calls = 0
        self.at_work = 0

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        await self.accepts.wait()
        if self.source not in (None, source):
            raise ViewUnfit(f"this target is of {self.source}")
        if not Reception.accepts(self.kept, offered):
            return Acceptance(False, self.kept, {})
        self.kept, self.source = offered, source
        return Acceptance(True, offered, dict(self.ids))

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        self.calls += 1
        self.at_work += 1
        try:
            if (gate := self.waits.get(batch.partition)) is not None:
                await gate.wait()
            return self._apply(batch, judge)
        finally:
            self.at_work -= 1

    def _apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        partition = batch.partition
        last = self.ids.get(partition, -1)
        verdict = judge(self.kept, last, batch)
        if verdict is not Verdict.APPLY:
            return AppliedBatch(verdict, last, self.kept)
        for entry in batch.entries:
            if entry.payload in self.refuses:
                return AppliedBatch(verdict, self.ids.get(partition, -1), self.kept, f"{entry.payload!r} is refused")
            self.ids[partition] = entry.id
            self.applied.append((partition, entry.id, entry.payload))
        return AppliedBatch(verdict, batch.last, self.kept)

    async def close(self) -> None:
        """Nothing is open."""

    def of(self, partition: int) -> list[tuple[int, bytes | None]]:
        """The entries of a partition that were applied."""
        return [(id, payload) for each, id, payload in self.applied if each == partition]


class Heard:
    """Notes what a stream tells."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.applied: dict[int, int] = {}
        """By partition, the last id that was told or acknowledged."""
        self.reason = ""

    def connected(self, applied: dict[int, int]) -> None:
        self.told.append(("connected", applied))
        self.applied = dict(applied)

    def fenced(self, kept: Fence) -> None:
        self.told.append(("fenced", kept))

    def written(self) -> None:
        self.told.append(("written",))

    def acknowledged(self, partition: int, through: int) -> None:
        self.told.append(("acknowledged", partition, through))
        self.applied[partition] = through

    def refused(self, partition: int, last: int, reason: str) -> None:
        self.told.append(("refused", partition, last, reason))

    def disconnected(self, reason: str) -> None:
        self.told.append(("disconnected",))
        self.reason = reason

    async def until(self, *what: Any) -> None:
        await wait_until(lambda: what in self.told, f"the stream tells {what}; so far {self.told[-5:]}, {self.reason}")

    def count(self, kind: str) -> int:
        return sum(each[0] == kind for each in self.told)


class Opened(NamedTuple):
    """A stream, what it has told, and the task that serves it."""

    stream: DeliveryStream
    heard: Heard
    task: asyncio.Task[None]

    def send(self, *batches: DeliveryBatch) -> None:
        if self.stream.send(batches):
            self.heard.written()


@contextlib.asynccontextmanager
async def opening(
    endpoint: DeliveryEndpoint,
    fence: Fence = FIRST,
    source: DeliverySource = SOURCE,
    open_s_max: float = 20.0,
    heard: Heard | None = None,
) -> AsyncIterator[Opened]:
    """A stream that is being opened; in the end it is closed, and its task is done."""
    heard = heard or Heard()
    stream = endpoint.stream(fence, heard)
    task = asyncio.ensure_future(stream.serve(source, open_s_max))
    try:
        yield Opened(stream, heard, task)
    finally:
        stream.close()
        task.cancel()
        await asyncio.wait((task,))


@contextlib.asynccontextmanager
async def opened(endpoint: DeliveryEndpoint, fence: Fence = FIRST, **how: Any) -> AsyncIterator[Opened]:
    """A stream that the target has accepted."""
    async with opening(endpoint, fence, **how) as made:
        await wait_until(lambda: made.heard.told, "the target answers")
        assert made.heard.told[0][0] == "connected", (made.heard.told, made.heard.reason)
        yield made


def batch(previous: int, *payloads: bytes | None, partition: int = 0) -> DeliveryBatch:
    """A batch of consecutive ids; None for a dummy."""
    return DeliveryBatch(
        partition, previous, [RoutedEntry(previous + 1 + place, each) for place, each in enumerate(payloads)]
    )


# ---------------------------------------------------------------------- transports


class Direct:
    """Streams within the process."""

    is_remote = False

    @contextlib.asynccontextmanager
    async def reaching(self, target: DeliveryTarget) -> AsyncIterator[DeliveryEndpoint]:
        """An endpoint of this target."""
        yield DirectEndpoint(target)


class Remote:
    """Streams to a server that `serve` starts, here in the same process, at an address with this scheme."""

    is_remote = True

    def __init__(self, scheme: str) -> None:
        self.address = f"{scheme}://127.0.0.1:0"

    @contextlib.asynccontextmanager
    async def reaching(self, target: DeliveryTarget) -> AsyncIterator[DeliveryEndpoint]:
        """An endpoint of this target."""
        async with self.serving(target) as server, self.endpoint(server.address) as endpoint:
            yield endpoint

    @contextlib.asynccontextmanager
    async def serving(
        self, targets: DeliveryTarget | Mapping[str, DeliveryTarget], tls: TlsFiles | None = None
    ) -> AsyncIterator[TargetServer]:
        async with serve(targets, self.address, tls=tls) as server:
            yield server

    @contextlib.asynccontextmanager
    async def endpoint(self, address: str, tls: TlsFiles | None = None) -> AsyncIterator[DeliveryEndpoint]:
        made = remote(address, tls=tls)
        try:
            yield made
        finally:
            await made.close()


REMOTE = {"link": Remote("link"), "grpc": Remote("grpc")}
TRANSPORTS: Mapping[str, Direct | Remote] = {"direct": Direct(), **REMOTE}
"""What `test_delivery_streams.py` tries: whatever has an address needs an entry in `REMOTE` and no more."""


# ---------------------------------------------------------------------- exactly once


def script(random: Random, partitions: int = 3, entries: int = 60) -> dict[int, list[RoutedEntry]]:
    """Entries for each partition, with gaps between ids, dummies, and payloads of many sizes."""
    made: dict[int, list[RoutedEntry]] = {}
    for partition in range(partitions):
        id = -1
        for _ in range(entries):
            id += random.choice((1, 1, 1, 5, 1_000))
            size = random.choice((0, 1, 20, 300, 20_000))
            made.setdefault(partition, []).append(RoutedEntry(id, random.choice((None, random.randbytes(size)))))
    return made


def batches_after(
    entries: Mapping[int, Sequence[RoutedEntry]], applied: Mapping[int, int], random: Random
) -> list[DeliveryBatch]:
    """The batches of what a target lacks, partitions in turn, each batch of a few entries."""
    lanes: list[list[DeliveryBatch]] = []
    for partition, all_of_it in entries.items():
        previous = applied.get(partition, -1)
        left = [entry for entry in all_of_it if entry.id > previous]
        lanes.append(lane := [])
        while left:
            count = random.randrange(1, 8)
            lane.append(DeliveryBatch(partition, previous, left[:count]))
            previous, left = lane[-1].last, left[count:]
    made: list[DeliveryBatch] = []
    while any(lanes):
        made.append(random.choice([lane for lane in lanes if lane]).pop(0))
    return made


def check_applied(target: MemoryTarget, entries: Mapping[int, Sequence[RoutedEntry]]) -> None:
    """Check that the target has applied just these, each once and in order."""
    for partition, expected in entries.items():
        assert target.of(partition) == [tuple(entry) for entry in expected], f"partition {partition}"


class Breaker:
    """A TCP proxy on loopback that breaks each connection after some bytes, as drawn."""

    def __init__(self, target: str, random: Random, bytes_max: int) -> None:
        self._host, _, port = target.rpartition("://")[2].rpartition(":")
        self._port = int(port)
        self._random = random
        self._bytes_max = bytes_max
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken = 0
        self.calm = False
        """Whether nothing more is broken."""

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        others = await asyncio.open_connection(self._host, self._port)
        left = [self._random.randrange(1, self._bytes_max)]
        ends = (writer, others[1])
        for source, sink in ((reader, others[1]), (others[0], writer)):
            task = asyncio.ensure_future(self._pass(source, sink, left, ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        left: list[int],
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while chunk := await source.read(4_096):
                    if not self.calm:
                        chunk, left[0] = chunk[: left[0]], left[0] - len(chunk)
                    sink.write(chunk)
                    await sink.drain()
                    if left[0] <= 0 and not self.calm:
                        self.broken += 1
                        break
        finally:
            for end in ends:
                end.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, target: str, random: Random, bytes_max: int) -> AsyncIterator[tuple[Breaker, str]]:
        """A breaker, and its address with the scheme of `target`."""
        breaker = cls(target, random, bytes_max)
        server = await asyncio.start_server(breaker._connected, "127.0.0.1", 0)
        try:
            yield breaker, f"{target.partition('://')[0]}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in breaker._tasks:
                task.cancel()
            await asyncio.gather(*breaker._tasks, return_exceptions=True)
            await server.wait_closed()


async def no_more_tasks_than(before: set[asyncio.Task[Any]]) -> None:
    """Wait until each task that has begun since has ended, but for the one in which a gRPC server waits for a call."""
    await wait_until(
        lambda: (
            not {task for task in asyncio.all_tasks() - before if not task.done() and not _waits_for_a_call(task)}
            - {asyncio.current_task()}
        ),
        "every task has ended",
    )


def _waits_for_a_call(task: asyncio.Task[Any]) -> bool:
    return "AioServer" in getattr(task.get_coro(), "__qualname__", "")


def connections_to(address: str) -> int:
    """Return how many connections of this machine to the port are open."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    found = 0
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(file) as lines:
            for line in list(lines)[1:]:
                _, _, remote, state, *_ = line.split()
                found += remote.endswith(port) and state == "01"
    return found
