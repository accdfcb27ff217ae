"""A client's connections: to each server one stream, for messages in order, and on demand one for bulk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from polonaise.client.settings import ClientSettings
from polonaise.errors import (
    Closed,
    ConnectionLost,
    PolonaiseError,
    ProtocolError,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
)
from polonaise.host import Host
from polonaise.host.unawaited import retrieve
from polonaise.link import connection as link
from polonaise.link.connection import Connection
from polonaise.link.protocol import greeting
from polonaise.terms import ClientId, PartitionId, PeerClock
from polonaise.wire.codec import Message
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Health, HealthIs

Kind: TypeAlias = Literal["stream", "bulk"]
Route: TypeAlias = Callable[[], asyncio.Future[None]]
"""Returns a future that is done when the assignment changes; raises an error once that names a later owner."""


class MountedPartition(Protocol):
    """Receives one partition's messages on a stream."""

    def receive(self, stream: Stream, message: Message, request: int) -> None: ...

    def lost(self, stream: Stream, error: PolonaiseError) -> None: ...


class _Stranger(NamedTuple):
    """A process at a server's address that is none of the cluster's servers: when it was met first, and last."""

    first_s: float
    last_s: float


class Stream:
    """The stream connection to one server, shared by all partitions that the client has mounted there. `sequence` tells
    the server which connection of this client is the latest: messages on an older one are void."""

    def __init__(self, host: Host, address: str, sequence: int) -> None:
        self._host = host
        self._waiting_for_room: list[Callable[[], None]] = []
        self.address = address
        self.sequence = sequence
        self._last_request = 0
        self.partitions: dict[PartitionId, MountedPartition] = {}
        self.connection: Connection

    def next_request(self) -> int:
        """Return a request number that is new on the stream: no answer is taken for another partition's."""
        self._last_request = self._last_request % 0xFFFF_FFFF + 1
        return self._last_request

    def received(self, _: Connection, message: Message, request: int, partition: int) -> None:
        mounted = self.partitions.get(partition)
        if mounted is not None:
            mounted.receive(self, message, request)

    def closed(self, _: Connection, error: PolonaiseError) -> None:
        for mounted in list(self.partitions.values()):
            mounted.lost(self, error)

    def close_unless_used(self) -> None:
        """Close the stream if no partition is mounted on it, as when one has moved to another server."""
        if not self.partitions:
            self.connection.close()

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the connection is writable again, unless it closes before."""
        self._waiting_for_room.append(resume)
        if len(self._waiting_for_room) == 1:
            self._host.spawn(self._wait_writable(), f"client: wait for {self.address} to read")

    async def _wait_writable(self) -> None:
        try:
            await self.connection.wait_writable()
        except PolonaiseError:
            return
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for resume in waiting:
            resume()


class Links:
    """The connections of one client to the servers that own partitions."""

    def __init__(
        self, host: Host, client_id: Callable[[], ClientId], cluster_key: bytes, settings: ClientSettings
    ) -> None:
        """Connect to nothing yet. `client_id` returns the client's id; 0 while it has none, with which it can read."""
        self._host = host
        self._settings = settings
        self._client_id = client_id
        self._cluster_key = cluster_key
        self._sequence = 0
        self._streams: dict[str, Stream] = {}
        self._bulk: dict[str, Connection] = {}
        self._attempts: dict[tuple[Kind, str], asyncio.Future[None]] = {}
        self._strangers: dict[str, _Stranger] = {}
        self._closed = False
        self._clock: PeerClock | None = None
        """The latest measure of a server's clock, whose connection may be closed by now."""

    async def stream(self, address: str, route: Route) -> Stream:
        """Return the open stream to a server; connect if there is none. Raises the error of `route`, `ConnectionLost`,
        an error of either side's refusal, or `Closed` after `close`."""
        while (stream := self._streams.get(address)) is None or stream.connection.closed:
            await self._wait_connected("stream", address, route)
        return stream

    async def bulk(self, address: str, route: Route) -> Connection:
        """Return the open bulk connection to a server; otherwise as `stream`. For requests with large answers, which
        must not delay the feed."""
        while (connection := self._bulk.get(address)) is None or connection.closed:
            await self._wait_connected("bulk", address, route)
        return connection

    async def health_of(self, addresses: Sequence[str]) -> dict[str, dict[str, Any] | PolonaiseError]:
        """Return the health report of each of these servers, or why there is none, by address."""
        unmoved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def ask(address: str) -> dict[str, Any] | PolonaiseError:
            try:
                connection = await self.bulk(address, lambda: unmoved)
                answer = await connection.request(Health(), deadline_s=self._settings.request_s_max)
                told = json.loads(answer.document) if isinstance(answer, HealthIs) else None
                return told if isinstance(told, dict) else ProtocolError(f"{address} did not answer with its health")
            except PolonaiseError as error:
                return error

        return dict(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))

    def clock_ahead_s(self) -> float | None:
        """Return how far this machine's clock is ahead of a server's, in seconds; None before it was measured. A
        measure is taken against the monotonic clock, so it holds after its connection was closed."""
        self._note_clocks()
        if self._clock is None:
            return None
        clock = self._host.clock
        return (clock.wall_us() - int(clock.monotonic_s() * 1e6) - self._clock.offset_us) / 1e6

    def wall_us(self) -> int:
        """Return the time by a server's clock, or else by this machine's, in microseconds UTC."""
        return self._host.clock.wall_us() - int((self.clock_ahead_s() or 0.0) * 1e6)

    def _note_clocks(self) -> None:
        for connection in self._connections():
            measured = connection.clock.measured
            if measured is not None and (self._clock is None or measured.at_s > self._clock.at_s):
                self._clock = measured

    def close(self) -> None:
        self._closed = True
        for connection in self._connections():
            connection.close()

    async def gone(self) -> None:
        await link.gone(self._connections())

    def _connections(self) -> list[Connection]:
        return [*(stream.connection for stream in self._streams.values()), *self._bulk.values()]

    async def _wait_connected(self, kind: Kind, address: str, route: Route) -> None:
        """Wait for one attempt to connect, shared by all that want this connection. Raises as `stream`. The attempt
        goes on when a wait ends because of the route."""
        if self._closed:
            raise Closed("this client was closed: connect a new one")
        attempt = self._attempts.get((kind, address))
        if attempt is None:
            attempt = asyncio.get_running_loop().create_future()
            attempt.add_done_callback(retrieve)
            self._attempts[kind, address] = attempt
            self._host.spawn(self._connect(kind, address, attempt), f"client: connect to {address} ({kind})")
        # A server that hangs accepts connections and says nothing. By the end of the attempt, seconds later, another
        # one may long own the partition.
        while not attempt.done():
            await asyncio.wait((attempt, route()), return_when=asyncio.FIRST_COMPLETED)
        attempt.result()

    async def _connect(self, kind: Kind, address: str, attempt: asyncio.Future[None]) -> None:
        self._forget_closed()
        try:
            if kind == "stream":
                await self._connect_stream(address)
            else:
                self._bulk[address] = await self._connect_to(address, refuse_unasked)
        except PolonaiseError as error:
            attempt.set_exception(error)
        else:
            attempt.set_result(None)
            if self._closed:
                self.close()  # it was closed meanwhile, without this connection
        finally:
            if not attempt.done():
                attempt.set_exception(ConnectionLost(f"connecting to {address} was interrupted"))
            del self._attempts[kind, address]

    async def _connect_stream(self, address: str) -> None:
        # Before connecting, so that a later attempt has the higher number whichever of them gets through first.
        self._sequence += 1
        stream = Stream(self._host, address, self._sequence)
        stream.connection = await self._connect_to(address, stream.received, stream.closed)
        self._streams[address] = stream

    def _forget_closed(self) -> None:
        """Drop closed connections: a server that comes back may have another address every time."""
        self._note_clocks()
        self._streams = {address: stream for address, stream in self._streams.items() if not stream.connection.closed}
        self._bulk = {address: connection for address, connection in self._bulk.items() if not connection.closed}
        known_s = self._host.clock.monotonic_s() - self._settings.stranger_s_max
        self._strangers = {address: met for address, met in self._strangers.items() if met.last_s >= known_s}

    async def _connect_to(
        self, address: str, on_message: link.OnMessage, on_closed: link.OnClosed | None = None
    ) -> Connection:
        try:
            return await connect_to_server(
                self._host, address, self._settings, on_message, on_closed,
                cluster_key=self._cluster_key, node=self._client_id(),
            )  # fmt: skip
        except (WrongRole, WrongClusterKey) as error:
            # The address is the coordinator's, and may be of a server that is gone and whose address was given away.
            now_s, patience_s = self._host.clock.monotonic_s(), self._settings.stranger_s_max
            met = self._strangers.get(address)
            first_s = now_s if met is None or now_s - met.last_s > patience_s else met.first_s
            if now_s - first_s >= patience_s:
                raise
            self._strangers[address] = _Stranger(first_s, now_s)
            raise ConnectionLost(f"what answers at {address} is no server of this cluster: {error}") from error


async def connect_to_server(
    host: Host,
    address: str,
    settings: ClientSettings,
    on_message: link.OnMessage,
    on_closed: link.OnClosed | None = None,
    **of_hello: Any,
) -> Connection:
    """Connect to a server as a client, whose hello has `of_hello` besides role and name. Raises as `link.connect`."""
    hello = greeting.hello(ROLE_CLIENT, settings.name, **of_hello)

    def make() -> Connection:
        return Connection(
            host,
            hello=hello,
            peer_roles=(ROLE_SERVER,),
            on_message=on_message,
            on_closed=on_closed,
            settings=settings.link,
        )

    return await link.connect(host, address, make, deadline_s=settings.connect_s_max)


def check_knows(connection: Connection, version: int, what: str) -> None:
    """Raise `UnsupportedVersion` if the server speaks no protocol version from `version` on."""
    if connection.peer.version_max < version:
        raise UnsupportedVersion(
            f"{connection.peer_name} speaks protocol {connection.peer.version_max}, and {what} takes {version}: "
            "upgrade the servers"
        )


def refuse_unasked(_: Connection, message: Message, request: int, partition: int) -> None:
    """Drop an answer that came after its request's deadline. Raises `ProtocolError` for another message."""
    if not request:
        raise ProtocolError(f"a server sent {type(message).__name__} without being asked")
