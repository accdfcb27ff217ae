"""What a late replica is given in the background: what is committed, and nothing that is only sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import ConnectionLost
from polonaise.patience import SyncPatience
from polonaise.server.catchup import CatchUp
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.settings import ServerSettings
from polonaise.terms import UNRESOLVED
from polonaise.wire.codec import Message
from polonaise.wire.messages import LastSessionInfo, ReadBatches, SessionInfo


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
