"""A storage directory on the real disk, made by the code of the nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from polonaise.host.real import RealHost
from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.control import ControlFile, ControlSlot
from polonaise.log.partitionlog import LogSettings, PartitionLog

KEY = bytes(range(16))


def batch(
    first: int,
    previous_crc: int,
    partition: int,
    changes: list[registers.Change],
    bad_crc: bool,
    body: bytes | None,
    count: int = 2,
) -> Batch:
    columns = Columns()
    for id in range(first, first + count):
        columns.add(7, 1, id, 5, f"body {id}".encode() if body is None else body, 1 if bad_crc else None)
    raw = seal(
        columns, partition=partition, first=first, session=1, generation=1, commit_time_us=1_000_000 * (first + 1),
        previous_crc=previous_crc, registers=registers.encode(changes),
    )  # fmt: skip
    return Batch.parse(raw)


def make_storage(
    directory: Path,
    *,
    partitions: int = 1,
    batches: int = 9,
    per_segment: int = 3,
    bad_body_at: int = -1,
    body: bytes | None = None,
    key: bytes = KEY,
) -> Path:
    """Make segments of two-transaction batches; bodies of the one that begins at `bad_body_at` don't fit their CRCs."""

    async def make() -> None:
        async with control_file(directory, key) as control:
            for partition in range(partitions):
                slot = await control.create(partition)
                log = await _opened(control, slot, partition, per_segment)
                for number in range(batches):
                    changes: list[registers.Change] = [(b"newest", b"%d" % number)] if number % 2 else []
                    first = 2 * number
                    await log.append([batch(first, log.last_crc, partition, changes, first == bad_body_at, body)])
                await log.close()

    asyncio.run(make())
    return directory


@contextlib.asynccontextmanager
async def control_file(directory: Path, key: bytes = KEY) -> AsyncIterator[ControlFile]:
    host = RealHost()
    control = await ControlFile.open(host, str(directory), key)
    yield control
    await control.close()
    host.close()


async def _opened(control: ControlFile, slot: ControlSlot, partition: int, per_segment: int = 3) -> PartitionLog:
    settings = LogSettings(segment_batches_max=per_segment)
    return await PartitionLog.open(control._host, control.partition_directory(partition), slot, settings)


def promise(directory: Path, change: Callable[[ControlSlot], Awaitable[None]], partition: int = 0) -> None:
    """Change a partition's promises in the control file."""

    async def make() -> None:
        async with control_file(directory) as control:
            slot = await control.load(partition)
            assert slot is not None
            await change(slot)

    asyncio.run(make())


def work_on(directory: Path, work: Callable[[PartitionLog], Awaitable[object]]) -> None:
    """Work on the files of partition 0 as a node does."""

    async def do() -> None:
        async with control_file(directory) as control:
            slot = await control.load(0)
            assert slot is not None
            log = await _opened(control, slot, 0)
            await work(log)
            await log.close()

    asyncio.run(do())


def segments(directory: Path, partition: int = 0) -> list[Path]:
    return sorted((directory / str(partition)).glob("*.seq"))


def overwrite(path: Path, offset: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def flip(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0x40]))
