"""A storage directory on the real disk, made by the code of the nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polonaise.host.real import RealHost
from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.control import ControlFile
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
    """Batches of two transactions, so many to a segment; the batch from `bad_body_at` has bodies not as summed."""

    async def make() -> None:
        host = RealHost()
        control = await ControlFile.open(host, str(directory), key)
        for partition in range(partitions):
            slot = await control.create(partition)
            settings = LogSettings(segment_batches_max=per_segment)
            log = await PartitionLog.open(host, control.partition_directory(partition), slot, settings)
            for number in range(batches):
                changes: list[registers.Change] = [(b"newest", b"%d" % number)] if number % 2 else []
                first = 2 * number
                await log.append([batch(first, log.last_crc, partition, changes, first == bad_body_at, body)])
            await log.close()
        await control.close()
        host.close()

    asyncio.run(make())
    return directory


def segments(directory: Path, partition: int = 0) -> list[Path]:
    return sorted((directory / str(partition)).glob("*.seq"))


def overwrite(path: Path, offset: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def flip(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0x40]))
