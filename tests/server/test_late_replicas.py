"""Late replicas: what is copied to them, from where, how quickly, and beside each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import ConnectionLost, HistoryTrimmed, PolonaiseError
from polonaise.host import Host
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.monitoring.samples import Detail
from polonaise.patience import SyncPatience
from polonaise.server.archivedhistory import read_to_copy
from polonaise.server.catchup import CatchUp
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.settings import ServerSettings
from polonaise.terms import UNRESOLVED, StorageId
from polonaise.wire.codec import Message
from polonaise.wire.messages import LastSessionInfo, ReadBatches, SessionInfo
from polonaise_proving.stages.simulated.cluster import Node
from polonaise_proving.stages.simulated.world import World
from rigs.town import Town, held_down, in_an_application
from rigs.waiting import wait_until

KB = 1_000
BODY = bytes(10 * KB)
WITHIN_S = 300.0


async def engaged(log: Log, count: int) -> None:
    async def as_many() -> bool:
        health = await log.health(0, timeout=60)
        return len(health["partitions"]["0"]["engaged"]) == count

    await wait_until(as_many, f"{count} replicas engaged", within_s=WITHIN_S, every_s=0.5)


async def append(log: Log, count: int) -> None:
    for _ in range(count):
        await log.run(lambda tx: tx.append(BODY), partition=0, timeout=60)


async def late_by(town: Town, log: Log, count: int) -> Node:
    """Keep a storage node away while so many transactions of 10 KB are committed."""
    await engaged(log, 3)
    away = town.cluster.storage[2]
    held_down(away)
    await engaged(log, 2)
    await append(log, count)
    return away


def slow(**settings: float) -> ServerSettings:
    """Return the settings of a server that copies 100 KB at a time, 100 KB a second at most."""
    bounds = {"copy_bytes": 100 * KB, "copy_bytes_per_s": 100 * KB, "copy_bytes_per_s_min": 50 * KB}
    return ServerSettings(readmit_transactions=5, **{**bounds, **settings})  # type: ignore[arg-type]


@in_an_application(server=slow())
async def test_a_late_replica_is_copied_to_at_the_rate_that_was_set(town: Town, log: Log) -> None:
    away = await late_by(town, log, 100)  # a megabyte
    server = town.server
    away.let_up()
    began_s = asyncio.get_running_loop().time()
    await wait_until(lambda: server.health()["copies"]["bytes"] > 0, within_s=WITHIN_S, every_s=0.1)
    samples = await ObservedServer(lambda: server, server.parts.shared.host.clock).samples(Detail())
    assert samples.value(metrics.COPIED_BYTES) > 0
    assert samples.value(metrics.COPY_RATE) == 100 * KB
    await engaged(log, 3)
    assert 8 <= asyncio.get_running_loop().time() - began_s <= 40
    copies = server.health()["copies"]
    assert copies["bytes"] > 900 * KB
    assert copies["under_way"] == copies["waiting"] == 0


@in_an_application(server=slow(copy_bytes_per_s=4 * KB, copy_bytes_per_s_min=4 * KB))
async def test_a_copy_that_a_session_needs_is_not_throttled(town: Town, log: Log) -> None:
    away = await late_by(town, log, 200)  # two megabytes: more than eight minutes in the background
    held_down(town.cluster.storage[0])
    away.let_up()
    began_s = asyncio.get_running_loop().time()
    await append(log, 1)
    assert asyncio.get_running_loop().time() - began_s < 20


@pytest.mark.slow
@in_an_application(server=slow(copy_bytes_per_s=50 * KB, warn_again_s=10.0))
async def test_a_replica_that_falls_behind_for_ever_is_named_with_what_to_do(town: Town, log: Log) -> None:
    away = await late_by(town, log, 50)
    name = town.cluster.storage_id(away)
    server = town.server
    away.let_up()

    async def go_on_appending() -> None:  # about 200 KB a second, while 50 KB are copied
        while True:
            await append(log, 1)
            await asyncio.sleep(0.05)

    appending = asyncio.create_task(go_on_appending())
    late = server.partitions[0].owner.readiness.late
    await wait_until(lambda: "falls behind" in late[name], within_s=WITHIN_S, every_s=0.5)
    assert "copy_bytes_per_s_min" in late[name]
    samples = await ObservedServer(lambda: server, server.parts.shared.host.clock).samples(Detail())
    assert samples.value(metrics.FALLING_BEHIND) == 1
    appending.cancel()
    await engaged(log, 3)
    samples = await ObservedServer(lambda: server, server.parts.shared.host.clock).samples(Detail())
    assert samples.value(metrics.FALLING_BEHIND) == 0


def readmitted(
    monkeypatch: pytest.MonkeyPatch, *, next: str = "", copied_never: str = "", rests_s: float = 0.0
) -> list[tuple[StorageId, int]]:
    """Return which replicas a session lets back in within a minute, each with the second.

    Of a, b and c, two are engaged. Copying takes no time, or for ever for those that are named.
    """
    world = World(1)
    value = PartitionValue(3, 7, ("a", "b", "c"), next=tuple(next) or None)
    found: list[tuple[StorageId, int]] = []

    async def copy_to(_: CatchUp, name: StorageId) -> None:
        if name in copied_never:
            await asyncio.Event().wait()

    monkeypatch.setattr(CatchUp, "_copy_to", copy_to)

    async def main(host: Host) -> None:
        began_s = host.clock.monotonic_s()
        session: Any = SimpleNamespace(id=7, value=value, engaged={"a", "b"}, rests_until_s=began_s + rests_s)
        owner = SimpleNamespace(session=session, partition=0, generation=3, committed=9, readiness=Readiness(0))

        def readmit(name: StorageId) -> None:
            found.append((name, round(host.clock.monotonic_s() - began_s)))
            owner.session = None

        reader: Any = SimpleNamespace(owner=owner, ask=None)
        links = dict.fromkeys("cd", SimpleNamespace(session=1, bulk=1))
        shared: Any = SimpleNamespace(host=host, settings=ServerSettings(), links=links, copies=None)
        await CatchUp(shared, reader, session, readmit, 0.0).run()

    async def scenario() -> None:
        process = world.machine("m").start(main)
        await asyncio.sleep(60)
        process.crash()

    world.run(scenario())
    return found


def test_a_copy_that_is_added_comes_in_beside_a_member_that_falls_behind_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ((name, second),) = readmitted(monkeypatch, next="abcd", copied_never="c")
    assert (name, second < 5) == ("d", True)


def test_a_session_whose_start_took_long_is_not_ended_at_once_to_let_a_replica_back_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where disks are slow, sessions would else do little but start."""
    assert readmitted(monkeypatch, rests_s=30.0) == [("c", 30)]


class _Turns:
    @contextlib.asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(worked_s=0.0)

    copy = turn


async def test_a_late_replica_is_copied_what_is_committed_while_more_is_on_its_way() -> None:
    asked: list[Message] = []

    async def ask(name: str, message: Message) -> Message:
        asked.append(message)
        if isinstance(message, LastSessionInfo):
            return SessionInfo(
                fence=4, joined=3, prepared=-1, confirmed=1, max_synced=1, last_crc=7, lost_above=UNRESOLVED
            )
        raise ConnectionLost("gone")

    owner = SimpleNamespace(committed=5, partition=0, readiness=Readiness(0))
    engagements = {"A": Engagement(4), "B": Engagement(4), "C": Engagement(3, 1)}
    value = PartitionValue(1, 4, ("A", "B", "C"), engagements=engagements)
    session = SimpleNamespace(id=4, value=value, closing=1, sent=9, engaged={"A": None}, pace_s=0.0)
    clock = SimpleNamespace(monotonic_s=lambda: 0.0)
    shared: Any = SimpleNamespace(
        host=SimpleNamespace(clock=clock), settings=ServerSettings(), links={}, copies=_Turns(), history=None
    )
    reader: Any = SimpleNamespace(owner=owner, ask=ask, ask_to_read=ask, patience=SyncPatience(5, 60), history=None)
    catch_up = CatchUp(shared, reader, session, lambda name: None, 0.0)  # type: ignore[arg-type]
    with pytest.raises(ConnectionLost):
        await catch_up._copy_to("C")
    assert [(read.first, read.last) for read in asked if isinstance(read, ReadBatches)] == [(2, 5)]


TRIMMED = HistoryTrimmed("the log begins at 7", 7)
AWAY = ConnectionLost("gone")
ASKED = ReadBatches(4, 0, 6, 1_000, 1, 0)


@pytest.mark.parametrize("answers", [{"A": TRIMMED, "B": AWAY}, {"A": AWAY, "B": TRIMMED}])
async def test_that_one_source_has_trimmed_the_log_is_seen_whatever_another_one_answers(
    answers: dict[str, PolonaiseError],
) -> None:
    async def ask(name: str, request: Message) -> Message:
        raise answers[name]

    with pytest.raises(HistoryTrimmed, match="started without the fragments"):
        await read_to_copy(ask, answers, ASKED, 0, None, AWAY)
    answers["A"] = answers["B"] = AWAY
    with pytest.raises(ConnectionLost):
        await read_to_copy(ask, answers, ASKED, 0, None, AWAY)
