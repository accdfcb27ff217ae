"""A replica that the start of a session does not wait for is told why, and so is whoever asks how it is.

What a replica answers to a start that is over is no error of the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import ConsistencyLost, DeadlineExceeded, InvariantViolated, LogForked
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import Decided, ReplicaAnswer
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_SESSION, NO_TRANSACTION
from polonaise.testing.memory import MemoryHost
from polonaise.wire.messages import Join
from rigs.town import Town, held_down, in_a_town
from rigs.unretrieved import errors_nobody_took
from rigs.waiting import wait_until

CLOSING, CRC = 12, 99
VALUE = PartitionValue(1, 8, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
DECIDED = Decided(CLOSING, CRC, ("A", "B"))
GOOD = ReplicaAnswer(7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, None)


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

    link = SimpleNamespace(ask=ask, session=None)
    shared: Any = SimpleNamespace(
        host=MemoryHost(), coordinator=None, settings=ServerSettings(gather_s=0.01), history=None,
        links=dict.fromkeys("ABC", link),
    )  # fmt: skip
    start = SessionStart(
        shared, partition=0, generation=1, known=recovery.NOTHING_KNOWN, first=False, report=lambda _, __: None,
        answered=lambda *_: None, insufficient=lambda _: None,
    )  # fmt: skip
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
