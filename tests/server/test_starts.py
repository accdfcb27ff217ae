"""The turns in which partitions start their sessions, also on slow disks, and a server that starts itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.errors import ConnectionLost, CoordinatorUnavailable, DeadlineExceeded
from polonaise.host import Host
from polonaise.node.addresses import coordinator_at
from polonaise.server import catchup
from polonaise.server.archivedhistory import ToCopy
from polonaise.server.catchup import CatchUp
from polonaise.server.node import Server
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.session import StartedSession
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.server.startingserver import StartingServer
from polonaise.server.turns import StartTurns
from polonaise.terms import NO_TRANSACTION, UNRESOLVED, PartitionId, TransactionId
from polonaise.wire.messages import Join, SessionInfo
from polonaise_proving.stages.simulated import World
from rigs.scenarios import run_alone, runs_tests
from rigs.sessionstart import CLOSING, CRC, DECIDED, GOOD, VALUE, session_start
from rigs.town import Town, held_down, in_an_application
from rigs.trimmed import running

TURN_S = 2.0
WAIT_S = 30.0


class Starts(StartTurns):
    """Two at a time; says which have their turn."""

    def __init__(self) -> None:
        settings = ServerSettings(session_starts_max=2, session_start_turn_s=TURN_S, session_start_wait_s_max=WAIT_S)
        super().__init__(settings, lambda: self.storage_connected)
        self.storage_connected = True
        self.come: list[str] = []
        self.waited: list[str] = []
        self.said: list[str] = []

    def _wait(self, name: str, what: str) -> None:
        self.waited.append(name)
        self.said.append(what)

    def begin(self, name: str, seconds: float, *, wanted: bool = False) -> asyncio.Task[None]:
        async def start() -> None:
            async with self.turn(name, wanted=wanted, report=lambda what: self._wait(name, what)):
                self.come.append(name)
                await asyncio.sleep(seconds)

        return asyncio.get_running_loop().create_task(start())


@runs_tests
def in_virtual_time(given: Callable[[Starts], Awaitable[None]]) -> None:
    async def scenario() -> None:
        await given(Starts())

    World(1).run(scenario())


@in_virtual_time
async def test_starts_that_have_to_wait_say_so_and_begin_when_others_end(starts: Starts) -> None:
    tasks = [starts.begin(name, 1.0) for name in "abc"]
    tasks.append(starts.begin("d", 1.0, wanted=True))
    await asyncio.sleep(0.5)
    assert starts.come == ["a", "b"]
    assert starts.waited == ["c", "d"]
    for task in tasks:
        await task
    assert starts.come == ["a", "b", "d", "c"]


@in_virtual_time
async def test_a_start_that_takes_long_goes_on_beside_the_next(starts: Starts) -> None:
    stuck = [starts.begin(name, 1e6) for name in "ab"]
    following = starts.begin("c", 0.0)
    await asyncio.sleep(TURN_S * 1.1)
    assert following.done()
    assert not any(task.done() for task in stuck)


@in_virtual_time
async def test_without_storage_no_other_start_begins_until_it_is_there(starts: Starts) -> None:
    starts.storage_connected = False
    for name in "abcd":
        starts.begin(name, 1e6)
    await asyncio.sleep(TURN_S * 10)
    assert starts.come == ["a", "b"]
    starts.storage_connected = True
    await asyncio.sleep(TURN_S * 1.1)
    assert starts.come == ["a", "b", "c", "d"]


@in_virtual_time
async def test_when_nobody_gets_a_turn_those_that_wait_are_told_and_leave_the_queue(starts: Starts) -> None:
    starts.storage_connected = False
    stuck = [starts.begin(name, 1e6) for name in "ab"]
    waiting = starts.begin("c", 0.0)
    await asyncio.sleep(WAIT_S * 0.9)
    assert "waiting for storage nodes" in starts.said[0]
    assert not waiting.done()
    await asyncio.sleep(WAIT_S * 0.2)
    assert isinstance(error := waiting.exception(), DeadlineExceeded)
    assert "waiting for storage nodes" in error.text
    starts.storage_connected = True
    await asyncio.sleep(TURN_S * 1.1)
    assert starts.come == ["a", "b"], "who was told has left"
    for task in stuck:
        task.cancel()


@in_virtual_time
async def test_starts_at_the_end_wait_for_their_turn_while_turns_come(starts: Starts) -> None:
    tasks = [starts.begin(f"{number}", 1e6) for number in range(60)]
    await asyncio.sleep(TURN_S * 31)  # twice as long as anybody waits for nothing
    assert len(starts.come) == len(tasks)
    assert not any(task.done() for task in tasks)
    assert set(starts.said) == {"waiting for its turn to start a session: other partitions of this server come first"}
    for task in tasks:
        task.cancel()


@in_virtual_time
async def test_who_is_cancelled_leaves_its_turn_and_its_place(starts: Starts) -> None:
    first, second, third = (starts.begin(name, 1e6) for name in "abc")
    starts.begin("d", 1.0)
    await asyncio.sleep(0.1)
    third.cancel()
    first.cancel()
    await asyncio.sleep(0.1)
    assert starts.come == ["a", "b", "d"]
    second.cancel()


@pytest.mark.slow
def test_a_server_starts_some_at_a_time_those_in_use_first_and_tells_those_at_rest_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions, at_once, wanted = 40, 3, 39
    under_way: list[PartitionId] = []
    begun: list[PartitionId] = []
    most = 0
    told: list[PartitionId] = []
    run, tick = SessionStart.run, PartitionOwner.tick

    async def counted(self: SessionStart) -> StartedSession:
        nonlocal most
        under_way.append(self._partition)
        begun.append(self._partition)
        most = max(most, len(under_way))
        try:
            return await run(self)
        finally:
            under_way.remove(self._partition)

    def noted(self: PartitionOwner, now: object) -> object:
        told.append(self.partition)
        return tick(self, now)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionStart, "run", counted)
    monkeypatch.setattr(PartitionOwner, "tick", noted)

    async def story(town: Town) -> None:
        await town.append(b"x", partition=wanted)
        assert begun.index(wanted) < partitions // 2
        await asyncio.sleep(60)
        assert sorted(begun) == list(range(partitions))
        assert most == at_once
        told.clear()
        await asyncio.sleep(10)
        assert len(told) <= 10 * 4 * 3  # and not all 40 of them four times a second

    Town(1, partitions=partitions, server=ServerSettings(session_starts_max=at_once)).run(story)


@pytest.mark.slow
def test_while_a_storage_node_is_away_nobody_looks_for_it_and_when_it_is_back_some_at_a_time_bring_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions, at_once = 20, 4
    looks, under_way, most = 0, 0, 0
    copy = CatchUp._read

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(seconds)

    async def counted(self: CatchUp, first: TransactionId, last: TransactionId) -> ToCopy:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0.5)
            return await copy(self, first, last)
        finally:
            under_way -= 1

    monkeypatch.setattr(catchup, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(CatchUp, "_read", counted)

    async def story(town: Town) -> None:
        async def all_engaged(log: Log) -> None:
            while any(len(each["engaged"]) < 3 for each in (await log.health(0))["partitions"].values()):
                await asyncio.sleep(1)

        async def append_to_all(log: Log) -> None:
            for partition in range(partitions):
                await log.run(lambda tx: tx.append(b"missed"), partition=partition, timeout=60)

        await town.application("operator", all_engaged)
        away = town.cluster.storage[2]
        held_down(away)
        await town.application("writer", append_to_all)  # something to copy in each
        await asyncio.sleep(60)
        assert looks <= 2 * partitions  # and not twice a second in each
        away.let_up()
        async with asyncio.timeout(60):
            await town.application("operator", all_engaged)
        assert 0 < most <= at_once

    Town(1, partitions=partitions, server=ServerSettings(copies_max=at_once)).run(story)


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
        self.elsewhere: list[tuple[float, bool | None]] = []
        self.start = session_start(links, host, gather_s=0.2, report=self._report)
        self.start._connections = links  # type: ignore[assignment]

    def _report(self, waits_for: str, elsewhere: bool | None) -> None:
        self.elsewhere.append((round(self._host.clock.monotonic_s() - self._began_s, 1), elsewhere))


def test_a_replica_that_joins_a_little_later_than_a_quorum_is_not_left_out() -> None:
    joined: list[set[str]] = []

    async def main(host: Host) -> None:
        start = Starting(host).start
        start._answers = dict.fromkeys("ABC", GOOD)
        joined.append(await start._clean(VALUE, DECIDED))

    run_alone(World(1), main)
    assert joined == [{"A", "B", "C"}]


def test_a_replica_that_answers_a_little_later_than_a_quorum_takes_part() -> None:
    answered: list[list[str]] = []
    reports: list[tuple[float, bool | None]] = []

    async def main(host: Host) -> None:
        starting = Starting(host)
        await starting.start._fence_and_decide(VALUE)
        answered.append(sorted(starting.start._answers))
        reports.extend(starting.elsewhere)

    run_alone(World(1), main)
    assert answered == [["A", "B", "C"]]
    assert reports[0] == (0.0, True), "B can't be reached"
    told_later = {elsewhere for at_s, elsewhere in reports if at_s >= 1.0}
    assert told_later == {False}, "all are reached, and slow: that is no reason for another server to own this"
    assert dict(reports)[1.0] is False


@in_an_application
async def test_a_server_that_starts_tells_its_health_in_the_same_fields(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    shared = town.server.parts.shared
    starting = StartingServer(shared.host, shared.coordinator, shared.settings)
    assert list(starting.health()) == list(town.server.health())
    assert starting.health()["clock"].keys() == town.server.health()["clock"].keys()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        coordinator: Any = coordinator_at(cluster.host, cluster.address)
        settings = ServerSettings(listen=f"unix:{tmp_path}/server.sock")
        register = coordinator.register

        async def refuses(*_: object) -> None:
            raise CoordinatorUnavailable("it is gone")

        try:
            coordinator.register = refuses
            with pytest.raises(CoordinatorUnavailable):
                await Server.start(cluster.host, coordinator, settings)
            coordinator.register = register
            server = await Server.start(cluster.host, coordinator, settings)  # at the same address
            await server.close()
        finally:
            await coordinator.close()
