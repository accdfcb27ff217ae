"""The start of a session on disks that are all slow: who is a little later than a quorum takes part all the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import ConnectionLost
from polonaise.host import Host
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import Decided, ReplicaAnswer
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, UNRESOLVED
from polonaise.wire.messages import Join, SessionInfo
from polonaise_proving.stages.simulated.world import World

CLOSING, CRC = 12, 99
GOOD = ReplicaAnswer(7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, None)
VALUE = PartitionValue(1, 8, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
TOOK_S = {"A": 3.0, "B": 2.0, "C": 7.0}
"""How long each takes for a request that syncs."""


class Link:
    """The link to a replica that answers after a while; to `B` there is a connection only after a while."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self.closed = None
        self.session: Any = None if name == "B" else self

    async def connected(self) -> Any:
        if self.session is None:
            await asyncio.sleep(1.0)
            self.session = self
        return self

    async def until_closed(self, connection: Any) -> None:
        await asyncio.Event().wait()

    async def ask(self, connection: Any, message: Any, partition: int) -> Any:
        await asyncio.sleep(TOOK_S[self._name])
        if isinstance(message, Join):
            return None
        return SessionInfo(8, 7, NO_TRANSACTION, NO_TRANSACTION, CLOSING, CRC, UNRESOLVED)

    def abort(self, error: ConnectionLost) -> None:
        self.closed = error  # type: ignore[assignment]


class Starting:
    """An attempt in virtual time, and what it reported: whether another server may have what it waits for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._began_s = host.clock.monotonic_s()
        links = {name: Link(host, name) for name in "ABC"}
        shared: Any = SimpleNamespace(
            host=host, coordinator=None, settings=ServerSettings(gather_s=0.2), history=None, links=links
        )
        self.elsewhere: list[tuple[float, bool | None]] = []
        self.start = SessionStart(
            shared, partition=0, generation=1, known=recovery.NOTHING_KNOWN, first=False, report=self._report,
            answered=lambda *_: None, insufficient=lambda _: None,
        )  # fmt: skip
        self.start._connections = links  # type: ignore[assignment]

    def _report(self, waits_for: str, elsewhere: bool | None) -> None:
        self.elsewhere.append((round(self._host.clock.monotonic_s() - self._began_s, 1), elsewhere))


def in_virtual_time(main: Any) -> None:
    world = World(1)

    async def scenario() -> None:
        await world.machine("m").start(main).ended()

    world.run(scenario())


def test_a_replica_that_joins_a_little_later_than_a_quorum_is_not_left_out() -> None:
    joined: list[set[str]] = []

    async def main(host: Host) -> None:
        start = Starting(host).start
        start._answers = dict.fromkeys("ABC", GOOD)
        joined.append(await start._clean(VALUE, Decided(CLOSING, CRC, ("A", "B"))))

    in_virtual_time(main)
    assert joined == [{"A", "B", "C"}]


def test_a_replica_that_answers_a_little_later_than_a_quorum_takes_part() -> None:
    answered: list[list[str]] = []
    reports: list[tuple[float, bool | None]] = []

    async def main(host: Host) -> None:
        starting = Starting(host)
        await starting.start._fence_and_decide(VALUE)
        answered.append(sorted(starting.start._answers))
        reports.extend(starting.elsewhere)

    in_virtual_time(main)
    assert answered == [["A", "B", "C"]]
    assert reports[0] == (0.0, True), "B can't be reached"
    told_later = {elsewhere for at_s, elsewhere in reports if at_s >= 1.0}
    assert told_later == {False}, "all are reached, and slow: that is no reason for another server to own this"
    assert dict(reports)[1.0] is False
