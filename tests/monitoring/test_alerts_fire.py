"""Each fault fires its alert, by the metrics of the nodes that meet it; and nothing fires while all is well."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.errors import InsufficientReplicas
from polonaise.histogram import Histogram
from polonaise.host.real import RealClock
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import HttpFace, ObservedServer
from polonaise.node.monitoring.httplistener import HttpRequest
from polonaise.node.monitoring.samples import Samples
from polonaise.server.settings import ServerSettings
from polonaise.terms import Transaction
from rigs.alerts import fires
from rigs.town import Town, held_down, in_a_town, in_an_application

DAY_S = 86_400.0
OF_SERVERS = [
    "PolonaiseUnderReplicated", "PolonaiseReplicaFallsBehind", "PolonaiseCoordinatorTrouble", "PolonaiseClockOff",
    "PolonaiseClocksDiffer", "PolonaiseCommitTimesStandStill", "PolonaiseStorageDisconnected",
    "PolonaiseInsufficientReplicas", "PolonaiseGroupHindered",
]  # fmt: skip
"""The alerts on metrics of servers that are one comparison each."""


async def seen(town: Town) -> Samples:
    return await ObservedServer(town.server, town.server._host.clock).samples(Detail())


async def fired(town: Town, *alerts: str) -> None:
    """Wait until just these alerts fire."""
    before, firing = await seen(town), set[str]()
    try:
        async with asyncio.timeout(60.0):
            while firing != set(alerts):
                await asyncio.sleep(0.2)
                now = await seen(town)
                firing = {alert for alert in OF_SERVERS if fires(alert, now, before)}
    except TimeoutError:
        pytest.fail(f"{sorted(firing)} fire, not {sorted(alerts)}")


@in_an_application
async def test_a_clock_that_is_off(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    await fired(town)
    (node,) = town.cluster.servers
    node.machine.jump_clock(86_400.0)
    await fired(town, "PolonaiseClockOff", "PolonaiseClocksDiffer")
    node.machine.jump_clock(-86_400.0)
    await fired(town)


@in_an_application
async def test_a_storage_node_whose_clock_differs(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    town.cluster.storage[0].machine.jump_clock(-5.0)
    await fired(town, "PolonaiseClocksDiffer")


@in_a_town(server=ServerSettings(clock_off_s_max=1e9))
async def test_commit_times_that_stand_still(town: Town) -> None:
    machine = town.cluster.servers[0].machine
    await town.append(b"first")
    machine.jump_clock(3_600.0)
    await town.append(b"ahead")
    machine.jump_clock(-3_600.0)
    await fired(town, "PolonaiseCommitTimesStandStill")


@in_an_application
async def test_a_storage_node_that_is_gone(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    held_down(town.cluster.storage[0])
    await fired(town, "PolonaiseStorageDisconnected", "PolonaiseUnderReplicated")
    town.cluster.storage[0].let_up()
    await fired(town)


@in_an_application
async def test_a_coordinator_that_is_out_of_reach(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    (node,) = town.cluster.servers
    town.cluster.cut_off.add(node.name)
    await fired(town, "PolonaiseCoordinatorTrouble")
    town.cluster.cut_off.discard(node.name)
    await fired(town)


@in_an_application
async def test_a_group_that_can_not_go_on(town: Town, log: Log) -> None:
    async def handle(tx: Transaction) -> None:
        raise LookupError("no such invoice")

    await log.append(b"first", 0)
    async with log.group("billing", handler=handle):
        await fired(town, "PolonaiseGroupHindered")


@in_an_application
async def test_appends_that_lack_copies(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await seen(town)
    with pytest.raises(InsufficientReplicas):
        await log.append(b"needs more than there are", 0, copies=4)
    assert fires("PolonaiseInsufficientReplicas", await seen(town), before)


class Node:
    """A node with which all is well."""

    def labels(self) -> tuple[str, str]:
        return "server", "1"

    def not_ready(self) -> str:
        return ""

    async def health(self) -> dict[str, Any]:
        return {}

    async def samples(self, detail: Detail) -> Samples:
        return Samples()


@pytest.mark.parametrize(
    ("left_s", "status", "alarms"), [(20 * DAY_S, 200, False), (DAY_S, 200, True), (-1, 503, True)]
)
async def test_a_certificate_that_expires(left_s: float, status: int, alarms: bool) -> None:
    told: list[Samples] = []

    def text(samples: Samples, _: str) -> tuple[bytes, str]:
        told.append(samples)
        return b"", ""

    now_s = RealClock().wall_us() / 1e6
    network: Any = SimpleNamespace(
        expires_s=now_s + left_s, trouble="the certificate has expired on 2027-01-01 12:00 UTC"
    )
    face = HttpFace(Node(), RealClock(), text, Histogram(), "1", network)
    await face.answer(HttpRequest("/metrics", {}, ""))
    assert fires("PolonaiseCertificateExpires", told[0], now_s=now_s) == alarms
    answer = await face.answer(HttpRequest("/ready", {}, ""))
    assert answer.status == status
    assert (b"2027-01-01 12:00" in answer.body) == (status == 503)
