"""Replicas that a session's start leaves out, and partitions that a server gives up: who asks is told why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.coordination.values import Assignment, Engagement, Owner, PartitionValue
from polonaise.errors import ConsistencyLost, DeadlineExceeded, InvariantViolated, LogForked, PolonaiseError
from polonaise.node.condition import server_troubles
from polonaise.server.protocol.recovery import ReplicaAnswer
from polonaise.server.sessionstart import SessionStart
from polonaise.server.unservable import is_served_by_another
from polonaise.terms import NO_SESSION, NO_TRANSACTION
from polonaise.wire.messages import Join
from rigs.sessionstart import CLOSING, CRC, DECIDED, GOOD, VALUE, session_start
from rigs.town import Town, held_down, in_a_town
from rigs.unretrieved import errors_nobody_took
from rigs.waiting import time_passes, wait_until


class Replica:
    """A connection to one that joins at once, or never. What is to be copied is not told either."""

    def __init__(self, joins: bool) -> None:
        self.joins = joins
        self.closed = None
        self.aborted = ""

    async def request(self, message: Any, **_: Any) -> None:
        if not (self.joins and isinstance(message, Join)):
            await asyncio.Event().wait()

    def abort(self, error: Exception) -> None:
        self.aborted = str(error)


def starting(replicas: Mapping[str, Any], answers: dict[str, ReplicaAnswer]) -> SessionStart:
    """An attempt for which these replicas were fenced, and have answered."""

    async def ask(connection: Any, message: Any, partition: int) -> Any:
        return await connection.request(message, partition=partition, deadline_s=5.0)

    start = session_start(dict.fromkeys("ABC", SimpleNamespace(ask=ask, session=None)))
    start._answers = dict(answers)
    start._connections = replicas  # type: ignore[assignment]
    return start


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (
            ReplicaAnswer(NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, NO_TRANSACTION, 0, None),
            "found empty, and is being filled",
        ),
        (ReplicaAnswer(7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, None), "it was too slow"),
    ],
)
async def test_a_replica_that_was_found_empty_is_not_called_slow(late: ReplicaAnswer, told: str) -> None:
    replicas = {"A": Replica(True), "B": Replica(True), "C": Replica(False)}
    start = starting(replicas, {"A": GOOD, "B": GOOD, "C": late})
    assert await start._clean(VALUE, DECIDED) == {"A", "B"}
    assert told in replicas["C"].aborted
    assert replicas["A"].aborted == ""


class Failing(Replica):
    """A connection to one whose request fails with what it is told to fail with."""

    def __init__(self) -> None:
        super().__init__(joins=False)
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def request(self, message: Any, **_: Any) -> None:
        await self.outcome


async def cancelled_as_its_replicas_fail(error: Exception) -> None:
    """Cancel an attempt in the turn of the loop in which its replicas fail, as in a process that was stopped for long:
    when it goes on, its registration has run out, and so have the deadlines of its requests."""
    replicas = {name: Failing() for name in "ABC"}
    start = starting(replicas, dict.fromkeys("ABC", GOOD))
    attempt = asyncio.ensure_future(start._clean(VALUE, DECIDED))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for replica in replicas.values():
        replica.outcome.set_exception(error)
    await asyncio.sleep(0)  # the replicas' tasks have ended, and the attempt has not heard of it
    attempt.cancel()
    await asyncio.wait([attempt])
    assert attempt.cancelled()


@pytest.mark.parametrize("error", [DeadlineExceeded("no answer to Join"), LogForked("another CRC")])
async def test_an_attempt_that_ends_as_its_replicas_fail_leaves_no_error_that_nobody_takes(error: Exception) -> None:
    with errors_nobody_took() as told:
        await cancelled_as_its_replicas_fail(error)
    assert told == []


async def test_one_replica_that_contradicts_stops_the_partition_and_the_failures_of_others_are_no_news() -> None:
    replicas = {name: Failing() for name in "ABC"}
    start = starting(replicas, dict.fromkeys("ABC", GOOD))
    with errors_nobody_took() as told:
        attempt = asyncio.ensure_future(start._clean(VALUE, DECIDED))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        replicas["A"].outcome.set_exception(LogForked("another CRC"))
        for name in "BC":
            replicas[name].outcome.set_exception(DeadlineExceeded("no answer to Join"))
        await asyncio.wait([attempt])
        assert isinstance(attempt.exception(), ConsistencyLost)
        del attempt
    assert told == []


async def test_a_mistake_of_ours_that_an_attempt_does_not_wait_for_is_told_all_the_same() -> None:
    mistake = InvariantViolated("a mistake")
    with errors_nobody_took() as told:
        await cancelled_as_its_replicas_fail(mistake)
    assert mistake in told


@in_a_town
async def test_why_an_earlier_life_of_a_replica_was_not_copied_to_is_not_told_of_its_next_one(town: Town) -> None:
    await town.append(b"1" * 1000)
    late = town.cluster.storage[2]
    name = town.cluster.storage_id(late)
    held_down(late, wiped=True)
    late.machine.disk.fill(600)
    late.let_up()

    def told() -> str:
        """What is told of it while it takes no part."""
        return str(town.server.health()["partitions"].get("0", {}).get("late", {}).get(name, "it takes part"))

    await wait_until(lambda: "no space left" in told())
    held_down(late)
    late.machine.disk.free()
    late.let_up()
    await wait_until(lambda: "no space left" not in told())
    assert told() == ""
    await wait_until(lambda: told() == "it takes part")


def told(town: Town) -> list[str]:
    """What the servers tell of partitions that they have given up, one line each."""
    lines = [line for server in town.cluster.running_servers for line in server_troubles(server.health())]
    return [line for line in lines if "has given up" in line]


def ready(town: Town) -> bool:
    health = [server.health()["partitions"].get("0") for server in town.cluster.running_servers]
    return any(each is not None and each["ready"] for each in health)


@in_a_town(servers=2)
async def test_servers_that_reach_all_that_is_there_blame_what_keeps_the_partition_closed(town: Town) -> None:
    await town.append(b"1")
    for node in town.cluster.storage[1:]:
        held_down(node)
    await wait_until(lambda: told(town))
    assert all(f"waits for an answer from 1 of {town.name(1)}, {town.name(2)}" in line for line in told(town))


@in_a_town(servers=2)
async def test_full_disks_are_blamed_by_name_for_a_partition_that_is_given_up(town: Town) -> None:
    await town.append(b"1")
    town.fill_disks()

    async def appending(log: Log) -> None:
        while True:
            with contextlib.suppress(TimeoutError, PolonaiseError):
                async with asyncio.timeout(1.0):
                    await log.append(b"2")
            await time_passes(0.1)

    task = asyncio.create_task(town.application("writer", appending))
    await wait_until(lambda: told(town))
    assert all("no space left on the disk" in line for line in told(town))
    task.cancel()


@pytest.mark.slow
@in_a_town(servers=2)
async def test_what_another_server_serves_again_is_not_told_as_given_up(town: Town) -> None:
    await town.append(b"1")
    await wait_until(lambda: ready(town))
    first, *_ = (node for node in town.cluster.servers if town.cluster.owns(node))
    server = town.cluster.owners[first.name]
    town.world.network.partition(first.name, [node.name for node in town.cluster.storage])
    await wait_until(lambda: told(town))
    await wait_until(lambda: ready(town) and not told(town), within_s=20.0)
    assert server.given_up == {0}, "the others are told, so that it does not come back too early"
    assert server.measures().own.given_up_why == {}


@in_a_town(servers=2)
async def test_once_the_storage_nodes_are_back_nobody_says_that_a_partition_is_given_up(town: Town) -> None:
    await town.append(b"1")
    for node in town.cluster.storage[1:]:
        held_down(node)
    await wait_until(lambda: all(server.given_up for server in town.cluster.running_servers))
    assert len(told(town)) == 2
    for node in town.cluster.storage[1:]:
        node.let_up()
    await wait_until(lambda: ready(town))
    await wait_until(lambda: not told(town), within_s=3.0)
    (serving,) = (each for each in town.cluster.running_servers if 0 in each.partitions)
    assert serving.given_up == {0}, "others are told for a while that it may be struggling"
    own = serving.measures().own
    assert (own.given_up, own.given_up_why) == ([], {})


def test_a_partition_is_served_by_another_once_its_owner_has_begun_a_session() -> None:
    assignment = Assignment({0: Owner(2, "b:1", 5)})

    def served(value: PartitionValue, own: int = 1) -> bool:
        return is_served_by_another(0, value, assignment, own)

    engaged = {name: Engagement(8) for name in "AB"}
    begun = PartitionValue(5, 8, ("A", "B", "C"), None, engaged)
    assert served(begun)
    assert not served(begun, own=2)
    assert not served(PartitionValue(5, 9, ("A", "B", "C"), None, engaged)), "it has claimed a session only"
    assert not served(PartitionValue(4, 8, ("A", "B", "C"), None, engaged)), "that was the owner before"
    assert not is_served_by_another(1, begun, assignment, 1)
