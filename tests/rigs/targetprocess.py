"""A process that serves a target in a SQLite database, to be killed: `python -m rigs.targetprocess PATH ADDRESS`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table, create_engine, select

from polonaise.player import RoutedEntry, SqlDeliveryTarget, serve

_SCHEMA = MetaData()
ENTRIES = Table(
    "entries",
    _SCHEMA,
    Column("number", Integer, primary_key=True),
    Column("partition_id", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)


class Entries(SqlDeliveryTarget):
    """Writes each entry down, without looking whether it is there."""

    metadata = _SCHEMA

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        db.execute(ENTRIES.insert(), {"partition_id": partition, "payload": entry.payload})


def kept(path: Path) -> dict[int, list[bytes]]:
    """What the database holds, by partition."""
    engine = create_engine(f"sqlite:///{path}")
    try:
        found: dict[int, list[bytes]] = {}
        with engine.connect() as db:
            for row in db.execute(select(ENTRIES).order_by(ENTRIES.c.number)):
                found.setdefault(row.partition_id, []).append(row.payload)
        return found
    finally:
        engine.dispose()


class TargetProcess:
    """Starts the process again and again at one address."""

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self.address = address
        """The address, with the port that the system has chosen once it was started."""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        tests = str(Path(__file__).parents[1])
        path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rigs.targetprocess", str(self._path), self.address],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the process serves"

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, path: Path, address: str) -> Iterator[TargetProcess]:
        made = cls(path, address)
        made.start()
        try:
            yield made
        finally:
            if made._process is not None:
                made.kill()


async def _main(path: str, address: str) -> None:
    target = Entries(f"sqlite:///{path}")
    async with serve({"a": target}, address) as server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        await server.ended()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
