"""A storage node: keeps the bytes of many partitions, and does what the sessions of their owners say."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from polonaise.errors import (
    Closed,
    NotInitialized,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.host import Host, Listener
from polonaise.link.budget import Budget
from polonaise.link.connection import ANY_CLUSTER, Connection, hello
from polonaise.log.control import ControlFile
from polonaise.log.partition import LogSettings, PartitionLog
from polonaise.log.reading import SegmentCache
from polonaise.storage.partition import PartitionReplica, Question
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PartitionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_SERVER,
    ROLE_STORAGE,
    Confirm,
    Copy,
    Join,
    LastSessionInfo,
    Store,
    Trim,
    Truncate,
)

_log = logging.getLogger(__name__)
_QUEUED = (Store, LastSessionInfo, Truncate, Copy, Join, Confirm, Trim)


class StorageNode:
    """One storage process. Passive: it obeys sessions and never talks to the coordinator. `start`, then `close`."""

    def __init__(self, host: Host, settings: StorageSettings) -> None:
        self._host = host
        self._settings = settings
        self._control: ControlFile | None = None
        self._cluster_key = settings.cluster_key
        self._adopting: asyncio.Task[None] | None = None
        self._cache = SegmentCache()
        self._listener: Listener | None = None
        self._partitions: dict[PartitionId, PartitionReplica] = {}
        self._known: set[PartitionId] = set()
        self._connections: dict[Connection, _Asking] = {}
        self._budget = Budget(settings.connections_bytes_max)
        self._serving = False
        self._life = host.random.randrange(1, 2**31)
        """Told in every greeting: whoever reaches this process under two names can tell."""

    @property
    def address(self) -> str:
        """Where servers reach it."""
        if self._listener is None:
            raise Closed("the storage node is not started")
        return self._listener.address

    async def start(self) -> None:
        """Listen, then take the directory. Raises what is wrong with the directory, or `AddressInUse`.

        In this order, so that an address that can't be had leaves nothing on the disk.
        """
        self._listener = await self._host.network.listen(self._settings.listen, self._accept)
        try:
            await self._open(self._cluster_key)
        except NotInitialized:
            _log.info("%s is new: it becomes the directory of the first server's cluster", self._settings.directory)
        except BaseException:
            await self._listener.close()
            raise
        self._serving = True
        _log.info("storage node listens on %s", self.address)

    async def close(self) -> None:
        """Stop. Everything acknowledged is durable already."""
        self._serving = False
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.close()
        for replica in self._partitions.values():
            await replica.close()
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        if self._control is not None:
            await self._control.close()

    async def _open(self, cluster_key: bytes | None) -> None:
        self._control = await ControlFile.open(self._host, self._settings.directory, cluster_key)
        self._cluster_key = self._control.cluster_key
        self._known = set(await self._control.partitions())

    # ------------------------------------------------------------------ connections

    def _accept(self) -> Connection:
        name = f"storage node {self._settings.directory}"
        connection = Connection(
            self._host,
            hello=hello(ROLE_STORAGE, name, cluster_key=self._cluster_key or ANY_CLUSTER, node=self._life),
            peer_roles=(ROLE_SERVER,),
            on_message=self._on_message,
            on_closed=self._on_closed,
            on_greeted=self._on_greeted,
            settings=self._settings.link,
            accepted=True,
            budget=self._budget,
        )
        self._connections[connection] = _Asking(self._settings.reads_max)
        if not self._serving:  # the directory is not open yet, or not any more: whoever came tries again
            connection.close()
        return connection

    def _on_greeted(self, connection: Connection) -> None:
        assert connection.peer is not None
        key = connection.peer.cluster_key
        if self._cluster_key is None:
            if key == ANY_CLUSTER:
                raise ProtocolError("a new storage node needs a server that names its cluster")
            self._cluster_key = key
        elif key != self._cluster_key:
            # Greeted while this node had no cluster yet, and another server was faster.
            error = WrongClusterKey("this storage node belongs to another cluster: check the address")
            connection.refuse(error)
            connection.close(error)

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        if self._connections.pop(connection, None) is not None:
            for replica in self._partitions.values():
                replica.disconnected(connection)

    # ------------------------------------------------------------------ messages

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        if isinstance(message, _QUEUED):
            self._replica(partition, isinstance(message, LastSessionInfo)).take(connection, message, request)
        elif isinstance(message, Question):
            self._answer(connection, self._replica(partition, create=False), message, request)
        else:
            raise ProtocolError(f"{type(message).__name__} is nothing that a server says")

    def _replica(self, partition: PartitionId, create: bool) -> PartitionReplica:
        """The partition's replica; a session's first message makes one that was never here."""
        replica = self._partitions.get(partition)
        if replica is not None:
            return replica
        if not 0 <= partition < self._settings.partitions_max:
            raise UnknownPartition(f"partition {partition}; this node takes 0 to {self._settings.partitions_max - 1}")
        if partition not in self._known and not create:
            raise UnknownPartition(f"partition {partition} was never on this node")
        self._known.add(partition)
        replica = PartitionReplica(self._host, partition, self._settings, lambda: self._open_log(partition))
        self._partitions[partition] = replica
        return replica

    async def _open_log(self, partition: PartitionId) -> PartitionLog:
        control = await self._opened_control()
        slot = await control.load(partition)
        if slot is None:
            slot = await control.create(partition)
        settings = LogSettings(self._settings.segment_bytes_max, self._settings.segment_batches_max)
        return await PartitionLog.open(self._host, control.partition_directory(partition), slot, settings, self._cache)

    async def _opened_control(self) -> ControlFile:
        """The control file; of a new node it is made now, once, for the cluster of the first server."""
        if self._control is None:
            if self._adopting is None or self._adopting.done():
                # Never tried, or tried in vain: a full disk has room again one day.
                self._adopting = asyncio.ensure_future(self._open(self._cluster_key))
            await asyncio.shield(self._adopting)
        assert self._control is not None
        return self._control

    def _answer(self, connection: Connection, replica: PartitionReplica, question: Question, request: int) -> None:
        """Answer in a task of its own, so many at a time; who asks for more is not read for a while."""
        asking = self._connections[connection]
        asking.waiting += 1
        if asking.waiting >= self._settings.reads_max:
            connection.pause("questions")

        async def run() -> None:
            async with asking.turn:
                await replica.answer(connection, question, request)
            asking.waiting -= 1
            if asking.waiting < self._settings.reads_max:
                connection.resume("questions")

        self._host.spawn(run(), f"answer to {connection.peer_name}")

    def health(self) -> dict[str, Any]:
        """How this node is: for operators and the console."""
        return {
            "directory": self._settings.directory,
            "partitions": {
                str(partition): {"unavailable": str(replica.unavailable or ""), **replica.counts}
                for partition, replica in sorted(self._partitions.items())
            },
        }


class _Asking:
    """What one connection asks for beside the queues."""

    __slots__ = ("turn", "waiting")

    def __init__(self, answered_max: int) -> None:
        self.turn = asyncio.Semaphore(answered_max)
        """Held by those that may have bytes in memory: what came in one piece may be many more questions."""
        self.waiting = 0
