"""The storage node process: it keeps the bytes of many partitions, and obeys the sessions of their owners."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from polonaise.errors import (
    Closed,
    DirectoryGone,
    NotInitialized,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
    WrongClusterKey,
    fault,
    fresh,
)
from polonaise.histogram import Histogram
from polonaise.host import Host, Listener, network_trouble, unreachable
from polonaise.link.connection import Budget, Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.log.control import ControlFile
from polonaise.log.openfiles import OpenFiles
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segmentreader import SegmentCache
from polonaise.storage.clusternote import (
    NOTE_FILE,
    Note,
    checked,
    held_elsewhere,
    merged,
    noted_version,
    read_note,
    write_note,
)
from polonaise.storage.files import NAME_FILE, check_name, read_name, write_name
from polonaise.storage.measures import NoRoom, StorageMeasures, StorageNodeHealth, Strangers
from polonaise.storage.partitionreplica import PartitionReplica, ReplicaRead
from polonaise.storage.presence import Presence
from polonaise.storage.protocol.scrubschedule import Scrubbed
from polonaise.storage.refusing import RefusingConnection
from polonaise.storage.scrubbing import Scrubbing
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PartitionId, StorageId
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_STORAGE,
    Confirm,
    Copy,
    CutForReset,
    EmptyCopy,
    FindBatch,
    Health,
    HealthIs,
    Identified,
    Identify,
    Join,
    LastSessionInfo,
    LowerMarks,
    NotedAre,
    NoteValues,
    Store,
    TellNoted,
    Trim,
    Truncate,
    ValuesNoted,
)

_log = logging.getLogger(__name__)
_OPENINGS_MAX = 32
"""The most partitions that are opened at the same time: more would close each other's files."""
_UNAVAILABLE_MAX = 100
_QUEUED = (Store, LastSessionInfo, Truncate, CutForReset, LowerMarks, Copy, Join, Confirm, Trim, EmptyCopy)


class StorageNode:
    """Runs one storage node, from `start` until `close`. It obeys sessions, and never talks to the coordinator."""

    def __init__(self, host: Host, settings: StorageSettings) -> None:
        self._host = host
        self._settings = settings
        self._control: ControlFile | None = None
        self._cluster_key = settings.cluster_key
        self._adopting: asyncio.Task[None] | None = None
        self.name: StorageId | None = None
        """The name by which the cluster knows this node; None before its directory has one."""
        self._naming = asyncio.Lock()
        """Held while the name is compared, and made durable if there was none, and while the directory is given up."""
        self._closing: asyncio.Future[None] | None = None
        self._cache = SegmentCache()
        self._openings = asyncio.Semaphore(_OPENINGS_MAX)
        self._files = OpenFiles(host.disk, settings.files_max)
        self._listener: Listener | None = None
        self._partitions: dict[PartitionId, PartitionReplica] = {}
        self._known: set[PartitionId] = set()
        self._syncs = Histogram()
        self._connections: dict[Connection, _StorageRequests] = {}
        self._operators: set[Connection] = set()
        """The connections that may ask only for the node's health and batches."""
        self._strangers_told: set[Connection] = set()
        """The connections that did not name the cluster, and may ask only for what the node has noted."""
        self._note: Note = {}
        self._elsewhere: set[PartitionId] = set()
        """The partitions of which this node is to have no copy, by the values in the note."""
        self._noting = asyncio.Lock()
        self._budget = Budget(settings.connections_bytes_max)
        self._strangers = Strangers(host.clock, settings.directory)
        self._no_room = NoRoom(host.clock)
        self._serving = False
        self._scrubbing = Scrubbing(
            host,
            settings,
            lambda: self._known,
            lambda partition: self._replica(partition, create=False),
            lambda: self.given_up,
        )
        self._presence = Presence(
            settings,
            lambda: self._control,
            lambda: list(self._partitions.values()),
            self._let_go,
            (NAME_FILE, NOTE_FILE),
            self._write_small_files_again,
        )
        self._gone: DirectoryGone | None = None
        """The reason why nothing is stored any more; None while the directory is there."""
        self._tasks: list[asyncio.Task[None]] = []
        self._life = host.random.randrange(1, 2**31)
        """A random number in each hello of this node, by which a server notices one node under two addresses."""

    @property
    def address(self) -> str:
        """The address at which this node listens. Raises `Closed` before `start`."""
        if self._listener is None:
            raise Closed("the storage node is not started")
        return self._listener.address

    @property
    def scrubbed(self) -> Scrubbed:
        """The scrub's progress and findings."""
        return self._scrubbing.scrubbed

    @property
    def open_files(self) -> int:
        """The number of open files: those of partitions, the control file, and the lock of the directory."""
        return (0 if self._control is None or self._control.closed else 2) + len(self._files)

    async def start(self) -> None:
        """Listen, then open the directory. Raises what is wrong with the directory, and what `Network.listen` does.

        Listening comes first, so that an address that can't be had leaves nothing on the disk.
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
        directory = self._settings.directory
        if self._settings.scrub_bytes_per_s:
            self._tasks.append(self._host.spawn(self._scrubbing.run(), f"scrub of {directory}"))
        self._tasks.append(self._host.spawn(self._presence.run(self._host), f"presence of {directory}"))
        _log.info("storage node listens on %s", self.address)

    async def close(self) -> None:
        """Stop the node, to the end even if the caller is cancelled. Everything acknowledged is durable already."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
            # A task of the host's, which ends with the process, and not with the caller.
            self._host.spawn(self._close_for(self._closing), f"close of {self._settings.directory}")
        await asyncio.shield(self._closing)

    async def _close_for(self, closed: asyncio.Future[None]) -> None:
        try:
            await self._close()
        except PolonaiseError as error:
            closed.set_exception(error)
            closed.exception()  # avoids "exception was never retrieved" if no caller is left
        else:
            closed.set_result(None)

    async def _close(self) -> None:
        """Close replicas and connections, then the directory: its lock is given up when nothing writes any more."""
        self._serving = False
        await self._end_tasks()
        async with contextlib.AsyncExitStack() as closing:  # one thing that fails to close does not keep the rest open
            closing.push_async_callback(self._give_up_directory)
            for replica in self._partitions.values():
                closing.push_async_callback(replica.close)
            for connection in list(self._connections):
                connection.close()
            if self._listener is not None:
                await self._listener.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _let_go(self, gone: DirectoryGone) -> None:
        """Store and acknowledge nothing more, and tell each server why: the directory is gone."""
        if self._closing is not None:
            return
        _log.critical("storage node %s stores nothing any more: %s", self._settings.directory, gone)
        # First: whoever connects from now on is refused. Then all that may still acknowledge is ended. The directory is
        # closed last, because the replicas use it until they have ended.
        self._gone = gone
        for connection in list(self._connections):
            connection.turn_away(fresh(gone))
        await self._end_tasks()
        for replica in list(self._partitions.values()):
            await replica.close(gone)
        await self._give_up_directory()

    async def _give_up_directory(self) -> None:
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        async with self._naming:  # not while a name is being written: another process may have the directory next
            if self._control is not None:
                await self._control.close()

    async def _open(self, cluster_key: bytes | None) -> None:
        """Open the directory, which must be of the cluster `cluster_key` if given; a new one becomes that cluster's.

        Raises `NotInitialized` for a new one without a key.
        """
        control = await ControlFile.open(self._host, self._settings.directory, cluster_key)
        try:
            self._known.update(await control.partitions())
            self._note = await read_note(self._host.disk, self._settings.directory)
            self.name = await self._opened_name()
            self._elsewhere = held_elsewhere(self._note, self.name)
        except BaseException:  # when cancelled, too: nobody else would close the file and free the lock
            await control.close()
            raise
        self._control, self._cluster_key = control, control.cluster_key

    async def _write_small_files_again(self) -> None:
        """Write the files of name and note again where somebody has removed them: the next start would miss them."""
        disk, directory = self._host.disk, self._settings.directory
        async with self._naming:
            if self.name is not None and await disk.identity(f"{directory}/{NAME_FILE}") is None:
                await write_name(disk, directory, self.name)
                _log.warning("%s/%s was removed under the running node, and was written again", directory, NAME_FILE)
        async with self._noting:
            if self._note and await disk.identity(f"{directory}/{NOTE_FILE}") is None:
                await write_note(disk, directory, self._note)
                _log.warning("%s/%s was removed under the running node, and was written again", directory, NOTE_FILE)

    async def _opened_name(self) -> StorageId | None:
        """Return the name in the directory, which takes that of the settings if it has none; None if neither has one.

        Raises `wrong_storage_node` if both have a name and not the same.
        """
        directory, given = self._settings.directory, self._settings.name
        found = await read_name(self._host.disk, directory)  # stays: the control file's opening has synced its name
        if found is None and given is not None:
            await write_name(self._host.disk, directory, given)
            return given
        if given is not None and found != given:
            raise fault(
                "wrong_storage_node",
                f"{directory} is the directory of storage node {found}, and this node was started as {given}: correct "
                f"the directory or the name. If {found} is told the same of {given}, their directories were swapped: "
                "swap them back",
            )
        return found

    # ------------------------------------------------------------------ connections

    def _accept(self) -> Connection:
        if self._gone is not None:
            refusal = RefusingConnection(self._host, self._settings, self._gone, self._on_closed)
            self._connections[refusal] = _StorageRequests(0)
            return refusal
        name = f"storage node {self.name or self._settings.name or self._settings.directory}"
        connection = Connection(
            self._host,
            hello=hello(ROLE_STORAGE, name, cluster_key=self._cluster_key or ANY_CLUSTER, node=self._life),
            peer_roles=(ROLE_SERVER, ROLE_OPERATOR),
            on_message=self._on_message,
            on_closed=self._on_closed,
            on_greeted=self._on_greeted,
            settings=self._settings.link,
            accepted=True,
            tells_strangers=(ROLE_SERVER,),
            budget=self._budget,
        )
        self._connections[connection] = _StorageRequests(self._settings.reads_max)
        if not self._serving:  # the directory is not open yet, or not any more: the server tries again
            connection.close()
        return connection

    def _on_greeted(self, connection: Connection) -> None:
        """Check a server's cluster, or note an operator. A new node takes over the cluster of the first server."""
        if connection.peer.role == ROLE_OPERATOR:
            self._operators.add(connection)
            return
        key = connection.peer.cluster_key
        if self._cluster_key is None:
            if key == ANY_CLUSTER:
                raise ProtocolError("a new storage node needs a server that names its cluster")
            self._cluster_key = key
        elif key == ANY_CLUSTER:
            self._strangers_told.add(connection)
        elif key != self._cluster_key:
            # It connected while this node had no cluster yet, and a server of another cluster was faster.
            connection.turn_away(WrongClusterKey("this storage node belongs to another cluster: check the address"))

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        """Tell all replicas that a connection is gone: that ends their part in the sessions that they joined on it."""
        self._operators.discard(connection)
        self._strangers_told.discard(connection)
        if isinstance(error, WrongClusterKey) and connection.peer_role == ROLE_SERVER:
            self._strangers.refused(connection.peer_name, connection.peer_address)
        if self._connections.pop(connection, None) is not None:
            for replica in self._partitions.values():
                replica.disconnected(connection)

    # ------------------------------------------------------------------ messages

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        if self._operators and connection in self._operators and not isinstance(message, Health | FindBatch):
            raise ProtocolError(f"an operator may ask for health and batches only, and sent {type(message).__name__}")
        if self._strangers_told and connection in self._strangers_told and not isinstance(message, TellNoted):
            raise ProtocolError(f"a server that names no cluster may ask for notes only: {type(message).__name__}")
        if isinstance(message, _QUEUED):
            self._replica(partition, isinstance(message, LastSessionInfo)).take(connection, message, request)
        elif isinstance(message, ReplicaRead):
            replica = self._replica(partition, create=False)
            self._answer(connection, partial(replica.answer, connection, message, request))
        elif isinstance(message, Identify):
            check_name(message.name)
            self._answer(connection, partial(self._answer_name, connection, message.name, request))
        elif isinstance(message, NoteValues):
            self._answer(connection, partial(self._take_note, connection, message.document, request))
        elif isinstance(message, TellNoted):
            self._answer(connection, partial(self._tell_noted, connection, request))
        elif isinstance(message, Health):
            connection.send(HealthIs(json.dumps(self.health()).encode()), request=request, partition=partition)
        else:
            raise ProtocolError(f"unexpected message from a server: {type(message).__name__}")

    async def _answer_name(self, connection: Connection, name: StorageId, request: int) -> None:
        try:
            await self._take_name(name)
            connection.send(Identified(name), request=request)
        except PolonaiseError as error:
            self._refuse(connection, error, request)

    async def _take_name(self, name: StorageId) -> None:
        """Return if this is the node's name, which is durable then. A directory without a name takes this one.

        Raises `wrong_storage_node`, and what `_check_serving` and the disk raise.
        """
        # One at a time: of two names that come together, one is taken, and the other refused.
        async with self._naming:
            self._check_serving()
            self._check_named(name)  # before anything is made for a name that is refused
            if self._control is None:
                await self._opened_control()
                self._check_serving()
                # Again: the directory may have a name although it had no control file.
                self._check_named(name)
            if self.name is None:
                await write_name(self._host.disk, self._settings.directory, name)
                self.name = name
                _log.info("%s is the directory of storage node %s from now on", self._settings.directory, name)

    async def _take_note(self, connection: Connection, document: bytes, request: int) -> None:
        try:
            async with self._noting:
                self._check_serving()
                await self._opened_control()
                told = checked(json.loads(document), self._settings.partitions_max)
                told, others = self._of_copies(told)
                note = merged(self._note, told)
                await write_note(self._host.disk, self._settings.directory, note)
                self._note = note
                self._elsewhere -= set(map(int, told.get("partitions", {})))
                self._elsewhere |= others
            connection.send(ValuesNoted(), request=request)
        except (ValueError, RecursionError) as error:
            connection.refuse(ProtocolError(f"invalid values: {error}"), request=request)
        except PolonaiseError as error:
            self._refuse(connection, error, request)

    def _of_copies(self, told: Note) -> tuple[Note, set[PartitionId]]:
        """Return what was told but for values of partitions of which this node neither has nor is to have a copy.

        And the partitions of which it has a copy and is to have none.
        """
        others = held_elsewhere(told, self.name)
        strange = others - self._known
        partitions = told.get("partitions", {})
        kept = {partition: value for partition, value in partitions.items() if int(partition) not in strange}
        return {**told, "partitions": kept}, others - strange

    async def _tell_noted(self, connection: Connection, request: int) -> None:
        try:
            self._check_serving()
            control = await self._opened_control()
            told = {
                "cluster": control.cluster_key.hex(),
                "name": self.name,
                "note": self._note,
                "promises": {str(partition): await control.told_of(partition) for partition in sorted(self._known)},
                "servers": self._connected_servers(),
            }
            connection.send(NotedAre(json.dumps(told).encode()), request=request)
        except PolonaiseError as error:
            self._refuse(connection, error, request)

    def _refuse(self, connection: Connection, error: PolonaiseError, request: int) -> None:
        """Refuse a request that concerns the node as a whole."""
        self._no_room.note(error)
        connection.refuse(error, request=request)

    def _connected_servers(self) -> dict[str, str]:
        """Return the addresses of connected servers of the cluster, by number; operators in that role have none."""
        return {
            str(each.peer.node): each.peer_address
            for each in self._connections
            if each.is_greeted and each.peer.role == ROLE_SERVER and each.peer.node and not each.closed
        }

    def _check_named(self, name: StorageId) -> None:
        own = self.name or self._settings.name or name
        if own != name:
            raise fault(
                "wrong_storage_node",
                f"this is storage node {own}, with the directory {self._settings.directory}, and it is reached as "
                f"{name}: give each node the address at which its own directory is served (polonaise storage move "
                f"NAME HOST:PORT). If the one that is reached as {own} is {name}, their directories were swapped: swap "
                "them back. Two nodes can't share a directory; one that is to be another node's has to be empty first",
            )

    def _check_serving(self) -> None:
        if self._gone is not None:
            raise fresh(self._gone)
        if not self._serving:
            raise Closed("the storage node is shutting down")

    def _replica(self, partition: PartitionId, create: bool) -> PartitionReplica:
        """Return the partition's replica; with `create`, which only a session's first message has, make it if need be.

        Raises `UnknownPartition` for a number that this node does not take, and for a partition that was never here.
        """
        replica = self._partitions.get(partition)
        if replica is not None:
            return replica
        if not 0 <= partition < self._settings.partitions_max:
            raise UnknownPartition(
                f"invalid partition {partition}: this node takes 0 to {self._settings.partitions_max - 1} "
                "(partitions_max in its settings)"
            )
        if partition not in self._known and not create:
            raise UnknownPartition(f"partition {partition} was never on this node")
        self._known.add(partition)
        replica = PartitionReplica(
            self._host, partition, self._settings, lambda: self._open_log(partition), self._syncs, self._no_room
        )
        self._partitions[partition] = replica
        return replica

    async def _open_log(self, partition: PartitionId) -> PartitionLog:
        control = await self._opened_control()
        async with self._openings:
            slot = await control.load(partition)
            if slot is None:
                slot = await control.create(partition)
            settings = LogSettings(self._settings.segment_bytes_max, self._settings.segment_batches_max)
            directory = control.partition_directory(partition)
            return await PartitionLog.open(self._host, directory, slot, settings, self._cache, self._files)

    async def _opened_control(self) -> ControlFile:
        """Return the control file. A new node makes it now, for the cluster of the first server."""
        if self._control is None:
            if self._adopting is None or self._adopting.done():
                # Never tried, or tried in vain: a full disk may have room again.
                self._adopting = asyncio.ensure_future(self._open(self._cluster_key))
            await asyncio.shield(self._adopting)
        assert self._control is not None
        return self._control

    def _answer(self, connection: Connection, answer: Callable[[], Awaitable[None]]) -> None:
        """Answer in a task. A connection with `reads_max` unanswered requests is not read."""
        requests = self._connections[connection]
        requests.waiting += 1
        if requests.waiting >= self._settings.reads_max:
            connection.pause("requests")

        async def run() -> None:
            async with requests.turn:
                await answer()
            requests.waiting -= 1
            if requests.waiting < self._settings.reads_max:
                connection.resume("requests")

        self._host.spawn(run(), f"answer to {connection.peer_name}")

    @property
    def serving(self) -> bool:
        """Whether this node takes what servers send: it has started, its directory is there, and it is not closed."""
        return self._serving and self._gone is None

    @property
    def given_up(self) -> set[PartitionId]:
        """The partitions whose copies here were given up, as far as servers have told; their files are left."""
        return self._elsewhere & self._known

    def measures(self) -> StorageMeasures:
        """Return what can be measured of this node, with the first `_UNAVAILABLE_MAX` unusable partitions.

        What the scrub found is looked at again before, and noted and logged if it is repaired by now.
        """
        self._scrubbing.look_for_repairs()
        scrubbed, space, given_up = self._scrubbing.to_be_repaired, self._presence.space, self.given_up
        counts: Counter[str] = Counter()
        unavailable: dict[str, str] = {}
        for partition, replica in sorted(self._partitions.items()):
            counts.update(replica.counts)
            if partition in given_up:
                continue  # nobody uses it, nor does anybody repair it
            if (fault := replica.fault or replica.loss) is not None and len(unavailable) < _UNAVAILABLE_MAX:
                unavailable[str(partition)] = str(fault)
        health = StorageNodeHealth(
            name=self.name,
            directory=self._settings.directory,
            gone=str(self._gone or ""),
            tls=network_trouble(self._host.network),
            unreachable=unreachable(self._host.network),
            refused=str(self._strangers),
            partitions=len(self._known),
            given_up=len(given_up),
            noted=noted_version(self._note),
            disk=None if space is None else space._asdict(),
            no_room=str(self._no_room),
            disk_waits_s=self._host.disk.under_way_s,
            scrub={
                "bytes_per_s": self._settings.scrub_bytes_per_s,
                **asdict(scrubbed),
                "damages": [damage._asdict() for damage in scrubbed.damages],
            },
            resent=self._resent(),
            unavailable=unavailable,
            counts=counts,
        )
        return StorageMeasures(
            health=health,
            scrubbed=self.scrubbed,
            syncs=self._syncs,
            connections=len(self._connections),
            connections_bytes=self._budget.total,
            reads=sum(requests.waiting for requests in self._connections.values()),
            open_files=self.open_files,
            open_files_max=self._settings.files_max,
        )

    def health(self) -> dict[str, Any]:
        """Return this node's health as a JSON-ready document."""
        return self.measures().health.document()

    def replicas(self) -> list[PartitionReplica]:
        """Return the replicas that were used since this node started."""
        return list(self._partitions.values())

    def _resent(self) -> dict[str, float]:
        """Return by server, of those with losses, the share of what was sent lately that had to be sent again."""
        shares: dict[str, float] = {}
        for connection in self._connections:
            share = connection.losses.resent
            if share and connection.is_greeted and connection.peer.role == ROLE_SERVER:
                server = str(connection.peer.node)
                shares[server] = max(round(share, 3), shares.get(server, 0.0))
        return shares


class _StorageRequests:
    """The requests of one connection that are answered in tasks."""

    __slots__ = ("turn", "waiting")

    def __init__(self, answered_max: int) -> None:
        self.turn = asyncio.Semaphore(answered_max)
        """Limits how many are answered at a time: each may have bytes in memory."""
        self.waiting = 0
