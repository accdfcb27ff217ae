"""Processes of a player, as `polonaise player start` runs them, and SQLite shards that say what they were given."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rigs.hangup import sighup_by_default
from rigs.programs import start_polonaise
from rigs.waiting import PATIENCE_S

SHOP = """
import time
from pathlib import Path
from sqlalchemy import Column, Integer, MetaData, String, Table
from polonaise.player import SqlDeliveryTarget

schema = MetaData()
given = Table(
    "given", schema, Column("place", Integer, primary_key=True, autoincrement=True), Column("id", Integer),
    Column("payload", String(200)), Column("process", Integer),
)

def route(tx):
    names, _, rest = tx.data.partition(b":")
    return {chr(name): rest for name in names}

class Shard(SqlDeliveryTarget):
    metadata = schema

    def apply_entry(self, partition, entry, db):
        import os
        db.execute(given.insert(), {"id": entry.id, "payload": entry.payload.decode(), "process": os.getpid()})
"""


class PlayerProcess:
    """A running `polonaise player start`, whose output is read as it comes."""

    def __init__(self, directory: Path, *options: object, environment: Mapping[str, str] | None = None) -> None:
        command = ("player", "start", "--config", directory / "player.toml", "--until-stdin-ends", *options)
        self._errors = (directory / f"errors-{time.monotonic_ns()}").open("w+")
        with sighup_by_default():
            self.process = start_polonaise(
                *command, cwd=directory, stderr=self._errors, env={**os.environ, **(environment or {})}
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def until(self, beginning: str, within_s: float = PATIENCE_S) -> str:
        """Wait for a line that begins so, and return it; what comes before it is passed over."""
        until_s = time.monotonic() + within_s
        while line := self._lines.get(timeout=max(0.0, until_s - time.monotonic())):
            self.said.append(line)
            if line.startswith(beginning):
                return line
        raise AssertionError(f"the process ended before {beginning!r}: {self.said} {self.errors}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.send(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class ShopWithShards:
    """The settings and code of a player in a directory, and its shards."""

    def __init__(self, directory: Path, log: str, **settings: object) -> None:
        self.directory = directory
        self._log = log
        self._settings = settings
        self.started: list[PlayerProcess] = []
        (directory / "shop.py").write_text(SHOP)

    def write_settings(self, *targets: str, addresses: Mapping[str, str] | None = None, **more: object) -> None:
        """Name shards here, and targets elsewhere by their addresses."""
        options = {"lease_s": 2, "retry_s_min": 0.02, **self._settings, **more}
        lines = ["[player]", 'name = "shop"', f'log = "{self._log}"', 'route = "shop:route"']
        lines += [f"{name} = {value!r}" for name, value in options.items()]
        for name in targets:
            lines += [f"[targets.{name}]", f'sql = "sqlite:///{self.directory}/{name}.db"', 'apply = "shop:Shard"']
        for name, address in (addresses or {}).items():
            lines += [f"[targets.{name}]", f'address = "{address}"']
        (self.directory / "player.toml").write_text("\n".join(lines) + "\n")

    def start(self, *options: object) -> PlayerProcess:
        self.started.append(PlayerProcess(self.directory, *options))
        return self.started[-1]

    def rows(self, name: str) -> list[tuple[int, str, int]]:
        """What a shard was given, in this order: ids, payloads, and which process did it."""
        return self._asked(name, "select id, payload, process from given order by place")

    def count(self, name: str, process: int | None = None) -> int:
        """How much a shard was given; by one process alone, if that is named."""
        where = "" if process is None else f" where process = {process}"
        return sum(count for (count,) in self._asked(name, f"select count(*) from given{where}"))

    def _asked(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        path = self.directory / f"{name}.db"
        with (
            contextlib.suppress(sqlite3.OperationalError),  # not made yet
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db,
        ):
            return db.execute(sql).fetchall()
        return []

    def payloads(self, name: str) -> list[str]:
        return [payload for _, payload, _ in self.rows(name)]


@contextlib.contextmanager
def shop_with_shards(directory: Path, log: str, **settings: object) -> Iterator[ShopWithShards]:
    """A shop, of which no process stays."""
    shop = ShopWithShards(directory, log, **settings)
    try:
        yield shop
    finally:
        for process in shop.started:
            process.close()
