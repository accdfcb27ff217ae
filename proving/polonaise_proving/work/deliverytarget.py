"""A process with one target in a database: `python -m polonaise_proving.work.deliverytarget URL ADDRESS`.

Served until SIGTERM, or until it is killed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from sqlalchemy import Column, Connection, Engine, Integer, LargeBinary, MetaData, Table, create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from polonaise.player import RoutedEntry, SqlDeliveryTarget, serve
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


class Shard(SqlDeliveryTarget):
    """Keeps every entry that it applies, in the order in which it does."""

    metadata = SCHEMA

    def apply_entries(self, partition: PartitionId, entries: Sequence[RoutedEntry], db: Connection) -> None:
        rows = [{"partition": partition, "id": entry.id, "payload": entry.payload} for entry in entries]
        db.execute(APPLIED.insert(), rows)


def engine_of(url: str) -> Engine:
    """Return an engine that reads only what is committed, and keeps no connection."""
    if url.startswith("sqlite"):
        return create_engine(url, poolclass=NullPool, connect_args={"timeout": 60})
    return create_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ")


def applied(url: str) -> dict[PartitionId, list[tuple[TransactionId, bytes]]]:
    """Return what the target has applied, by partition, in the order in which it did; nothing while it can't be had."""
    found: dict[PartitionId, list[tuple[TransactionId, bytes]]] = {}
    rows = select(APPLIED.c.partition, APPLIED.c.id, APPLIED.c.payload).order_by(APPLIED.c.number)
    try:
        with engine_of(url).connect() as db:
            for partition, id, payload in db.execute(rows):
                found.setdefault(partition, []).append((id, payload))
    except DBAPIError:
        return {}
    return found


async def main(database: str, address: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    target = Shard(database)
    async with serve(target, address) as server:
        sys.stdout.write(f"listening {server.address}\n")
        sys.stdout.flush()
        await stopping.wait()
    await target.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
