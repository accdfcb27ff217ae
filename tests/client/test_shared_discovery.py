"""One connection for all questions of a client about its cluster, while servers or their coordinator are away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.errors import CoordinatorUnavailable, PolonaiseError
from polonaise.link.connection import Connection
from polonaise.link.protocol import greeting
from polonaise.testing.memory import KEY, MemoryHost
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
    GetUniqueId,
    UniqueIdIs,
)
from polonaise.wire.topics import AssignedPartition, encode_assignment
from rigs.waiting import time_passes, wait_until

AWAY = CoordinatorUnavailable("the coordinator gave no answer within 5 s")


class Server:
    """A server in memory. It answers at once, but for waits for a newer assignment: these last until `tell`."""

    def __init__(self, host: MemoryHost, address: str) -> None:
        self.has_coordinator = True
        self.connections: list[Connection] = []
        self.asked: list[type[Message]] = []
        self.waiting: list[Callable[[AssignmentIs], None]] = []
        self._host = host
        self._address = address
        self.come_back()

    def come_back(self) -> None:
        self._host.wires.listening[self._address] = self._accept

    def go_away(self) -> None:
        del self._host.wires.listening[self._address]
        self.hang_up()

    def hang_up(self) -> None:
        for connection in self.connections:
            connection.close()

    def tell(self, version: int) -> None:
        """Answer all that wait, with an assignment of this version."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer(encode_assignment(version, [AssignedPartition(0, version, "owner:1", version)]))

    @property
    def open(self) -> list[Connection]:
        return [connection for connection in self.connections if not connection.closed]

    def _accept(self) -> Connection:
        hello = greeting.hello(ROLE_SERVER, "server", cluster_key=KEY)
        self.connections.append(
            Connection(
                self._host, hello=hello, peer_roles=(ROLE_CLIENT,), on_message=self._answer, accepted=True,
                tells_strangers=(ROLE_CLIENT,),
            )
        )  # fmt: skip
        return self.connections[-1]

    def _answer(self, connection: Connection, message: Message, request: int, partition: int) -> None:
        self.asked.append(type(message))
        match message:
            case DescribeCluster():
                connection.send(ClusterIs(3), request=request)
            case GetUniqueId() if self.has_coordinator:
                connection.send(UniqueIdIs(7), request=request)
            case GetUniqueId():
                connection.refuse(AWAY, request=request)
            case GetAssignment():
                self.waiting.append(lambda told: connection.send(told, request=request))


class Scene:
    """Two servers, and a discovery that is connected to the first of them."""

    def __init__(self) -> None:
        host = MemoryHost()
        self.first, self.second = Server(host, "a:1"), Server(host, "b:2")
        self.discovery = ServerDiscovery(host, ["a:1", "b:2"], ClientSettings(coordinator_s_max=60.0))

    async def waits(self, count: int = 1) -> list[asyncio.Future[int]]:
        """Begin waits for a newer assignment, and return them once they have reached the first server."""

        async def version() -> int:
            return (await self.discovery.assignment_after(1)).version

        begun = [asyncio.ensure_future(version()) for _ in range(count)]
        await wait_until(lambda: len(self.first.waiting) == count)
        return begun


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    it = Scene()
    it.second.go_away()
    assert await it.discovery.unique_id() == 7
    it.second.come_back()
    yield it
    await it.discovery.close()
    for server in (it.first, it.second):
        server.hang_up()
    await time_passes(0)


async def test_all_questions_go_over_one_connection() -> None:
    async with scene() as it:
        waiting = await it.waits(3)
        await asyncio.gather(*(it.discovery.unique_id() for _ in range(5)), it.discovery.describe())
        it.first.tell(2)
        assert await asyncio.gather(*waiting) == [2, 2, 2]
        assert (len(it.first.connections), it.second.connections) == (1, [])


async def test_a_question_that_goes_on_elsewhere_takes_no_other_from_a_server_without_its_coordinator() -> None:
    async with scene() as it:
        (waiting,) = await it.waits()
        it.first.has_coordinator = False
        assert await it.discovery.unique_id() == 7
        assert it.second.asked == [GetUniqueId]
        assert len(it.first.open) == 1, "somebody waits there"
        it.first.tell(2)
        assert await waiting == 2
        await wait_until(lambda: not it.first.open, "what nobody uses any more is closed")
        await it.discovery.describe()
        assert it.second.asked == [GetUniqueId, DescribeCluster], "what comes later goes where an answer came from"
        assert len(it.second.connections) == 1


async def test_a_wait_that_nobody_wants_any_more_leaves_no_connection_to_a_server_that_was_left() -> None:
    async with scene() as it:
        (waiting,) = await it.waits()
        it.first.has_coordinator = False
        await it.discovery.unique_id()
        waiting.cancel()
        await wait_until(lambda: not it.first.open)
        assert len(it.second.open) == 1


async def test_while_no_server_reaches_the_coordinator_each_question_is_told_so_and_waits_go_on() -> None:
    async with scene() as it:
        waiting = await it.waits(2)
        it.first.has_coordinator = it.second.has_coordinator = False
        told = await asyncio.gather(*(it.discovery.unique_id() for _ in range(4)), return_exceptions=True)
        assert [type(each) for each in told] == [CoordinatorUnavailable] * 4
        assert all("a:1" in str(each) and "b:2" in str(each) for each in told), "each server is named, with its reason"
        assert not any(each.done() for each in waiting)
        it.first.has_coordinator = it.second.has_coordinator = True
        assert await it.discovery.unique_id() == 7
        it.first.tell(2)
        assert await asyncio.gather(*waiting) == [2, 2]


async def test_what_waits_at_a_server_that_goes_away_goes_on_at_another_over_one_connection() -> None:
    async with scene() as it:
        waiting = await it.waits(3)
        it.first.go_away()
        await wait_until(lambda: len(it.second.waiting) == 3)
        it.second.tell(2)
        assert await asyncio.gather(*waiting) == [2, 2, 2]
        assert len(it.second.connections) == 1


async def test_while_all_servers_are_away_each_question_fails_by_itself_and_the_next_finds_who_is_back() -> None:
    async with scene() as it:
        waiting = await it.waits(2)
        it.second.go_away()
        it.first.go_away()
        told = await asyncio.gather(*waiting, it.discovery.unique_id(), return_exceptions=True)
        assert [each.code for each in told if isinstance(each, PolonaiseError)] == ["servers_unavailable"] * 3
        it.second.come_back()
        assert await asyncio.gather(*(it.discovery.unique_id() for _ in range(3))) == [7] * 3
        assert len(it.second.open) == 1
