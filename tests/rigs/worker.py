"""A worker process for tests: it joins a group whose view notes each effect, with the epoch under which it was made.

Its arguments: the log's address, the database's URL, the seconds of a lease, and what is wrong with it: nothing, or
`goes-on` (it never notices that it has lost its leases), or `unfenced` (nor does its database). It ends at a SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from sqlalchemy import BigInteger, Column, Connection, Double, Integer, MetaData, Table

import polonaise
from polonaise.client.workergroup import WorkerGroup
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.views.marks import Fences

GROUP = "effects"
schema = MetaData()
effects = Table(
    "effects",
    schema,
    Column("number", Integer, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("id", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("worker", Integer, nullable=False),
    Column("at_s", Double, nullable=False),
)
"""One row for each time that a transaction was applied, in the order in which they were."""


class Effects(polonaise.SqlView):
    """Notes each effect."""

    metadata = schema
    epochs: ClassVar[dict[PartitionId, int]] = {}

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]:
        taken = await super().take_over(partition)
        self.epochs[partition] = taken[1]
        return taken

    def apply(self, tx: Transaction, db: Connection) -> None:
        row = {"partition": tx.partition, "id": tx.id, "epoch": self.epochs[tx.partition], "worker": os.getpid()}
        db.execute(effects.insert(), {**row, "at_s": time.time()})


async def main(address: str, url: str, lease_s: float, wrong: str) -> None:
    if wrong != "nothing":
        WorkerGroup._drop_lost = lambda self: None  # type: ignore[method-assign]
        WorkerGroup._holds = lambda self, partition: True  # type: ignore[method-assign]
    if wrong == "unfenced":
        Fences.hold = lambda self, db, partition, epoch: True  # type: ignore[method-assign]
        apply = Effects.apply_run_under

        async def nothing_noticed(self: Effects, epoch: int, run: Sequence[Transaction]) -> TransactionId:
            # Not that others have moved on, either: a worker takes over anew when it learns that.
            return min(await apply(self, epoch, run), run[-1].id)

        Effects.apply_run_under = nothing_noticed  # type: ignore[method-assign]
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with polonaise.connect(address) as log, log.group(GROUP, view=Effects(url), lease_s=lease_s):
        print("joined", flush=True)  # noqa: T201
        await told.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
