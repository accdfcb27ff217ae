"""Tools for the tests of the log: batches made to order, and lives of a process on a simulated machine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from polonaise.host import Host
from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.control import ControlFile, ControlSlot
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segmentreader import SegmentCache
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.world import Machine
from rigs.scenarios import runs_tests

KEY = bytes(range(16))
DIRECTORY = "storage"
PARTITION = 3

T = TypeVar("T")


class Maker:
    """Makes the batches of one log, each following the one before."""

    def __init__(self, last: int = -1, crc: int = 0, partition: int = PARTITION) -> None:
        self.last = last
        self.crc = crc
        self.partition = partition

    def batch(
        self, count: int = 1, *, session: int = 1, size: int = 10, salt: int = 0, time_us: int | None = None,
        changes: list[registers.Change] | None = None,
    ) -> Batch:  # fmt: skip
        columns = Columns()
        for index in range(count):
            body = f"{salt}/{self.last + 1 + index}/".encode().ljust(size, b"x")
            columns.add(7, 1, self.last + 1 + index, 5, body)
        raw = seal(
            columns,
            partition=self.partition,
            first=self.last + 1,
            session=session,
            generation=1,
            commit_time_us=1000 * (self.last + 1) if time_us is None else time_us,
            previous_crc=self.crc,
            registers=registers.encode(changes or []),
        )
        made = Batch.parse(raw)
        self.last, self.crc = made.last, made.crc
        return made

    def batches(self, number: int, **kind: Any) -> list[Batch]:
        return [self.batch(**kind) for _ in range(number)]


class Open:
    """A control file and one partition's log, open in one life of a process."""

    def __init__(self, control: ControlFile, slot: ControlSlot, log: PartitionLog) -> None:
        self.control = control
        self.slot = slot
        self.log = log

    @classmethod
    async def on(
        cls,
        host: Host,
        settings: LogSettings | None = None,
        cache: SegmentCache | None = None,
    ) -> Open:
        control = await ControlFile.open(host, DIRECTORY, KEY)
        slot = await control.load(PARTITION) or await control.create(PARTITION)
        log = await PartitionLog.open(host, control.partition_directory(PARTITION), slot, settings, cache)
        return cls(control, slot, log)

    async def append_each(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            await self.log.append([batch])

    async def close(self) -> None:
        await self.log.close()
        await self.control.close()


async def life(machine: Machine, main: Callable[[Host], Awaitable[T]]) -> T:
    """Run `main` as one life of a process. Return or raise what `main` returns or raises."""
    results: list[T] = []
    errors: list[Exception] = []

    async def run(host: Host) -> None:
        try:
            results.append(await main(host))
        except Exception as error:  # noqa: BLE001  (handed to the test)
            errors.append(error)

    process = machine.start(run)
    await process.ended()
    if errors:
        raise errors[0]
    return results[0]


@contextlib.asynccontextmanager
async def alive(machine: Machine) -> AsyncIterator[Host]:
    """Yield the host of one life of a process, which lasts as long as the context."""
    host: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def live(its: Host) -> None:
        host.set_result(its)
        await over.wait()

    process = machine.start(live)
    try:
        yield await host
    finally:
        over.set()
        await process.ended()


@contextlib.asynccontextmanager
async def opened_on(
    machine: Machine, settings: LogSettings | None = None, cache: SegmentCache | None = None
) -> AsyncIterator[Open]:
    """Yield a log, open in one life of a process that lasts as long as the context."""
    async with alive(machine) as host:
        yield await Open.on(host, settings, cache=cache)


def simulate(scenario: Callable[[Machine], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    """Run a scenario on one machine."""
    world = World(seed, Configuration())
    return world.run(scenario(world.machine("disk")))


simulated = runs_tests(simulate)
"""Decorator of tests of one machine that start and end its process themselves."""


@runs_tests
def in_one_life(
    test: Callable[[Machine, Open], Coroutine[Any, Any, None]], settings: LogSettings | None = None
) -> None:
    """Run a test as the one process of a machine, which has opened a log."""

    async def main(machine: Machine, host: Host) -> None:
        await test(machine, await Open.on(host, settings))

    simulate(lambda machine: life(machine, lambda host: main(machine, host)))


def segment_path(first: int = 0) -> str:
    """Return the path of the segment that begins with this id."""
    return f"{DIRECTORY}/{PARTITION}/{first:020d}.seq"


def remove_entry(disk: SimulatedDisk, path: str) -> None:
    """Remove a file or directory from the disk behind the back of whoever has it open, and durably."""
    directory, name = disk.parent(path)
    disk.change_names((directory, name, None))


def write_synced(machine: Machine, path: str, offset: int, data: bytes) -> None:
    """Write to a file of the disk, as another program would, and sync it."""
    file = machine.disk.file(path)
    file.write(offset, data)
    file.end_sync(file.last, random.Random(0), done=True)


async def contents(log: PartitionLog, bytes_max: int = 1 << 20) -> list[Batch]:
    """Return every batch of the log, from its first one on."""
    found: list[Batch] = []
    while not found or found[-1].last < log.last:
        batches = await log.read(found[-1].last + 1 if found else log.first, log.last, bytes_max)
        if not batches:
            break
        found += batches
    return found


def crcs(batches: list[Batch]) -> list[tuple[int, int, int]]:
    return [(batch.first, batch.last, batch.crc) for batch in batches]


SEGMENT = segment_path()
INDEX = f"{DIRECTORY}/{PARTITION}/{0:020d}.idx"
CONTROL = f"{DIRECTORY}/polonaise-storage.ctl"
