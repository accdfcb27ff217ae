"""A replica that the start of a session does not wait for is told why, and so is whoever asks how it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import Decided, ReplicaAnswer
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_SESSION, NO_TRANSACTION
from polonaise.testing.memory import MemoryHost
from polonaise.wire.messages import Join

CLOSING, CRC = 12, 99


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
    async def ask(connection: Any, message: Any, partition: int) -> Any:
        return await connection.request(message, partition=partition, deadline_s=5.0)

    link = SimpleNamespace(ask=ask, session=None)
    shared: Any = SimpleNamespace(
        host=MemoryHost(), coordinator=None, settings=ServerSettings(gather_s=0.01), history=None,
        links=dict.fromkeys("ABC", link),
    )  # fmt: skip
    start = SessionStart(
        shared, partition=0, generation=1, known=recovery.NOTHING_KNOWN, first=False, report=lambda _, __: None,
        answered=lambda _, __: None, insufficient=lambda _: None,
    )  # fmt: skip
    good = ReplicaAnswer(7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, None)
    replicas = {"A": Replica(True), "B": Replica(True), "C": Replica(False)}
    start._answers = {"A": good, "B": good, "C": late}
    start._connections = replicas  # type: ignore[assignment]
    value = PartitionValue(1, 8, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
    assert await start._clean(value, Decided(CLOSING, CRC, ("A", "B"))) == {"A", "B"}
    assert told in replicas["C"].aborted
    assert replicas["A"].aborted == ""
