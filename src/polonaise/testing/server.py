"""A server in memory: one process owns every partition, decides as an owner does, and commits at once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import (
    BeyondLog,
    ConnectionLost,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
)
from polonaise.link.connection import Connection, hello
from polonaise.server.mounts import Mount
from polonaise.server.protocol.feed import Committed, Subscription
from polonaise.server.protocol.order import check_bodies, check_frame
from polonaise.terms import BodyForm, ClientId, FailureReason, MountState, PartitionId, TransactionId
from polonaise.testing.faults import Armed
from polonaise.testing.memory import KEY, MemoryHost
from polonaise.testing.partition import MemoryPartition
from polonaise.wire.appends import AppendColumns, Failure, ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.fetches import encode_bodies, parse_fetch
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    Append,
    AppendsFailed,
    Batches,
    Bodies,
    Credit,
    Fetch,
    Flush,
    Flushed,
    GetRegister,
    Health,
    HealthIs,
    HighWaterMark,
    HighWaterMarkIs,
    Mounted,
    Read,
    RegisterIs,
    Unmount,
)
from polonaise.wire.messages import Mount as MountRequest

ADDRESS: Final = "memory:1"
GENERATION: Final = 1
_READ_BYTES_MAX: Final = 4 * 1024 * 1024


class _Due(NamedTuple):
    """What an owner does with a message once its time has come."""

    at_s: float
    do: Callable[[], None]


class MemoryServer:
    """Promises what the owner of a partition promises its clients, but for durability."""

    def __init__(self, host: MemoryHost, partitions: int) -> None:
        self._host = host
        self.armed = Armed()
        self.partitions = {partition: Owned(partition) for partition in range(partitions)}
        self._connections: dict[Connection, None] = {}
        self.reach()

    def owned(self, partition: PartitionId) -> Owned:
        """Raises `UnknownPartition`."""
        found = self.partitions.get(partition)
        if found is None:
            raise UnknownPartition(f"partition {partition}; this log has partitions 0 to {len(self.partitions) - 1}")
        return found

    # ------------------------------------------------------------------ life and connections

    def reach(self) -> None:
        """Listen."""
        self._host.wires.listening[ADDRESS] = self._accept

    def close(self) -> None:
        self._host.wires.listening.pop(ADDRESS, None)
        for connection in list(self._connections):
            connection.close()

    def lose_connections(self, *, reachable: bool) -> None:
        if not reachable:
            self._host.wires.listening.pop(ADDRESS, None)
        for connection in list(self._connections):
            connection.abort(ConnectionLost("the test had it lost"))

    def _accept(self) -> Connection:
        return Connection(
            self._host,
            hello=hello(ROLE_SERVER, "a server in memory", cluster_key=KEY),
            peer_roles=(ROLE_CLIENT,),
            on_message=self._on_message,
            on_closed=self._on_closed,
            on_greeted=lambda connection: self._connections.update({connection: None}),
            accepted=True,
        )

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        self._connections.pop(connection, None)
        for owned in self.partitions.values():
            owned.forget(connection)

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        if isinstance(message, Health):
            connection.send(HealthIs(json.dumps(self._health()).encode()), request=request)
            return
        owned = self.owned(partition)
        match message:
            case MountRequest():
                self._mount(connection, owned, message, request)
            case Unmount():
                owned.unmount(connection)
            case Append():
                self._append(connection, owned, message)
            case Credit():
                mount = owned.mount_of(connection)
                if mount is not None:
                    mount.subscription.credit += message.bytes
                    self._feed(owned, mount)
            case Flush():
                self._flush(connection, owned, request)
            case HighWaterMark():
                connection.send(HighWaterMarkIs(GENERATION, owned.log.mark), request=request, partition=partition)
            case GetRegister():
                value = owned.log.registers.get(message.key)
                answer = RegisterIs(value is not None, owned.log.mark, value or b"")
                connection.send(answer, request=request, partition=partition)
            case Read():
                self._read(connection, owned, message, request)
            case Fetch():
                connection.send(_bodies(owned.log, message), request=request, partition=partition)
            case _:
                raise ProtocolError(f"{type(message).__name__} is nothing that a client says")

    def _health(self) -> dict[str, Any]:
        return {
            "server": 1,
            "storage": {},
            "partitions": {
                str(partition): {"generation": GENERATION, "committed": owned.log.mark, "ready": True, "waits_for": ""}
                for partition, owned in self.partitions.items()
            },
        }

    # ------------------------------------------------------------------ mounts and feed

    def _mount(self, connection: Connection, owned: Owned, message: MountRequest, request: int) -> None:
        committed, mark = owned.log.mark, message.client_high_water_mark

        def answer(state: MountState) -> None:
            mounted = Mounted(state, GENERATION, committed, "")
            connection.send(mounted, request=request, partition=owned.log.partition)

        if mark > committed:
            answer(MountState.CLIENT_AHEAD)
            return
        client = _client(connection)
        subscription = Subscription(
            mark, BodyForm(message.form), message.credit, message.filter_mask, message.filter_value
        )
        mount = Mount(owned.log.partition, client, connection, message.connection_sequence, subscription)
        owned.mounts[client] = mount
        mount.after_feed(committed, lambda: answer(MountState.READY))
        self._feed(owned, mount)

    def _feed(self, owned: Owned, mount: Mount) -> None:
        if owned.log.partition in self.armed.suspended:
            return
        for batch in owned.log.from_id(mount.subscription.next_id):
            if not mount.subscription.has_credit:
                return
            mount.send(Committed(batch.first, batch.last, bytes(batch.view)), owned.log.mark)

    def suspend(self, partition: PartitionId) -> None:
        self.armed.suspended.add(self.owned(partition).log.partition)

    def resume(self, partition: PartitionId) -> None:
        owned = self.owned(partition)
        self.armed.suspended.discard(partition)
        self._feed_all(owned)

    def _feed_all(self, owned: Owned) -> None:
        for mount in list(owned.mounts.values()):
            self._feed(owned, mount)

    # ------------------------------------------------------------------ appends

    def _append(self, connection: Connection, owned: Owned, message: Append) -> None:
        mount = owned.mount_of(connection)
        if mount is None:
            return  # void, like everything on a connection without a mount; the client's next mount settles it
        check_frame(message.count, len(message.columns) + sum(map(len, message.payload)))
        appends = ReceivedAppends(message)
        check_bodies(appends)
        self._when_due(owned, lambda: self._order(owned, mount, appends))

    def _flush(self, connection: Connection, owned: Owned, request: int) -> None:
        mount = owned.mount_of(connection)
        if mount is None:
            raise PartitionNotReady("a flush without a mount on this connection")

        def answer() -> None:
            mark = owned.log.mark
            flushed = Flushed(mark)
            mount.after_feed(mark, lambda: connection.send(flushed, request=request, partition=owned.log.partition))

        self._when_due(owned, answer)

    def _when_due(self, owned: Owned, do: Callable[[], None]) -> None:
        """Now, or after the delay that a test asked for; always in the order of arrival."""
        if not self.armed.delay_s and not owned.due:
            do()
            return
        loop = asyncio.get_running_loop()
        at_s = loop.time() + self.armed.delay_s
        if owned.due:
            at_s = max(at_s, owned.due[-1].at_s)
        owned.due.append(_Due(at_s, do))
        loop.call_at(at_s, owned.do_due)

    def _order(self, owned: Owned, mount: Mount, appends: ReceivedAppends) -> None:
        """Judge and commit, if the mount on which it came still holds."""
        for each in _one_by_one(appends) if self.armed.any else [appends]:
            if owned.mounts.get(mount.client_id) is not mount:
                return
            if self.armed.next_unknown:
                self._lose(owned, mount, each, committed=self.armed.next_unknown.popleft())
                return
            reason = self.armed.strikes(each.lock_ends is not None) if self.armed.any else None
            if reason is not None:
                value = owned.log.mark + (reason is FailureReason.EXPECTATION_FAILED)
                self._tell(mount, [Failure(sequence, value, reason) for sequence in each.sequences.tolist()])
            else:
                self._commit(owned, mount, each)

    def _commit(self, owned: Owned, mount: Mount, appends: ReceivedAppends) -> None:
        try:
            refusals = owned.log.append(mount.client_id, appends)
        except PolonaiseError as error:
            owned.mounts.pop(mount.client_id, None)
            mount.connection.refuse(error)
            mount.connection.close(error)
            return
        self._feed_all(owned)
        owned.tell_readers()
        if refusals:
            self._tell(mount, [Failure(refusal.sequence, refusal.value, refusal.reason) for refusal in refusals])

    def _lose(self, owned: Owned, mount: Mount, appends: ReceivedAppends, *, committed: bool) -> None:
        """All connections are lost before the fate of these is told."""
        self.lose_connections(reachable=False)
        if committed:
            self._commit(owned, mount, appends)

    def _tell(self, mount: Mount, failures: list[Failure]) -> None:
        message = AppendsFailed(GENERATION, encode_failures(failures))
        mount.connection.send(message, partition=mount.partition)

    # ------------------------------------------------------------------ reading

    def _read(self, connection: Connection, owned: Owned, message: Read, request: int) -> None:
        def answer() -> None:
            connection.send(_batches(owned.log, message), request=request, partition=owned.log.partition)

        if message.first < 0:
            raise ProtocolError(f"a read from {message.first}")
        if message.first > owned.log.mark and message.wait_ms:
            owned.wait(message.first, message.wait_ms / 1000, answer)
        else:
            answer()


class Owned:
    """A partition, who has mounted it, and who waits for it to grow."""

    def __init__(self, partition: PartitionId) -> None:
        self.log = MemoryPartition(partition)
        self.mounts: dict[ClientId, Mount] = {}
        self.due: deque[_Due] = deque()
        self._waiting: dict[asyncio.TimerHandle, tuple[TransactionId, Callable[[], None]]] = {}

    def mount_of(self, connection: Connection) -> Mount | None:
        """The client's mount, if it is on this connection: messages of an older connection are void."""
        mount = self.mounts.get(_client(connection))
        return mount if mount is not None and mount.connection is connection else None

    def unmount(self, connection: Connection) -> None:
        if self.mount_of(connection) is not None:
            del self.mounts[_client(connection)]

    def forget(self, connection: Connection) -> None:
        if connection.peer is not None:
            self.unmount(connection)

    def do_due(self) -> None:
        if self.due:
            self.due.popleft().do()

    def wait(self, first: TransactionId, wait_s: float, answer: Callable[[], None]) -> None:
        """Call `answer` once `first` is committed, or when the time is up."""

        def expired() -> None:
            del self._waiting[timer]
            answer()

        timer = asyncio.get_running_loop().call_later(wait_s, expired)
        self._waiting[timer] = (first, answer)

    def tell_readers(self) -> None:
        for timer, (first, answer) in list(self._waiting.items()):
            if first <= self.log.mark:
                timer.cancel()
                del self._waiting[timer]
                answer()


def _client(connection: Connection) -> ClientId:
    assert connection.peer is not None
    return connection.peer.node


def _batches(log: MemoryPartition, message: Read) -> Batches:
    found: list[bytes] = []
    size = 0
    for batch in log.from_id(message.first):
        if message.after_time_us and batch.commit_time_us < message.after_time_us:
            continue
        if message.part_last >= 0 and batch.first < message.first:
            continue
        if 0 <= message.part_last < batch.first:
            break
        found.append(bytes(batch.view) if message.with_data else batch.without_data())
        size += batch.length
        if size >= min(message.bytes_max, _READ_BYTES_MAX):
            break
    return Batches(log.mark, payload=found)


def _bodies(log: MemoryPartition, message: Fetch) -> Bodies:
    bodies: list[bytes] = []
    for transaction in parse_fetch(message):
        if not 0 <= transaction <= log.mark:
            raise BeyondLog(f"transaction {transaction}; the committed high-water mark is {log.mark}")
        bodies.append(log.from_id(transaction)[0].body(transaction))
    return encode_bodies(bodies, [crc32(body) for body in bodies])


def _one_by_one(appends: ReceivedAppends) -> Iterator[ReceivedAppends]:
    """The groups of a frame as frames of their own."""
    group_ends = bytes(appends.group_ends) if appends.group_ends is not None else b"\1" * appends.count
    columns = AppendColumns()
    for place in range(appends.count):
        start = appends.data_ends[place - 1] if place else 0
        locks: list[tuple[int, int]] = []
        if appends.lock_ends is not None and appends.lock_hashes is not None and appends.lock_modes is not None:
            at = range(appends.lock_ends[place - 1] if place else 0, appends.lock_ends[place])
            locks = [(appends.lock_hashes[lock], appends.lock_modes[lock]) for lock in at]
        columns.add(
            appends.sequences[place],
            appends.client_high_water_marks[place],
            appends.headers[place],
            appends.data[start : appends.data_ends[place]],
            appends.data_crcs[place],
            locks,
            ends_group=bool(group_ends[place]),
            operations=[(o.kind, o.key, o.value) for o in appends.operations if o.place == place],
        )
        if group_ends[place]:
            message = columns.message(GENERATION)
            message.payload = [b"".join(message.payload)]
            yield ReceivedAppends(message)
            columns = AppendColumns()
