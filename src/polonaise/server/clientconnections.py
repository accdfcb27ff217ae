"""The connections of clients to a server, and the answers to what they ask: what an owner has to decide goes to it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from polonaise.errors import NotOwner, PolonaiseError, ProtocolError, UnknownPartition, WrongClusterKey, fresh
from polonaise.link.connection import Budget, Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.server import trimming
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.serverhealth import ServerHealth
from polonaise.server.sharedparts import SharedParts
from polonaise.terms import PartitionId
from polonaise.wire.codec import NO_PARTITION, Message
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, AssignmentIs, Fetch, Health, HealthIs, Read, TrimLog

_REQUESTS_MAX: Final = 64
"""A connection with so many unanswered requests, without those that owners answer, is not read from."""
_MAKING_MAX: Final = 4
"""The most answers, of all connections, that are put together in memory at once."""


_ANSWERS_MAX: Final = 2
"""The most answers of one connection made or sent at once: one is made while the other is sent."""


@dataclass(slots=True, eq=False)
class ConnectionRequests:
    """Counts a connection's unanswered requests, and bounds how many answers are made or sent at a time."""

    waiting: int = 0
    """Not answered yet, without those that owners answer."""
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ANSWERS_MAX))
    """Held while an answer waits for its client to read, is made, and is sent."""
    waits: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    """The tasks that wait before they make their answer, cancelled when the connection closes."""

    async def wait(self, wait: Coroutine[Any, Any, object], connection: Connection) -> None:
        """Await `wait`, for as long as the connection is open."""
        if connection.closed:
            wait.close()
            raise fresh(connection.closed)
        task = asyncio.current_task()
        assert task is not None
        self.waits[task] = None
        try:
            await wait
        finally:
            del self.waits[task]


class ClientConnections:
    """Takes the connections of clients, and answers them until they are closed."""

    def __init__(self, shared: SharedParts, owned: OwnedPartitions, health: ServerHealth) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._cluster = shared.cluster
        self._owned = owned
        self._health = health
        self._open: dict[Connection, ConnectionRequests] = {}
        self.budget = Budget(self._settings.connections_bytes_max)
        self.refused: Counter[str] = Counter()
        """The number of messages refused, by error code."""
        self._making = asyncio.Semaphore(_MAKING_MAX)

    @property
    def open(self) -> list[Connection]:
        """The connections on which a client has said hello."""
        return list(self._open)

    @property
    def unanswered(self) -> int:
        """The number of unanswered requests, without those that owners answer."""
        return sum(requests.waiting for requests in self._open.values())

    def accept(self) -> Connection:
        """Make the connection for a client that has just connected, or for whoever asks for health as a server."""
        key = self._cluster.description.key
        return Connection(
            self._shared.host,
            hello=hello(ROLE_SERVER, f"server {self._shared.server}", cluster_key=key, node=self._shared.server),
            peer_roles=(ROLE_CLIENT, ROLE_SERVER),
            on_message=self.on_message,
            on_closed=self._on_closed,
            on_greeted=self._on_greeted,
            settings=self._settings.link,
            accepted=True,
            tells_strangers=(ROLE_CLIENT, ROLE_SERVER),
            budget=self.budget,
        )

    def _on_greeted(self, connection: Connection) -> None:
        self._open[connection] = ConnectionRequests()

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        requests = self._open.pop(connection, None)
        if requests is None:
            return
        for task in list(requests.waits):
            task.cancel()
        for served in self._owned.served.values():
            served.disconnected(connection)

    def on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Handle a client's message. Raises the error with which it is refused, after counting the refusal."""
        try:
            self._handle(connection, message, request, partition)
        except PolonaiseError as error:
            self.refused[error.code] += 1
            raise

    def _handle(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Bring a message to an owner; answer all that no owner decides in tasks. Raises the refusal."""
        # An operator with a server's certificate, such as that of `storage clean`; a client's is needed for all else.
        if connection.peer_role == ROLE_SERVER and not isinstance(message, Health):
            name = type(message).__name__
            raise ProtocolError(f"whoever is no client may ask a server for its health only, and sent {name}")
        stranger = connection.peer.cluster_key == ANY_CLUSTER
        asked = self._cluster.answering(message, stranger=stranger)
        if asked is not None:
            self._answer(connection, partition, request, *asked)
            return
        if stranger:
            raise WrongClusterKey("this client has named no cluster: say hello with the cluster key, then ask for more")
        if isinstance(message, Health):
            # With a partition, only its owner answers, so that a client finds the right server. Without one, any server
            # tells how it is, even while it owns nothing.
            if partition != NO_PARTITION and partition not in self._owned.served:
                raise self._not_owner(partition)
            self._answer(connection, partition, request, self._tell_health(), self._health.ask_storage())
            return
        self._shared.membership.check()
        if partition != NO_PARTITION and partition >= self._cluster.total:
            self._answer(connection, partition, request, self._refusal(partition), self._cluster.read_description())
            return
        served = self._served(partition)
        # Somebody waits for this partition now: its session start goes before those that nobody waits for.
        if served.owner.session is None:
            self._shared.starts.want(served)
        match message:
            case Read():
                waiting = served.reader.wait(message)
                self._answer(connection, partition, request, served.reader.read(message), waiting)
            case Fetch():
                self._answer(connection, partition, request, served.reader.fetch(message))
            case TrimLog():
                self._answer(connection, partition, request, trimming.trim(served.reader, message))
            case _:
                served.receive(connection, message, request)

    def _served(self, partition: PartitionId) -> ServedPartition:
        """Return a partition that this server owns and that takes requests; raise the reason if there is none."""
        served = self._owned.served.get(partition)
        stopped = served.owner.stopped if served is not None else None
        if stopped is not None and not isinstance(stopped, NotOwner):
            raise fresh(stopped)
        if served is None or stopped is not None:
            raise self._not_owner(partition)
        if served.owner.readiness.blocked is not None:
            raise fresh(served.owner.readiness.blocked)
        return served

    async def _refusal(self, partition: PartitionId) -> Message:
        raise self._not_owner(partition)

    def _not_owner(self, partition: PartitionId) -> PolonaiseError:
        total = self._cluster.total
        if not 0 <= partition < total:
            return UnknownPartition(f"there is no partition {partition}: this cluster has partitions 0 to {total - 1}")
        # The cause, if there is one: that it owns nothing follows from it, and no other server may own anything either.
        if not self._owned.followed:
            return NotOwner(f"partition {partition}: {self._health.waits_for}")
        return NotOwner(f"server {self._shared.server} does not own partition {partition}: read the assignment again")

    async def _tell_health(self) -> HealthIs:
        return HealthIs(json.dumps({**self._health.document(), "tasks": len(asyncio.all_tasks())}).encode())

    def _answer(
        self,
        connection: Connection,
        partition: PartitionId,
        request: int,
        answering: Coroutine[Any, Any, Message],
        wait: Coroutine[Any, Any, object] | None = None,
    ) -> None:
        """Answer a request in a task of its own, once `wait` has ended.

        An answer is made only when little is unsent of those before, and while a connection has `_REQUESTS_MAX`
        unanswered, nothing is read from it: a client that does not read must not fill this server's memory.
        """
        requests = self._open[connection]
        requests.waiting += 1
        if requests.waiting >= _REQUESTS_MAX:
            connection.pause("requests")

        async def run() -> None:
            try:
                # Waiting takes no memory, so it takes no turn either: a long poll must not hold up other requests.
                if wait is not None:
                    await requests.wait(wait, connection)
                async with requests.turn:
                    # Before `_making`, which all connections share: a slow client must not hold it.
                    await connection.wait_writable()
                    async with self._making:
                        answer = await answering
                    # All who ask are sent the same rows, which are in memory anyway. But each once: of those that
                    # don't read, the buffers may hold copies.
                    shared = isinstance(answer, AssignmentIs) and not connection.unsent_bytes
                    connection.send(answer, request=request, partition=partition, shared=shared)
            except PolonaiseError as error:
                self.refused[error.code] += 1
                connection.refuse(error, request=request, partition=partition)
            finally:
                answering.close()  # never begun, if something above has failed
                requests.waiting -= 1
                if requests.waiting < _REQUESTS_MAX:
                    connection.resume("requests")

        self._shared.host.spawn(run(), f"request of {connection.peer_name}")
