"""The server's connections to storage nodes: made again whenever they break, and shared by all its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import (
    BadOption,
    ConnectionLost,
    DeadlineExceeded,
    PolonaiseError,
    ProtocolError,
    UnknownStorageNode,
    fresh,
)
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.link.protocol.peertext import fault_in
from polonaise.link.protocol.traffic import OWN_REQUESTS
from polonaise.patience import PATIENCE_S_MAX, SyncPatience
from polonaise.redaction import redacted
from polonaise.server.settings import ServerSettings
from polonaise.terms import PartitionId, ServerId, StorageId
from polonaise.wire.codec import Message
from polonaise.wire.messages import NAMES_VERSION, ROLE_SERVER, ROLE_STORAGE, Identified, Identify, Refused, Stored

_log = logging.getLogger(__name__)
_APART_S: Final = 1.0
"""The least time between two reads of the description, for all nodes together."""


class StorageAddresses:
    """The addresses of storage nodes by name, as last read: again when one can't be reached, or may have left."""

    def __init__(self, host: Host, coordinator: Coordinator, description: ClusterDescription) -> None:
        self._host = host
        self._coordinator = coordinator
        self._description = description
        self._reading: asyncio.Task[None] | None = None
        self._read_s = float("-inf")

    def of(self, name: StorageId) -> str:
        """Return the address of a storage node; its name, while the description is read again that does not have it."""
        if name not in self._description.storage:
            self.look_again()
        return self._description.address_of(name)

    @property
    def names(self) -> tuple[StorageId, ...]:
        return self._description.storage

    def why_not_reached(self, name: StorageId, error: PolonaiseError) -> PolonaiseError:
        """Return why a node can't be connected to: this error, or that the description lacks it."""
        if name in self._description.storage:
            return error
        as_address = "" if isinstance(error, BadOption) else f" (at its name, as an address: {error.text})"
        return UnknownStorageNode(
            f"the cluster's description has no storage node {redacted(name)}, so that its address is not known"
            f"{as_address}: if it is one of this cluster, add it (polonaise storage add NAME HOST:PORT); else move its "
            "copies to another one (polonaise partition replace)"
        )

    def look_again(self) -> None:
        """Start to read the description again, once a second at most, in the background."""
        now_s = self._host.clock.monotonic_s()
        if self._reading is None and now_s - self._read_s >= _APART_S:
            self._read_s = now_s
            self._reading = self._host.spawn(self._read(), "addresses of the storage nodes")

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        before = self._description.nodes
        try:
            self._description = await self._coordinator.describe()
        except PolonaiseError:
            return  # other reads of the coordinator report its trouble; the known addresses may still be right
        finally:
            self._reading = None
        for name, address in self._description.nodes.items():
            if name in before and address != before[name]:
                _log.info("storage node %s has moved from %s to %s", name, before[name], address)


M = TypeVar("M", bound=Message)


def expect(message: Message, kind: type[M]) -> M:
    """Return a storage node's answer if it is of this kind; raises `ProtocolError` for any other."""
    if not isinstance(message, kind):
        raise ProtocolError(f"a storage node answered with {type(message).__name__}; {kind.__name__} was expected")
    return message


class ReplicaListener(Protocol):
    """Hears what replicas say about one partition, in sessions and between them.

    `on_stored`: a replica has synced the messages of `session` up to `number`. `on_replica_failed`: it has refused one,
    or the session connection to its node has closed.
    """

    def on_stored(self, name: StorageId, connection: Connection, session: int, number: int) -> None: ...

    def on_replica_failed(self, name: StorageId, connection: Connection, error: PolonaiseError) -> None: ...


class StorageLinks(dict[StorageId, "StorageLink"]):
    """The links to storage nodes by name, each made and started when it is first looked up."""

    def __init__(self, make: Callable[[StorageId], StorageLink]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: StorageId) -> StorageLink:
        link = self[name] = self._make(name)
        link.start()
        return link

    @property
    def connected(self) -> int:
        return sum(link.session is not None for link in self.values())

    def are_connected_for(self, copies: int) -> bool:
        """Whether a majority of so many copies is connected: else hardly any partition can start a session."""
        return 2 * self.connected > copies


class StorageLink:
    """Keeps two connections to one storage node: for sessions and their starts, and for everything else.

    So a gigabyte of history does not stand in front of an acknowledgement. When the session connection breaks, the
    node's replicas have no part in this server's sessions any more, and each listener is told.
    """

    def __init__(
        self,
        host: Host,
        name: StorageId,
        server: ServerId,
        cluster_key: bytes,
        settings: ServerSettings,
        others: Mapping[StorageId, StorageLink],
        addresses: StorageAddresses,
    ) -> None:
        """`others` are all links of the server, this one included."""
        self._host = host
        self._others = others
        self._addresses = addresses
        self.name = name
        self._server = server
        self._cluster_key = cluster_key
        self._settings = settings
        self.patience = SyncPatience(settings.replica_s_max, PATIENCE_S_MAX)
        """For answers about sessions: its disk may be slow."""
        self.bulk_patience = SyncPatience(settings.replica_s_max, PATIENCE_S_MAX)
        """For all else, such as copies."""
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: dict[PartitionId, ReplicaListener] = {}
        self._changed = asyncio.Event()
        self.session: Connection | None = None
        """None while there is none that has said hello."""
        self.session_address = ""
        """Where the last one was made; the node may have moved since."""
        self.bulk: Connection | None = None
        """None while there is none."""
        self.last_error: PolonaiseError | None = None
        """What last broke the session connection or kept it from being made; None once one is made."""
        self.bulk_error: PolonaiseError | None = None
        """What last broke the bulk connection or kept it from being made; None once one is made."""

    @property
    def address(self) -> str:
        """The node's address, as far as this server knows."""
        return self._addresses.of(self.name)

    @property
    def silent_s(self) -> float:
        """For how many seconds the node has not answered although it should have."""
        return 0.0 if self.session is None else round(self.session.silent_s, 1)

    @property
    def resent(self) -> float | None:
        """The share of what was sent to the node lately that had to be sent again; None if it is not known."""
        connections = [each for each in (self.session, self.bulk) if each is not None]
        known = [share for each in connections if (share := each.losses.resent) is not None]
        return round(max(known), 3) if known else None

    def start(self) -> None:
        """Make both connections, and make each again whenever it breaks, until `close`."""
        self._tasks = [
            self._host.spawn(self._keep_session(), f"link to {self.name}"),
            self._host.spawn(self._keep_bulk(), f"bulk link to {self.name}"),
        ]

    def close(self) -> None:
        """Close both connections for good."""
        for task in self._tasks:
            task.cancel()
        for connection in (self.session, self.bulk):
            if connection is not None:
                connection.close()

    def listen(self, partition: PartitionId, listener: ReplicaListener) -> None:
        self._listeners[partition] = listener

    def unlisten(self, partition: PartitionId, listener: ReplicaListener) -> None:
        if self._listeners.get(partition) is listener:
            del self._listeners[partition]

    async def connected(self) -> Connection:
        """Wait for the connection for sessions, and return it."""
        while self.session is None:
            self._changed.clear()
            await self._changed.wait()
        return self.session

    async def until_closed(self, connection: Connection) -> None:
        while connection.closed is None:
            self._changed.clear()
            await self._changed.wait()

    async def ask(self, connection: Connection, message: Message, partition: PartitionId) -> Message:
        """Ask over this connection for sessions, with as much patience as the node needs, and return the answer.

        Raises what the node refused with, `DeadlineExceeded`, and `ConnectionLost` or what has closed the connection.
        """
        return await self._ask(connection, message, partition, self.patience)

    async def ask_bulk(self, message: Message, partition: PartitionId, deadline_s: float | None = None) -> Message:
        """Ask over the bulk connection, for `deadline_s` or as long as the node needs; raises as `ask`."""
        if self.bulk is None:
            why = self.bulk_error or self.last_error
            raise fresh(why or ConnectionLost(f"no connection to storage node {self.name}"))
        if deadline_s is not None:
            return await self.bulk.request(message, partition=partition, deadline_s=deadline_s)
        return await self._ask(self.bulk, message, partition, self.bulk_patience)

    async def _ask(
        self, connection: Connection, message: Message, partition: PartitionId, patience: SyncPatience
    ) -> Message:
        clock = self._host.clock
        began_s, deadline_s = clock.monotonic_s(), patience.seconds
        try:
            answer = await connection.request(message, partition=partition, deadline_s=deadline_s)
        except DeadlineExceeded:
            patience.exceeded(deadline_s, clock.monotonic_s())
            raise
        patience.answered(clock.monotonic_s() - began_s, clock.monotonic_s())
        return answer

    # ------------------------------------------------------------------ keeping connections

    async def _keep_session(self) -> None:
        pause_s = self._settings.retry_s_min
        while True:
            try:
                address = self.address
                connection = await self._connect("session", address)
                self.session, self.session_address = connection, address
                self.last_error = None
                self._changed.set()
                pause_s = self._settings.retry_s_min
                await self.until_closed(self.session)
            except PolonaiseError as error:
                self.last_error = self._addresses.why_not_reached(self.name, error)
                self._addresses.look_again()
            self.session = None
            await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
            pause_s = min(2 * pause_s, self._settings.retry_s_max)

    async def _check_name(self, connection: Connection) -> None:
        """Close the connection and raise what is wrong if it leads to another storage node: one copy could count as
        two.
        """
        try:
            if connection.peer.version_max >= NAMES_VERSION:
                asked = Identify(self.name)
                expect(await connection.request(asked, deadline_s=self._settings.replica_s_max), Identified)
            else:
                self._check_distinct(connection)
        except PolonaiseError as error:
            connection.close(error)
            raise

    def _check_distinct(self, connection: Connection) -> None:
        """Raise `BadOption` if another link leads to the same node, by the random number in its hello."""
        for other in self._others.values():
            if other is not self and other.session and other.session.peer.node == connection.peer.node != 0:
                raise BadOption(
                    f"{self.name} and {other.name} are the same storage node: a cluster needs one for each copy; give "
                    "each the address of its own node (polonaise storage move NAME HOST:PORT)"
                )

    async def _keep_bulk(self) -> None:
        """Keep the bulk connection, made only while a session connection shows that the node is there."""
        while True:
            await self.connected()
            try:
                self.bulk = await self._connect("bulk", self.address)
                self.bulk_error = None
                await self.until_closed(self.bulk)
                self.bulk_error = self.bulk.closed
            except PolonaiseError as error:
                self.bulk_error = error
            self.bulk = None
            await asyncio.sleep(self._settings.retry_s_min * (0.5 + self._host.random.random()))

    async def _connect(self, purpose: str, address: str) -> Connection:
        """Make one connection, and check that it leads to this node; `purpose` is for the node's log."""
        connection = await connect(
            self._host,
            address,
            lambda: Connection(
                self._host,
                hello=hello(
                    ROLE_SERVER, f"server {self._server} ({purpose})", cluster_key=self._cluster_key, node=self._server
                ),
                peer_roles=(ROLE_STORAGE,),
                on_message=self._on_message,
                on_closed=self._on_closed,
                settings=self._settings.link,
            ),
            deadline_s=self._settings.replica_s_max,
        )
        # A node that has no name yet, or is of an earlier version, says its directory, which nobody else knows it by.
        connection.call_peer(f"storage node {self.name}")
        try:
            await self._check_name(connection)
        except asyncio.CancelledError:
            connection.close()  # nobody else knows of it yet
            raise
        return connection

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        if connection is self.session:
            self.session = None
            self.last_error = error
            for listener in list(self._listeners.values()):  # one may leave when it is told
                listener.on_replica_failed(self.name, connection, error)
        self._changed.set()

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        listener = self._listeners.get(partition)
        if listener is None or connection is not self.session:
            return
        if isinstance(message, Stored):
            listener.on_stored(self.name, connection, message.session, request)
        elif isinstance(message, Refused) and request < OWN_REQUESTS:
            # Not the late refusal of a request whose deadline has passed: that may have been of an earlier session.
            listener.on_replica_failed(self.name, connection, fault_in(message))
