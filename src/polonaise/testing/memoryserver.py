"""A server in memory: it owns every partition, commits at once, and carries out the faults that a test armed."""

from __future__ import annotations

import asyncio
import json
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple

from polonaise.coordination.values import PartitionValue
from polonaise.errors import ConnectionLost, PolonaiseError, UnknownPartition
from polonaise.host import Clock
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.producers import Produced, parse_request
from polonaise.log.registers import TOTAL_BYTES_MAX
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.effects import (
    Answer,
    AwaitRoom,
    AwaitTurn,
    ConfirmClean,
    Effect,
    EffectQueue,
    EndSession,
    FeedBatch,
    MarkMoved,
    ReadHistory,
    Replicate,
    TellFailures,
)
from polonaise.server.protocol.mounts import ClientMount, Committed
from polonaise.server.protocol.order import check_bodies, check_frame
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.session import StartedSession
from polonaise.server.servedpartition import receive, send
from polonaise.server.settings import ServerSettings
from polonaise.terms import (
    NO_TRANSACTION,
    ChangeKind,
    FailureReason,
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    Transaction,
    TransactionId,
)
from polonaise.testing.memory import KEY, MemoryHost
from polonaise.wire.appends import CHANGE, AppendColumns, FailedAppend, ReceivedAppends
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    Append,
    Batches,
    Fetch,
    Flush,
    Flushed,
    Health,
    HealthIs,
    Mounted,
    Read,
    ReadBatches,
)

GENERATION: Final[Generation] = 1
BEGINNING_US: Final = 946_684_800_000_000
"""The beginning of the year 2000, in microseconds UTC, so that every run has the same commit times."""
STEP_US: Final = 1_000
_REPLICAS: Final[tuple[StorageId, ...]] = ("memory-0", "memory-1", "memory-2")
"""The names under which the one replica takes part, one zone each: an append may need up to 3 copies and 3 zones."""
_FIRST_SESSION: Final = 1
_SETTINGS: Final = ServerSettings(lock_entries=1 << 16)


class MemoryReplica:
    """A partition's only replica. What it stores counts as synced."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def last(self) -> TransactionId:
        return self.batches[-1].last if self.batches else NO_TRANSACTION

    def from_id(self, first: TransactionId) -> list[Batch]:
        return self.batches[bisect_left(self.batches, first, key=lambda batch: batch.last) :]

    async def ask_bulk(self, message: Message, partition: PartitionId, deadline_s: float | None = None) -> Message:
        assert isinstance(message, ReadBatches)
        encoded: list[bytes] = []
        size = 0
        for batch in self.from_id(message.first):
            if message.after_time_us and batch.commit_time_us < message.after_time_us:
                continue
            if message.part_last >= 0 and batch.first < message.first:
                continue
            if batch.last > message.last or 0 <= message.part_last < batch.first:
                break
            encoded.append(bytes(batch.view) if message.with_data else batch.without_data())
            size += batch.length
            if size >= message.bytes_max:
                break
        return Batches(message.last, payload=[b"".join(encoded)])


class MemoryPartition:
    """Brings a partition's owner its events, and carries out the owner's effects in their order."""

    def __init__(self, partition: PartitionId, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._replica = MemoryReplica()
        self._time_us = BEGINNING_US
        self.feed_suspended = False
        self._withheld: list[Effect] = []
        self.carry_out = EffectQueue(self._carry_out)
        self.owner = PartitionOwner(partition, GENERATION, _SETTINGS)
        links: Any = dict.fromkeys(_REPLICAS, self._replica)
        self.reader = PartitionReader(self.owner, links, _SETTINGS, None, lambda reason: None)
        self._start_session(_FIRST_SESSION)

    @property
    def now(self) -> Moment:
        """The clock's time, and the next batch's commit time, which is the same in every run."""
        return Moment(self._clock.monotonic_s(), self._time_us + STEP_US)

    @property
    def mark(self) -> TransactionId:
        return self._replica.last

    @property
    def registers(self) -> dict[bytes, bytes]:
        return self.owner.registers.values

    def transactions(self) -> list[Transaction]:
        """Return all committed transactions, without the library's own."""
        return [tx for batch in self._replica.batches for tx in batch.transactions()]

    # ------------------------------------------------------------------ sessions

    def _start_session(self, session: SessionId) -> None:
        """Start a session at the end of the replica's log; the replica stores at once all that it is sent."""
        batches = self._replica.batches
        # The owner's registers are those at its committed mark; the batches behind it change them further.
        values = dict(self.owner.registers.values)
        for batch in self._replica.from_id(self.owner.committed + 1):
            registers.apply(values, batch.registers)
        started = StartedSession(
            value=PartitionValue(GENERATION, session, _REPLICAS),
            closing=self._replica.last,
            last_crc=batches[-1].crc if batches else 0,
            commit_time_us=self._time_us,
            registers=values,
            engaged=dict.fromkeys(_REPLICAS, self._replica),
            zones={name: name for name in _REPLICAS},
            first=session == _FIRST_SESSION,
        )
        self.carry_out(self.owner.session_started(started, self.now))

    # ------------------------------------------------------------------ effects

    def _carry_out(self, effect: Effect) -> None:
        is_answer = isinstance(effect, Answer) and isinstance(effect.message, Mounted | Flushed)
        if self.feed_suspended and (is_answer or isinstance(effect, FeedBatch)):
            self._withheld.append(effect)
            return
        match effect:
            case ConfirmClean():
                pass
            case Replicate():
                self._store(effect)
            case ReadHistory():
                self._read_history(effect)
            case AwaitRoom(mount):
                asyncio.get_running_loop().call_soon(lambda: self.carry_out(self.owner.room(mount)))
            case AwaitTurn():
                asyncio.get_running_loop().call_soon(lambda: self.carry_out(self.owner.turn(self.now)))
            case MarkMoved():
                self.reader.moved.wake()
            case EndSession():
                # An owner ends a session by itself now and then, for a checkpoint.
                self._start_session(effect.session + 1)
            case _:
                send(effect, self.partition, GENERATION)

    def suspend_feed(self) -> None:
        self.feed_suspended = True

    def resume_feed(self) -> None:
        self.feed_suspended = False
        withheld, self._withheld = self._withheld, []
        self.carry_out(withheld)

    def _store(self, effect: Replicate) -> None:
        if effect.batch is not None:
            self._time_us += STEP_US
            self._replica.batches.append(Batch.parse(effect.batch.raw))
        for name in _REPLICAS:
            self.carry_out(self.owner.stored(name, self._replica, effect.session, effect.number, self.now))

    def _read_history(self, effect: ReadHistory) -> None:
        batches = [
            Committed(batch.first, batch.last, bytes(batch.view)) for batch in self._replica.from_id(effect.first)
        ]
        self.carry_out(self.owner.history_read(effect.mount, batches))


_PASSING = (FailureReason.SESSION_ENDED, FailureReason.LOCK_CONFLICT)
"""The reasons for which `Faults.rate` fails appends, those without a lock for the first only."""


class Armed:
    """The faults that a test has armed."""

    def __init__(self) -> None:
        self.next_reasons: deque[FailureReason] = deque()
        """For each of the next appends, or groups, that are to fail: the reason."""
        self.next_locks = 0
        """How many of the next appends with a lock meet a conflict."""
        self.next_unknown: deque[bool] = deque()
        """For each of the next appends that lose their connection, whether it is committed."""
        self.probability = 0.0
        """That an append fails, from 0 to below 1."""
        self.delay_s = 0.0
        """From the arrival of an append to its decision."""
        self.random = random.Random(0)

    @property
    def any(self) -> bool:
        """Whether a fault of single appends is armed, so that frames have to be taken apart."""
        return bool(self.next_reasons or self.next_locks or self.next_unknown or self.probability)

    def strikes(self, has_locks: bool) -> FailureReason | None:
        """Return why this append is to fail, and use up the fault; None to let the owner judge it."""
        if self.next_reasons:
            return self.next_reasons.popleft()
        if self.next_locks and has_locks:
            self.next_locks -= 1
            return FailureReason.LOCK_CONFLICT
        if self.probability and self.random.random() < self.probability:
            return self.random.choice(_PASSING if has_locks else _PASSING[:1])
        return None


ADDRESS: Final = "memory:1"


class _Due(NamedTuple):
    """A delayed message: the loop's time at which it is handled, and how."""

    at_s: float
    handle: Callable[[], None]


class MemoryServer:
    """Keeps the promises of a server, except durability, and carries out the faults that a test armed."""

    def __init__(self, host: MemoryHost, partitions: int) -> None:
        self._host = host
        self.armed = Armed()
        self.partitions = {partition: MemoryPartition(partition, host.clock) for partition in range(partitions)}
        self._connections: dict[Connection, None] = {}
        self._due: dict[PartitionId, deque[_Due]] = {partition: deque() for partition in self.partitions}
        self.reach()

    def partition(self, partition: PartitionId) -> MemoryPartition:
        try:
            return self.partitions[partition]
        except KeyError:
            last = len(self.partitions) - 1
            raise UnknownPartition(f"partition {partition}; this log has partitions 0 to {last}") from None

    # ------------------------------------------------------------------ life and connections

    def reach(self) -> None:
        self._host.wires.listening[ADDRESS] = self._accept

    def close(self) -> None:
        self._host.wires.listening.pop(ADDRESS, None)
        for connection in list(self._connections):
            connection.close()

    def lose_connections(self, *, reachable: bool) -> None:
        if not reachable:
            self._host.wires.listening.pop(ADDRESS, None)
        for connection in list(self._connections):
            connection.abort(ConnectionLost("the test broke the connection"))

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
        if connection.is_greeted:
            for partition in self.partitions.values():
                partition.carry_out(partition.owner.unmount(connection.peer.node, connection))

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        if isinstance(message, Health):
            connection.send(HealthIs(json.dumps(self._health()).encode()), request=request)
            return
        served = self.partition(partition)
        match message:
            case Append() if self._is_disturbed(partition):
                self._append(connection, served, message)
            case Flush() if self._is_disturbed(partition):
                self._when_due(partition, lambda: self._flush(connection, served, message, request))
            case Read():
                self._answer(connection, partition, request, self._read(served, message))
            case Fetch():
                self._answer(connection, partition, request, served.reader.fetch(message))
            case _:
                self._receive(connection, served, message, request)

    def _receive(self, connection: Connection, served: MemoryPartition, message: Message, request: int) -> None:
        served.carry_out(receive(served.owner, connection, message, request, served.now))

    def _flush(self, connection: Connection, served: MemoryPartition, message: Flush, request: int) -> None:
        try:
            self._receive(connection, served, message, request)
        except PolonaiseError as error:
            connection.refuse(error, request=request, partition=served.partition)

    async def _read(self, served: MemoryPartition, message: Read) -> Message:
        await served.reader.wait(message)
        return await served.reader.read(message)

    def _answer(
        self, connection: Connection, partition: PartitionId, request: int, answering: Coroutine[Any, Any, Message]
    ) -> None:
        async def run() -> None:
            try:
                connection.send(await answering, request=request, partition=partition)
            except PolonaiseError as error:
                connection.refuse(error, request=request, partition=partition)

        self._host.spawn(run(), f"request of {connection.peer_name}")

    def _health(self) -> dict[str, Any]:
        return {
            "server": 1,
            "storage": {},
            "partitions": {
                str(partition): {"generation": GENERATION, "committed": served.mark, "ready": True, "waits_for": ""}
                for partition, served in self.partitions.items()
            },
        }

    # ------------------------------------------------------------------ faults

    def _is_disturbed(self, partition: PartitionId) -> bool:
        """Whether a fault may strike, or earlier messages are delayed, so that the next ones must wait."""
        return self.armed.any or bool(self.armed.delay_s) or bool(self._due[partition])

    def _append(self, connection: Connection, served: MemoryPartition, message: Append) -> None:
        check_frame(message.count, len(message.columns) + sum(map(len, message.payload)))
        appends = ReceivedAppends(message)
        check_bodies(appends)
        mount = served.owner.feeds.mount_of(connection.peer.node, connection)
        if mount is not None:
            self._when_due(served.partition, lambda: self._disturb(served, mount, appends))

    def _when_due(self, partition: PartitionId, handle: Callable[[], None]) -> None:
        """Call `handle` now, or after the delay that a test armed; always in the order of arrival."""
        due = self._due[partition]
        if not self.armed.delay_s and not due:
            handle()
            return
        loop = asyncio.get_running_loop()
        at_s = loop.time() + self.armed.delay_s
        if due:
            at_s = max(at_s, due[-1].at_s)
        due.append(_Due(at_s, handle))
        loop.call_at(at_s, self._handle_due, due)

    def _handle_due(self, due: deque[_Due]) -> None:
        if due:
            due.popleft().handle()

    def _disturb(self, served: MemoryPartition, mount: ClientMount, appends: ReceivedAppends) -> None:
        for each in _one_by_one(appends) if self.armed.any else [appends]:
            if served.owner.feeds.mount_of(mount.client_id, mount.connection) is not mount:
                return  # the mount ended with the append before: what is left of the frame is void
            if self.armed.next_unknown:
                self._lose(served, mount, each, committed=self.armed.next_unknown.popleft())
                return
            reason = self.armed.strikes(each.locks is not None) if self.armed.any else None
            if reason is None:
                self._order(served, mount, each)
            else:
                value = _value_of(reason, served, each)
                failures = [FailedAppend(sequence, value, reason) for sequence in each.sequences.tolist()]
                served.carry_out([TellFailures(mount, failures)])

    def _order(self, served: MemoryPartition, mount: ClientMount, appends: ReceivedAppends) -> None:
        served.carry_out(served.owner.append(mount.client_id, mount.connection, GENERATION, appends, served.now))

    def _lose(self, served: MemoryPartition, mount: ClientMount, appends: ReceivedAppends, *, committed: bool) -> None:
        """Break all connections before a client is told the fate of these appends."""
        suspended = served.feed_suspended
        if committed:
            served.suspend_feed()  # or the feed would tell the client the fate before its connection breaks
            self._order(served, mount, appends)
        self.lose_connections(reachable=False)
        if committed and not suspended:  # else the test has suspended it, and resumes it
            served.resume_feed()


def _value_of(reason: FailureReason, served: MemoryPartition, appends: ReceivedAppends) -> int:
    """Return the number to tell with an armed failure; where clients use it, it means what `FailureReason` says."""
    if reason is FailureReason.EXPECTATION_FAILED:
        return served.mark + 1
    if reason is FailureReason.REGISTERS_FULL:
        return TOTAL_BYTES_MAX
    if reason not in (FailureReason.PRODUCER_FENCED, FailureReason.PRODUCER_GAP, FailureReason.PRODUCER_DIFFERS):
        return served.mark
    asked = next((each for each in appends.operations if each.kind == CHANGE + ChangeKind.PRODUCE), None)
    register = served.registers.get(asked.key) if asked else None
    produced = Produced() if register is None else Produced.parse(register)
    if reason is FailureReason.PRODUCER_FENCED:
        return produced.epoch + 1
    if reason is FailureReason.PRODUCER_GAP:
        return produced.last_sequence
    earlier = produced.id_of(parse_request(asked.value)[1]) if asked else None
    if earlier is None:  # its number is new: the test makes up that it was appended before
        return produced.ids[-1] if produced.ids else served.mark
    return earlier


def _one_by_one(appends: ReceivedAppends) -> Iterator[ReceivedAppends]:
    """Yield each group of a frame, and each append that is in no group, as a frame of its own."""
    group_ends = bytes(appends.group_ends) if appends.group_ends is not None else b"\1" * appends.count
    columns = AppendColumns()
    for position in range(appends.count):
        locks: list[tuple[int, int]] = []
        if appends.locks is not None:
            own = appends.locks.of(position)
            locks = list(zip(appends.locks.hashes[own], appends.locks.modes[own], strict=True))
        columns.add(
            appends.sequences[position],
            appends.client_high_water_marks[position],
            appends.headers[position],
            appends.body(position),
            appends.data_crcs[position],
            locks,
            ends_group=bool(group_ends[position]),
            operations=[(each.kind, each.key, each.value) for each in appends.operations if each.position == position],
        )
        if group_ends[position]:
            message = columns.message(GENERATION)
            message.payload = [b"".join(message.payload)]
            yield ReceivedAppends(message)
            columns = AppendColumns()
