"""An attempt to start a session among three replicas, to which a test makes the links up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.host import Host
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import Decided, ReplicaAnswer
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION
from polonaise.testing.memory import MemoryHost

CLOSING, CRC = 12, 99
VALUE = PartitionValue(1, 8, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
DECIDED = Decided(CLOSING, CRC, ("A", "B"))
GOOD = ReplicaAnswer(7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, None)


def session_start(
    links: Mapping[str, Any],
    host: Host | None = None,
    *,
    gather_s: float = 0.01,
    report: Callable[[str, bool | None], None] = lambda *_: None,
) -> SessionStart:
    shared: Any = SimpleNamespace(
        host=host or MemoryHost(), coordinator=None, settings=ServerSettings(gather_s=gather_s), history=None,
        links=links,
    )  # fmt: skip
    return SessionStart(
        shared, partition=0, generation=1, known=recovery.NOTHING_KNOWN, first=False, report=report,
        answered=lambda *_: None, insufficient=lambda _: None,
    )  # fmt: skip
