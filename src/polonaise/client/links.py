"""Connections to servers: one stream per server for everything ordered, one for bulk on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from polonaise.client.settings import ClientSettings
from polonaise.client.waiting import retrieve
from polonaise.errors import Closed, ConnectionLost, InvariantViolated, PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.link import connection as link
from polonaise.link.connection import Connection
from polonaise.terms import ClientId, PartitionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER

Kind: TypeAlias = Literal["stream", "bulk"]


class MountedPartition(Protocol):
    """One partition's end of a stream."""

    def receive(self, stream: Stream, message: Message, request: int) -> None: ...

    def lost(self, stream: Stream, error: PolonaiseError) -> None: ...


class Stream:
    """The stream connection to one server, shared by all partitions that it owns.

    `sequence` tells the server which of this client's connections is the latest: what it hears on an older one is
    void.
    """

    def __init__(self, host: Host, address: str, sequence: int) -> None:
        self._host = host
        self._drained: list[Callable[[], None]] = []
        self.address = address
        self.sequence = sequence
        self._last_request = 0
        self.partitions: dict[PartitionId, MountedPartition] = {}
        self.connection: Connection

    def next_request(self) -> int:
        """A fresh request number; streams number everything themselves, so none is an answer to somebody else."""
        self._last_request = self._last_request % 0xFFFF_FFFF + 1
        return self._last_request

    def received(self, _: Connection, message: Message, request: int, partition: int) -> None:
        mounted = self.partitions.get(partition)
        if mounted is None:
            return
        try:
            mounted.receive(self, message, request)
        except InvariantViolated as error:
            self._host.fail(error)
            raise

    def closed(self, _: Connection, error: PolonaiseError) -> None:
        for mounted in list(self.partitions.values()):
            mounted.lost(self, error)

    def close_unless_used(self) -> None:
        """A partition is served elsewhere now: a stream that serves none is closed."""
        if not self.partitions:
            self.connection.close()

    def when_writable(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once the server has taken enough of what it was sent; never, if the connection closes."""
        self._drained.append(go_on)
        if len(self._drained) == 1:
            self._host.spawn(self._wait_writable(), f"client: wait for {self.address} to read")

    async def _wait_writable(self) -> None:
        try:
            await self.connection.wait_writable()
        except PolonaiseError:
            return
        drained, self._drained = self._drained, []
        for go_on in drained:
            go_on()


class Links:
    """All connections of one client."""

    def __init__(self, host: Host, client_id: ClientId, cluster_key: bytes, settings: ClientSettings) -> None:
        self._host = host
        self._settings = settings
        self._hello = link.hello(ROLE_CLIENT, settings.name, cluster_key=cluster_key, node=client_id)
        self._sequence = 0
        self._streams: dict[str, Stream] = {}
        self._bulk: dict[str, Connection] = {}
        self._attempts: dict[tuple[Kind, str], asyncio.Future[None]] = {}
        self._closed = False

    async def stream(self, address: str) -> Stream:
        """The open stream to this server; connects if there is none. Raises `ConnectionLost` and what was refused."""
        while (held := self._streams.get(address)) is None or held.connection.closed:
            await self._connected("stream", address)
        return held

    async def bulk(self, address: str) -> Connection:
        """The open bulk connection to this server, as `stream`."""
        while (held := self._bulk.get(address)) is None or held.closed:
            await self._connected("bulk", address)
        return held

    def close(self) -> None:
        self._closed = True
        for connection in [*(stream.connection for stream in self._streams.values()), *self._bulk.values()]:
            connection.close()

    async def _connected(self, kind: Kind, address: str) -> None:
        """One attempt to connect, shared by all who want this connection at the same time."""
        if self._closed:
            raise Closed("this client was closed")
        attempt = self._attempts.get((kind, address))
        if attempt is None:
            attempt = asyncio.get_running_loop().create_future()
            attempt.add_done_callback(retrieve)
            self._attempts[kind, address] = attempt
            self._host.spawn(self._connect(kind, address, attempt), f"client: connect to {address} ({kind})")
        await asyncio.shield(attempt)

    async def _connect(self, kind: Kind, address: str, attempt: asyncio.Future[None]) -> None:
        try:
            if kind == "stream":
                await self._connect_stream(address)
            else:
                self._bulk[address] = await link.connect(
                    self._host, address, self._make_bulk, deadline_s=self._settings.connect_s_max
                )
        except PolonaiseError as error:
            attempt.set_exception(error)
        else:
            attempt.set_result(None)
            if self._closed:
                self.close()
        finally:
            if not attempt.done():
                attempt.set_exception(ConnectionLost("connecting was interrupted"))
            del self._attempts[kind, address]

    async def _connect_stream(self, address: str) -> None:
        self._sequence += 1
        stream = Stream(self._host, address, self._sequence)

        def make() -> Connection:
            stream.connection = Connection(
                self._host,
                hello=self._hello,
                peer_roles=(ROLE_SERVER,),
                on_message=stream.received,
                on_closed=stream.closed,
                settings=self._settings.link,
            )
            return stream.connection

        await link.connect(self._host, address, make, deadline_s=self._settings.connect_s_max)
        self._streams[address] = stream

    def _make_bulk(self) -> Connection:
        return Connection(
            self._host,
            hello=self._hello,
            peer_roles=(ROLE_SERVER,),
            on_message=_unasked,
            settings=self._settings.link,
        )


def _unasked(_: Connection, message: Message, request: int, partition: int) -> None:
    """Answers whose request has run out of time come late; anything else has no business on a bulk connection."""
    if not request:
        raise ProtocolError(f"an unasked-for {type(message).__name__} on a bulk connection")
