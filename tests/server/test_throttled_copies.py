"""Copies to late replicas keep to their bounds, except for those that a session needs; who falls behind is named."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from polonaise.client.log import Log
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import ObservedServer
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.settings import ServerSettings
from polonaise_proving.stages.simulated.cluster import Node
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


@in_an_application(server=slow(warn_again_s=10.0))
async def test_a_replica_that_cant_be_copied_to_is_told_with_why_and_not_with_what_does_not_help(
    town: Town, log: Log
) -> None:
    away = await late_by(town, log, 50)
    name, disk = town.cluster.storage_id(away), away.machine.disk
    disk.fill(50 * KB)
    away.let_up()
    said = []
    note = Readiness.replica_late

    def noted(self: Readiness, late: str, reason: str) -> None:
        said.append(reason)
        note(self, late, reason)

    with patch.object(Readiness, "replica_late", noted):
        for _ in range(60):
            await append(log, 1)
            await asyncio.sleep(0.5)
    assert name in town.server.partitions[0].owner.readiness.late
    assert any("no space left" in each for each in said)
    assert not any("falls behind" in each for each in said)
    disk.free()
    await engaged(log, 3)
