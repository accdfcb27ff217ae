"""Bad input to a player and its targets: it stops what it concerns, with its name in health, and nothing is skipped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, inspect, select

import polonaise
from polonaise.errors import ProducerFenced
from polonaise.player import DeliverySource, Fence, Player, PlayerSettings, RoutedEntry, SqlDeliveryTarget
from polonaise.player.player import ASKED_TERM
from polonaise.player.routing import PAYLOAD_BYTES_MAX
from polonaise.terms import Transaction
from rigs.deliverystreams import REMOTE, Remote
from rigs.waiting import wait_until

SCHEMA = MetaData()
LINES = Table(
    "lines",
    SCHEMA,
    Column("number", Integer, primary_key=True),
    Column("partition_id", Integer, nullable=False),
    Column("line", String(100), nullable=False, unique=True),
)
QUICK = PlayerSettings(retry_s_min=0.005, retry_s_max=0.05, start_patience_s=0.1)


class Lines(SqlDeliveryTarget):
    """Keeps each entry as a row; what is no text can't be decoded, until `lenient` is set."""

    metadata = SCHEMA
    lenient = False

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        assert entry.payload is not None
        line = entry.payload.decode(errors="replace" if self.lenient else "strict")
        db.execute(LINES.insert(), {"partition_id": partition, "line": line})


def kept(path: Path) -> list[tuple[int, str]]:
    engine = create_engine(f"sqlite:///{path}")
    try:
        with engine.connect() as db:
            if not inspect(db).has_table(LINES.name):
                return []
            rows = db.execute(select(LINES).order_by(LINES.c.partition_id, LINES.c.number))
            return [(row.partition_id, row.line) for row in rows]
    finally:
        engine.dispose()


def change(path: Path, statement: str) -> None:
    """Change the memory of a target behind its back."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as db:
        db.exec_driver_sql(statement)
    engine.dispose()


def route(tx: Transaction) -> Mapping[str, bytes]:
    """`ab:rest` goes to the targets a and b; `huge:` is more than a message carries."""
    names, _, rest = tx.data.partition(b":")
    if names == b"huge":
        return {"a": bytes(PAYLOAD_BYTES_MAX + 1)}
    return dict.fromkeys(names.decode(), rest)


class Delivering:
    """A log with two partitions, and a player that delivers to `a` and `b`, each served to it over a transport."""

    def __init__(
        self, log: polonaise.Log, player: Player, targets: dict[str, Lines], addresses: dict[str, str]
    ) -> None:
        self.log = log
        self.player = player
        self.targets = targets
        self.addresses = addresses

    async def write(self, partition: int, *bodies: bytes) -> None:
        for body in bodies:
            await self.log.append(body, partition=partition)

    def hindered(self, target: str) -> dict[str, str]:
        told: dict[str, str] = self.player.health()["targets"][target]["hindered"]
        return told

    async def until_hindered(self, target: str, partition: str, why: str) -> None:
        await wait_until(
            lambda: why in self.hindered(target).get(partition, ""), f"{target} is hindered: {self.player.health()}"
        )
        assert not self.player.health()["well"]


@contextlib.asynccontextmanager
async def delivering(
    tmp_path: Path, transport: Remote, *, create: bool = True, served: Mapping[str, str] | None = None
) -> AsyncIterator[Delivering]:
    """With `served`, the servers know the targets by other names than the player: by name, the one that is served."""
    async with contextlib.AsyncExitStack() as stack:
        log = await stack.enter_async_context(polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2"))
        targets, endpoints, addresses = {}, {}, {}
        for name in "ab":
            targets[name] = Lines(f"sqlite:///{tmp_path / name}.db", create=create or name == "b")
            stack.push_async_callback(targets[name].close)
            known = {(served or {}).get(name, name): targets[name]}
            server = await stack.enter_async_context(transport.serving(known))
            addresses[name] = server.address
            endpoints[name] = await stack.enter_async_context(transport.endpoint(server.address))
        player = await stack.enter_async_context(Player(log, "p", route, endpoints, settings=QUICK))
        yield Delivering(log, player, targets, addresses)


@pytest.fixture(params=sorted(REMOTE))
def transport(request: pytest.FixtureRequest) -> Remote:
    return REMOTE[request.param]


async def until_kept(path: Path, *rows: tuple[int, str]) -> None:
    await wait_until(lambda: path.exists() and kept(path) == list(rows), f"{path.name} has {rows}")


async def test_an_undecodable_entry(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1", b"a:\xff", b"ab:2")
        await at.write(1, b"ab:3")
        await at.until_hindered("a", "0", "UnicodeDecodeError")
        await until_kept(tmp_path / "a.db", (0, "1"), (1, "3"))
        await until_kept(tmp_path / "b.db", (0, "1"), (0, "2"), (1, "3"))
        assert at.hindered("b") == {}
        at.targets["a"].lenient = True
        await until_kept(tmp_path / "a.db", (0, "1"), (0, "\ufffd"), (0, "2"), (1, "3"))
        await wait_until(lambda: at.player.health()["well"], "nothing was skipped, and all is well")


async def test_a_sql_error_in_apply(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"a:same", b"a:same", b"a:next")
        await at.write(1, b"ab:3")
        await at.until_hindered("a", "0", "UNIQUE constraint failed: lines.line")
        await until_kept(tmp_path / "a.db", (0, "same"), (1, "3"))
        await until_kept(tmp_path / "b.db", (1, "3"))


async def test_an_unknown_target_in_the_route(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1", b"z:2", b"ab:3")
        await at.write(1, b"ab:4")
        await wait_until(lambda: at.player.health()["partitions"]["0"]["stopped"], "partition 0 has stopped")
        assert "no target is called 'z': there are a, b" in at.player.health()["partitions"]["0"]["stopped"]
        assert at.player.health()["partitions"]["1"]["stopped"] == ""
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"), (1, "4"))


async def test_a_target_that_its_server_does_not_know(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport, served={"a": "other"}) as at:
        await at.write(0, b"ab:1")
        await until_kept(tmp_path / "b.db", (0, "1"))
        await wait_until(lambda: "other" in at.player.health()["targets"]["a"]["reason"], "it is told what there is")
        assert not at.player.health()["well"]


async def test_a_target_of_another_log(tmp_path: Path, transport: Remote) -> None:
    """Of one that is another log by its key, and of one whose ids are beyond the log's end."""
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1", b"ab:2")
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"), (0, "2"))
    (tmp_path / "log").rename(tmp_path / "away")
    async with delivering(tmp_path, transport) as at:
        await wait_until(
            lambda: all("for log" in each["reason"] for each in at.player.health()["targets"].values()), "both refuse"
        )
        await at.write(0, b"ab:3")
        assert not at.player.health()["well"]
    for name in "ab":
        assert kept(tmp_path / f"{name}.db") == [(0, "1"), (0, "2")]


async def test_an_index_beyond_the_end_of_the_log(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1")
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"))
    change(tmp_path / "a.db", "UPDATE polonaise_delivery_ids SET high_water_mark = 1000 WHERE partition = 0")
    async with delivering(tmp_path, transport) as at:
        await at.until_hindered("a", "0", "it has applied 1000, and the log ends with")
        await at.write(0, b"ab:2")
        await at.write(1, b"ab:3")
        await until_kept(tmp_path / "b.db", (0, "1"), (0, "2"), (1, "3"))
        await until_kept(tmp_path / "a.db", (0, "1"), (1, "3"))


async def test_a_lower_epoch(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1")
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"))
        change(tmp_path / "a.db", "UPDATE polonaise_delivery_fence SET epoch = 99")
        await at.write(0, b"a:2")
        with pytest.raises(
            ProducerFenced, match=r"target a keeps epoch 99, of a player that began later, .* and this one has epoch 1"
        ):
            await at.player.ended()
        assert "epoch 99" in at.player.health()["ended"]
    assert kept(tmp_path / "a.db") == [(0, "1")]


async def test_a_lower_term(tmp_path: Path, transport: Remote) -> None:
    """Another one of the same epoch: the target's word counts, and the next term is above it."""
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1")
        await until_kept(tmp_path / "a.db", (0, "1"))
        change(tmp_path / "a.db", "UPDATE polonaise_delivery_fence SET term = 40")
        await at.write(0, b"ab:2")
        await until_kept(tmp_path / "a.db", (0, "1"), (0, "2"))
        await until_kept(tmp_path / "b.db", (0, "1"), (0, "2"))
        assert at.player.health()["targets"]["a"]["term"] > 40
        assert at.player.health()["targets"]["b"]["term"] == ASKED_TERM + 1


async def test_a_message_over_the_limit(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        await at.write(0, b"ab:1", b"huge:", b"ab:2")
        await at.write(1, b"ab:3")
        await wait_until(lambda: at.player.health()["partitions"]["0"]["stopped"], "partition 0 has stopped")
        assert "have the route function return less" in at.player.health()["partitions"]["0"]["stopped"]
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"), (1, "3"))


async def test_a_missing_schema(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport, create=False) as at:
        await at.write(0, b"ab:1")
        await until_kept(tmp_path / "b.db", (0, "1"))
        await wait_until(lambda: "is missing: create it" in at.player.health()["targets"]["a"]["reason"], "it is named")
        assert not at.player.health()["well"]
        made = Lines(f"sqlite:///{tmp_path / 'a.db'}")
        await made.accept(Fence(1, 1), DeliverySource(at.log.log_key, "p", "a"))
        await made.close()
        await until_kept(tmp_path / "a.db", (0, "1"))


async def test_hostile_bytes_on_the_port_of_a_target(tmp_path: Path, transport: Remote) -> None:
    async with delivering(tmp_path, transport) as at:
        host, _, port = at.addresses["a"].partition("://")[2].rpartition(":")
        for junk in (b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4_096):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(junk)
            await writer.drain()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await at.write(0, b"ab:1", b"ab:2")
        for name in "ab":
            await until_kept(tmp_path / f"{name}.db", (0, "1"), (0, "2"))
        assert await settled(at)
        assert at.player.health()["targets"]["a"]["term"] == ASKED_TERM + 1, "the player's own stream was not harmed"


async def settled(at: Delivering) -> Any:
    return await wait_until(lambda: at.player.health()["well"], "all is well")
