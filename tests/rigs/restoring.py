"""Tools for the tests of restoring: logs to archive, and all that a restored log must share with its origin."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import polonaise
from polonaise.admin.archive import archive
from polonaise.admin.segments import PartitionReport, verify
from polonaise.fragments.store import ObstoreStore
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.storage.files import find

BODY = bytes(range(100))
_accounts = itertools.count()


class Sum:
    """A view that keeps the ids it was given, and belongs to one log."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.cluster_key = b""

    def belongs_to(self, cluster_key: bytes) -> None:
        self.cluster_key = cluster_key

    def high_water_mark(self, partition: int) -> int:
        return self.ids[-1] if self.ids else -1

    def apply(self, tx: polonaise.Transaction) -> None:
        self.ids.append(tx.id)

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise AssertionError(error)


class Contents(NamedTuple):
    """The whole contents of a partition, for comparison."""

    batches: list[bytes]
    registers: dict[bytes, bytes]


async def contents(log: polonaise.Log, partition: int = 0) -> Contents:
    batches = [bytes(batch.view) async for batch in log.read_batches(partition, timeout=60)]
    held: dict[bytes, bytes] = {}
    for raw in batches:
        registers.apply(held, Batch.parse(raw).registers)
    assert {key: await log.register(key, partition) for key in held} == held
    return Contents(batches, held)


async def fill(log: polonaise.Log, count: int, partition: int = 0) -> None:
    """Append so many transactions in several batches, with registers and locks."""
    for number in range(count // 10):
        changes = [polonaise.Change.set(b"step/%d" % (number % 7), b"%d" % number)]
        locks = [polonaise.Lock("account", next(_accounts))]
        mark = await log.high_water_mark(partition)
        await log.append(BODY, partition, changes=changes, locks=locks, high_water_mark=mark)
        await asyncio.gather(*(log.append(b"%d" % n * 20, partition, header=n) for n in range(9)))


async def filled_and_archived(log: polonaise.Log, store: ObstoreStore, count: int, **how: Any) -> None:
    await fill(log, count)
    await archived(log, store, **how)


async def archived(log: polonaise.Log, store: ObstoreStore, **how: Any) -> None:
    for partition in range(log.partition_count):
        async for _ in archive(log, store, partition, rest=True, **how):
            pass


async def verdicts(storage: Path) -> list[PartitionReport]:
    """Return what `polonaise segment verify` says of a storage directory."""
    return [await verify(files) for files in find(str(storage))]
