"""A server that waits says for whom: in its log, by name, soon and again, and to clients that wait."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.errors import (
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    DeadlineExceeded,
    NotOwner,
    PartitionNotReady,
    PolonaiseError,
)
from polonaise.host import Host
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.recovery import ReplicaAnswer, Undecided
from polonaise.server.serverhealth import HealthWarnings, _Trouble
from polonaise.server.settings import ServerSettings
from polonaise.terms import partition_words
from rigs.town import Town, held_down, in_a_town, in_an_application
from rigs.waiting import wait_until


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "polonaise.server.serverhealth"]


@pytest.mark.parametrize(
    ("silent_s", "said"),
    [(0.0, "connected, being brought up to date: ids are copied"), (4.3, "connected, but silent for 4.3 s")],
)
def test_a_late_storage_node_that_hangs_is_not_said_to_be_brought_up_to_date(silent_s: float, said: str) -> None:
    links: Any = {"a": SimpleNamespace(session=object(), silent_s=silent_s)}
    warnings = HealthWarnings(cast(Host, None), ServerSettings(), list, links, ReadinessChanges())
    assert warnings._trouble_of("a", "ids are copied") == said


@pytest.mark.slow
@in_a_town
async def test_missing_storage_nodes_are_named_soon_and_again_until_there_is_a_quorum(
    town: Town, *, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = ServerSettings()
    away = town.cluster.storage[:2]
    await asyncio.sleep(0)  # the nodes are started
    for node in away:
        held_down(node)
    await asyncio.sleep(settings.warn_s + 10)
    (first,) = warnings(caplog)
    assert "partition 0" in first
    assert "1 of 3 storage nodes connected" in first
    assert all(node.name in first for node in away)
    assert town.cluster.storage[2].name not in first.partition("start these")[2]
    await asyncio.sleep(2 * settings.warn_again_s)
    assert len(warnings(caplog)) == 3
    for node in away:
        node.let_up()
    await asyncio.sleep(10)
    caplog.clear()
    await asyncio.sleep(3 * settings.warn_again_s)
    assert warnings(caplog) == []


@in_a_town
async def test_a_cluster_that_comes_up_is_not_warned_about(town: Town, *, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await asyncio.sleep(60)
    assert warnings(caplog) == []


@in_a_town
async def test_a_node_that_stays_away_is_named_while_commits_go_on_and_its_return_is_told(
    town: Town, *, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = ServerSettings()
    await asyncio.sleep(10)
    away = town.cluster.storage[1]
    held_down(away)
    await asyncio.sleep(settings.warn_s + 10)
    ended, late = warnings(caplog)
    assert "a session of partition 0 was ended by" in ended
    assert away.name in ended
    assert f"storage nodes have not taken part for {settings.warn_s:.0f} s: {away.name}" in late
    assert "nobody listens" in late
    caplog.clear()
    away.let_up()
    await asyncio.sleep(settings.warn_again_s)
    assert warnings(caplog) == ["all storage nodes take part again"]


@in_a_town
async def test_full_disks_are_told_though_the_partition_is_ready_most_of_the_time(
    town: Town, *, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main(log: Log) -> None:
        await log.append(b"there is room", 0)
        town.fill_disks()
        with pytest.raises(AppendExpired):
            await log.run(lambda tx: tx.append(bytes(10_000)), partition=0, timeout=20)

    await town.application("writer", main)
    (server,) = town.cluster.owners.values()
    health = server.health()["partitions"]["0"]
    assert not health["ready"]
    assert "no space left" in health["waits_for"]
    told = [text for text in warnings(caplog) if "no space left" in text]
    assert 1 <= len(told) <= 3, "said, and not all the time"


@in_a_town
async def test_what_befell_a_partition_that_another_server_owns_now_is_not_warned_about(
    town: Town, *, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = ServerSettings()

    async def main(log: Log) -> None:
        await log.append(b"there is room", 0)
        town.fill_disks()
        with pytest.raises(AppendExpired):
            await log.run(lambda tx: tx.append(bytes(10_000)), partition=0, timeout=settings.warn_again_s - 3)
        assert any("a session of partition 0 was ended by" in text for text in warnings(caplog))

    await town.application("writer", main)
    (server,) = town.cluster.owners.values()
    for served in server.partitions.values():
        served.close(NotOwner("another server owns it"))
    caplog.clear()
    await asyncio.sleep(10)  # while what happened last is not long ago, and it is time to warn again
    assert warnings(caplog) == []
    assert server.health()["partitions"]["0"]["session"] is None


def test_what_goes_on_is_not_warned_about_and_what_stops_is() -> None:
    trouble = _Trouble(patience_s=3.0, again_s=30.0)
    opening = [trouble.due(now, 100 - now) for now in range(95)]
    assert opening == [None] * 95, "another partition every second"
    stuck = [trouble.due(now, 6) for now in range(95, 160)]
    assert [(95 + place, lasted) for place, lasted in enumerate(stuck) if lasted is not None] == [
        (97, 3),
        (127, 33),
        (157, 63),
    ]
    assert trouble.due(160, 0) is None


class FaultyOwner:
    """As much of an owner as the warnings look at for faults."""

    def __init__(self, total: int) -> None:
        self.readiness = SimpleNamespace(faults=SimpleNamespace(total=total))


def test_the_latest_fault_is_told_and_not_that_of_the_partition_with_the_most() -> None:
    warnings = HealthWarnings(None, ServerSettings(), {}, {}, ReadinessChanges())  # type: ignore[arg-type]
    often, once = FaultyOwner(7), FaultyOwner(0)

    def look(owners: list[Any], now_s: float) -> Any:
        warnings._look_for_faults(owners, now_s)
        return warnings._last_faulty

    assert look([], 0.0) is None
    assert look([often, once], 1.0) is often
    assert look([often, once], 2.0) is often
    once.readiness.faults.total = 1
    assert look([often, once], 3.0) is once
    assert warnings._last_fault_s == 3.0
    assert look([often], 4.0) is None, "another server owns the partition now"


def test_a_partition_that_says_nothing_is_warned_about_with_words() -> None:
    warnings = HealthWarnings(None, ServerSettings(), {}, {}, ReadinessChanges())  # type: ignore[arg-type]
    silent = SimpleNamespace(partition=4, readiness=SimpleNamespace(waits_for=""))
    said = warnings._not_ready([silent], 3.0)  # type: ignore[list-item]
    assert said == "not ready for 3 s: partition 4. Reason: waiting for its next session"


@pytest.mark.parametrize(
    ("doubted", "needed", "answered", "alarms"),
    [
        (("a", "b", "c"), 2, [], False),
        (("b", "c"), 1, ["a"], False),
        (("a", "b", "c"), 2, ["a"], False),
        (("a", "b"), 1, ["a", "b", "c"], True),
        (("a", "b", "c"), 2, ["a", "b"], True),
    ],
)
def test_nodes_that_have_yet_to_answer_are_no_alarm(
    doubted: tuple[str, ...], needed: int, answered: list[str], alarms: bool
) -> None:
    told = Undecided(doubted, needed).waits_for(dict.fromkeys(answered, ReplicaAnswer(0, -1, -1, -1, 0, None)))
    assert ("may hold committed transactions" in told) is alarms
    assert all(name in told for name in set(doubted) - set(answered))


@in_an_application
async def test_health_of_a_partition_comes_from_a_server_that_knows_it_as_its_own(town: Town, log: Log) -> None:
    await log.append(b"the server is up", 0)
    (server,) = town.cluster.owners.values()
    unread = server.partitions.pop(0)  # as while it reads its first assignment
    asyncio.get_running_loop().call_later(2, server.partitions.__setitem__, 0, unread)
    assert (await log.health(0, timeout=10))["partitions"]["0"]["ready"]


def test_several_partitions_are_told_as_several() -> None:
    assert partition_words([3]) == "partition 3"
    assert partition_words([1, 3]) == "partitions 1, 3"
    assert partition_words([1, 3, 5], 2) == "partitions 1, 3 and 1 more"


FULL = "no space left"


def names(town: Town, *places: int) -> list[str]:
    return [town.name(place) for place in places]


async def failure_of(log: Log) -> PolonaiseError:
    """What the first append that fails fails with."""
    while True:
        receipt = log.append(bytes(2_000), 0)
        await receipt.wait(None)
        if receipt.error is not None:
            return receipt.error
        await log.ready(0)


@in_an_application
async def test_full_disks_are_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    await log.append(b"there is room", 0)
    assert log.trouble(0) is None
    town.fill_disks()
    failed = await failure_of(log)
    assert isinstance(failed, AppendFailed)
    assert FULL in failed.text
    assert any(f"storage node {name}" in failed.text for name in names(town, 0, 1, 2))
    with pytest.raises((AppendExpired, AppendUnknown)) as expired:
        await log.run(lambda tx: tx.append(bytes(2_000)), partition=0, timeout=10)
    assert FULL in expired.value.text
    assert all(f"storage node {name}" in expired.value.text for name in names(town, 0, 1, 2))
    trouble = log.trouble(0)
    assert isinstance(trouble, PartitionNotReady)
    assert FULL in trouble.text
    producer = asyncio.ensure_future(log.producer("p", partition=0, timeout=5))
    with pytest.raises(DeadlineExceeded, match=FULL):
        await producer
    for node in town.cluster.storage:
        node.machine.disk.free()
    receipt = await log.run(lambda tx: tx.append(b"there is room again"), partition=0, timeout=60)
    assert receipt.committed
    await wait_until(lambda: log.trouble(0) is None)


@in_an_application
async def test_a_full_disk_is_named_also_where_the_time_is_over_in_one_more_run(town: Town, log: Log) -> None:
    await log.append(b"there is room", 0)
    town.fill_disks()
    runs = 0

    async def context(tx: Draft) -> None:
        nonlocal runs
        runs += 1
        # The append of the first run is refused after most of the time; the deadline passes early in the second run.
        await asyncio.sleep(6 if runs == 1 else 30)
        tx.append(bytes(2_000))

    with pytest.raises(AppendExpired, match=rf"one more run of the context, .*{FULL}"):
        await log.run(context, partition=0, timeout=10)


@in_an_application
async def test_storage_nodes_that_are_missing_are_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    await log.append(b"all are there", 0)
    for node in town.cluster.storage[:2]:
        held_down(node)
    with pytest.raises(AppendUnknown) as unknown:
        await log.run(lambda tx: tx.append(b"x"), partition=0, timeout=5)
    assert all(name in unknown.value.text for name in names(town, 0, 1))
    trouble = log.trouble(0)
    assert trouble is not None
    assert all(name in trouble.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as late:
        await log.flush(0, timeout=5)
    assert all(name in late.value.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as unready:
        await log.ready(0, timeout=5)
    assert all(name in unready.value.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as undecided:
        await log.append(b"y", 0).applied(timeout=5)
    assert all(name in undecided.value.text for name in names(town, 0, 1))
    for node in town.cluster.storage[:2]:
        node.let_up()
    await log.run(lambda tx: tx.append(b"they are back"), partition=0, timeout=60)
    await wait_until(lambda: log.trouble(0) is None)


@in_an_application
async def test_a_coordinator_that_gives_no_answer_is_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    """Nobody refuses the server's requests: they are never answered, and its own deadline ends them."""
    await log.append(b"the session stands", 0)
    cluster = town.cluster
    cluster.service.configuration = replace(cluster.service.configuration, timeout_s=10_000.0)
    cluster.cut_off.add(cluster.servers[0].name)
    cluster.storage[0].crash()
    with pytest.raises(DeadlineExceeded, match="coordinator gave no answer"):
        await log.flush(0, timeout=30)
    trouble = await wait_until(lambda: log.trouble(0))
    assert "coordinator gave no answer" in trouble.text
    cluster.cut_off.clear()
    await log.run(lambda tx: tx.append(b"it answers again"), partition=0, timeout=60)
    await wait_until(lambda: log.trouble(0) is None)
