"""A process with one target in SQLite: `python -m tests.torture_delivery.shard DATABASE ADDRESS [forgetful]`.

Served until SIGTERM, or until it is killed. A forgetful target is a planted bug: it tells an id that is too low.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table

from polonaise.player import Acceptance, DeliverySource, Fence, RoutedEntry, SqlDeliveryTarget, serve
from polonaise.terms import PartitionId, TransactionId

SCHEMA = MetaData()
APPLIED = Table(
    "applied",
    SCHEMA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("partition", Integer, nullable=False),
    Column("id", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    # Also what is removed keeps its number: rows are in the order in which they were applied.
    sqlite_autoincrement=True,
)


FORGOTTEN = 20
"""How many ids a forgetful target forgets in each partition."""


class Shard(SqlDeliveryTarget):
    """Keeps every entry that it applies, in the order in which it does."""

    metadata = SCHEMA

    def apply_entries(self, partition: PartitionId, entries: Sequence[RoutedEntry], db: Connection) -> None:
        rows = [{"partition": partition, "id": entry.id, "payload": entry.payload} for entry in entries]
        db.execute(APPLIED.insert(), rows)


@dataclass
class Forgetful:
    """A target that believes, with each stream, that it has not applied the last ids of each partition.

    Several, since not every id is routed to it: what it forgets must have been applied.
    """

    target: Shard
    database: str

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        acceptance = await self.target.accept(offered, source)
        with contextlib.closing(sqlite3.connect(self.database, timeout=60)) as db, db:
            db.execute("UPDATE polonaise_delivery_ids SET high_water_mark = max(-1, high_water_mark - ?)", (FORGOTTEN,))
        return acceptance._replace(applied={each: max(-1, id - FORGOTTEN) for each, id in acceptance.applied.items()})

    def __getattr__(self, name: str) -> object:
        return getattr(self.target, name)


def applied(database: Path) -> dict[PartitionId, list[tuple[TransactionId, bytes]]]:
    """Return what the target has applied, by partition, in the order in which it did."""
    found: dict[PartitionId, list[tuple[TransactionId, bytes]]] = {}
    if database.exists():
        with (
            contextlib.closing(sqlite3.connect(database, timeout=60)) as db,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            for partition, id, payload in db.execute("SELECT partition, id, payload FROM applied ORDER BY number"):
                found.setdefault(partition, []).append((id, payload))
    return found


async def main(database: str, address: str, *options: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    target = Shard(f"sqlite:///{database}")
    served = Forgetful(target, database) if "forgetful" in options else target
    async with serve(served, address) as server:  # type: ignore[arg-type]
        sys.stdout.write(f"listening {server.address}\n")
        sys.stdout.flush()
        await stopping.wait()
    await target.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
