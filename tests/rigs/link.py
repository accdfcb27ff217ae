"""Two machines in the simulator, a connection between them, and a peer that says any bytes it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.link.connection import Budget, Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.link.settings import LinkSettings
from polonaise.wire import codec
from polonaise.wire.codec import FRAME_BYTES_MAX, Frames, Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    ROLE_STORAGE,
    Flush,
    Flushed,
    HighWaterMark,
    HighWaterMarkIs,
)
from polonaise_proving.stages.simulated import Configuration, NetworkConfiguration, World
from polonaise_proving.stages.simulated.process import Process
from rigs.scenarios import idle, runs_tests
from rigs.waiting import wait_until

T = TypeVar("T")

KEY = bytes(range(16))
ADDRESS = "server:7000"
SETTINGS = LinkSettings(frame_bytes_max=1 << 20)


class Side:
    """One end of connections, with the messages received. As a server it answers requests for the high-water mark."""

    def __init__(self, host: Host, role: int, peer_roles: Collection[int]) -> None:
        self.host = host
        name = {ROLE_CLIENT: "carol", ROLE_SERVER: "sam", ROLE_STORAGE: "stan"}[role]
        self.said = hello(role, name, cluster_key=KEY, node=role)
        self.peer_roles = peer_roles
        self.accepts = ROLE_CLIENT in peer_roles
        self.settings = SETTINGS
        self.on_message: Callable[[Connection, Message, int, int], None] = self.answer
        self.budget: Budget | None = None
        self.connections: list[Connection] = []
        self.greeted: list[Connection] = []
        self.heard: list[Message] = []
        self.closed: list[PolonaiseError] = []

    def make(self) -> Connection:
        made = Connection(
            self.host,
            hello=self.said,
            peer_roles=self.peer_roles,
            on_message=self._hear,
            on_closed=lambda _, error: self.closed.append(error),
            on_greeted=self.greeted.append,
            settings=self.settings,
            accepted=self.accepts,
            budget=self.budget,
        )
        self.connections.append(made)
        return made

    def _hear(self, connection: Connection, message: Message, request: int, partition: int) -> None:
        assert connection.closed is None, "nothing is delivered on a closed connection"
        assert connection.is_greeted, "nothing is delivered before the peer's hello was checked"
        self.heard.append(message)
        self.on_message(connection, message, request, partition)

    def answer(self, connection: Connection, message: Message, request: int, partition: int) -> None:
        if isinstance(message, HighWaterMark):
            connection.send(HighWaterMarkIs(1, partition * 100), request=request, partition=partition)
        if isinstance(message, Flush):
            connection.send(Flushed(5), request=request, partition=partition)

    @property
    def only(self) -> Connection:
        (connection,) = self.connections
        return connection


class Raw(asyncio.Protocol):
    """A peer that sends exactly these bytes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.frames = Frames(FRAME_BYTES_MAX)
        self.heard: list[Message] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += [codec.decode(frame) for frame in self.frames.feed(data)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def say(self, *messages: Message | bytes, request: int = 0, partition: int = -1) -> None:
        raw = [
            said if isinstance(said, bytes) else b"".join(said.frame(request=request, partition=partition))
            for said in messages
        ]
        if not self.lost:
            self.transport.write(b"".join(raw))

    def heard_of(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]


class Rig:
    """Two machines: the server's listens for clients, and the scenario connects to it."""

    def __init__(self, world: World, server: Process, client: Process) -> None:
        self.world = world
        self.server_process = server
        self.server = Side(server.host, ROLE_SERVER, (ROLE_CLIENT,))
        self.client = Side(client.host, ROLE_CLIENT, (ROLE_SERVER,))

    def settle_for(self, **changes: Any) -> None:
        """Change the settings of both sides, before a connection is made."""
        for side in (self.server, self.client):
            side.settings = replace(side.settings, **changes)

    async def connect(self, deadline_s: float = 5.0) -> Connection:
        return await connect(self.client.host, ADDRESS, self.client.make, deadline_s=deadline_s)

    async def raw(self, *said: Message | bytes) -> Raw:
        _, peer = await self.client.host.network.connect(ADDRESS, Raw)
        assert isinstance(peer, Raw)
        if said:
            peer.say(*said)
        return peer

    async def greeted_raw(self) -> Raw:
        peer = await self.raw(GREETING)
        await wait_until(lambda: bool(self.server.greeted) and bool(peer.heard))
        return peer


GREETING = hello(ROLE_CLIENT, "raw", cluster_key=KEY, node=9)


def run(scenario: Callable[[Rig], Coroutine[Any, Any, T]], *, seed: int = 1, **network: float) -> T:
    """Run a scenario in a world of its own."""
    world = World(seed, Configuration(network=replace(NetworkConfiguration(), **network)))  # type: ignore[arg-type]

    processes = [world.machine(name).start(idle) for name in ("server", "client")]

    async def begin() -> T:
        rig = Rig(world, *processes)
        await processes[0].host.network.listen(ADDRESS, lambda: rig.server.make())
        return await scenario(rig)

    return world.run(begin())


simulated = runs_tests(run)
"""Decorator of tests of a connection between two machines."""
