"""The shell of one replica: a task that carries out the replica's decisions, one message after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from polonaise.errors import Closed, Fenced, HistoryTrimmed, PolonaiseError, ProtocolError, fault
from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.log.batch import Batch, split
from polonaise.log.partitionlog import PartitionLog, digest, verify_part
from polonaise.log.segment import DamageFound
from polonaise.storage.measures import NoRoom, ReplicaMeasures
from polonaise.storage.protocol.replica import (
    Acknowledge,
    Action,
    Cut,
    DropBelow,
    Refuse,
    Replica,
    Save,
    StoreBatches,
    StoreRequest,
    TellEmptied,
    TellEnd,
    TellSession,
)
from polonaise.storage.settings import StorageSettings
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, TransactionId
from polonaise.wire.codec import Message, Payload
from polonaise.wire.messages import (
    Batches,
    BatchFound,
    Confirm,
    Copy,
    CopyEmptied,
    CutForReset,
    Digest,
    DigestIs,
    Done,
    EmptyCopy,
    FindBatch,
    GetRegisters,
    Join,
    LastSessionInfo,
    LowerMarks,
    ReadBatches,
    RegistersAre,
    SessionInfo,
    Store,
    Stored,
    Trim,
    Trimmed,
    Truncate,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)
_ENTRY_BYTES: Final = 512
"""The memory that a waiting message takes beside its payload, in bytes, estimated generously."""

ReplicaRead: TypeAlias = ReadBatches | GetRegisters | Digest | FindBatch
"""A request that only reads, and so is answered beside the queue."""


class _Entry(NamedTuple):
    connection: Connection
    message: Message
    request: int
    bytes: int
    """Its share of the queue's bound."""


class PartitionReplica:
    """Runs one partition's replica on this node.

    Messages that change something, and those that must be ordered with them, go through one queue; reads are answered
    beside it. The queue's task calls `open_log`, so that messages wait in order while the files are recovered.
    """

    def __init__(
        self,
        host: Host,
        partition: PartitionId,
        settings: StorageSettings,
        open_log: Callable[[], Awaitable[PartitionLog]],
        syncs: Histogram | None = None,
        no_room: NoRoom | None = None,
    ) -> None:
        """Begin to open the files. `syncs` gets the time of each write and sync, `no_room` what a full disk refuses."""
        self._host = host
        self._partition = partition
        self._settings = settings
        self._name = f"partition {partition} in {settings.directory}"
        """The name in log lines; with the directory, because several nodes may run in one process."""
        self._open_log = open_log
        self._queue: deque[_Entry] = deque()
        self._queue_bytes = 0
        self._paused: dict[Connection, None] = {}
        self._arrived = asyncio.Event()
        self._opened = asyncio.Event()
        """Set once opening the files has been tried."""
        self._log: PartitionLog | None = None
        self._replica: Replica | None = None
        self._changing = asyncio.Lock()
        """Held while the log is changed, checked for its place or closed."""
        self.unavailable: PolonaiseError | None = None
        """Why the files could not be opened, or were closed; else None. See also `PartitionLog.broken`."""
        self._damage: DamageFound | None = None
        self.written = False
        """Whether batches were written since `check_in_place` looked last."""
        self._syncs = syncs or Histogram()
        self._no_room = no_room or NoRoom(host.clock)
        self.counts = {"batches": 0, "transactions": 0, "bytes": 0, "syncs": 0, "refused": 0}
        """What was stored, the syncs that this took, and the queued messages refused, since the first use."""
        self._task = host.spawn(self._run(), f"partition {partition}")

    @property
    def whole(self) -> bool:
        """Whether the replica is open, needs no cut and, as far as is known, lacks nothing that it acknowledged."""
        log = self._log
        if log is None or self._is_shut:
            return False
        return not (log.slot.promises.may_have_lost or log.slot.promises.untrusted)

    @property
    def _fields(self) -> dict[str, int]:
        known = {"partition": self._partition}
        fence = NO_SESSION if self._replica is None else self._replica.promises.fence
        return known if fence == NO_SESSION else {**known, "session": fence}

    def measures(self) -> ReplicaMeasures:
        log, queue = self._log, (len(self._queue), self._queue_bytes)
        if log is None or self.fault is not None:
            return ReplicaMeasures(self._partition, False, NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, 0, 0, *queue)
        segments, promises = log.segments, log.slot.promises
        return ReplicaMeasures(
            self._partition, True, promises.fence, log.last, promises.confirmed,
            len(segments), _size(log), *queue,
        )  # fmt: skip

    async def close(self, gone: PolonaiseError | None = None) -> None:
        """Stop taking messages and close the files. Nothing is written if the directory is `gone`, for this reason."""
        # The task first, and to its end: it may be in the middle of a write.
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with self._changing:
            log, self._log = self._log, None
            self.unavailable = gone or Closed("this storage node is stopping")
            if log is not None:
                log.broken = log.broken or gone
                await log.close()

    @property
    def busy(self) -> bool:
        """Whether something is under way that changes the log."""
        return self._changing.locked()

    async def check_in_place(self, *, every_file: bool) -> None:
        """Record a loss if the file that is being written was removed or replaced; with `every_file`, also for others.

        Nobody else would notice: the process that has a removed file open can go on writing it. Raises the disk's
        errors.
        """
        self.written = False
        async with self._changing:
            log, replica = self._log, self._replica
            if log is None or replica is None or self._is_shut:
                return
            try:
                await (log.check_in_place() if every_file else log.check_tail_in_place())
            except DamageFound as error:
                # Also if no batch was in the file: what is written to it from now on would be lost.
                await self._record_loss(log, replica, error)

    # ------------------------------------------------------------------ the queue

    def take(self, connection: Connection, message: Message, request: int) -> None:
        """Put a message into the queue. While the queue is full, the connections that add to it are not read."""
        size = _ENTRY_BYTES + _payload_bytes(message)
        self._queue.append(_Entry(connection, message, request, size))
        self._queue_bytes += size
        self._arrived.set()
        if self._queue_bytes > self._settings.queue_bytes_max:
            connection.pause(self._pause_reason)
            self._paused[connection] = None

    def disconnected(self, connection: Connection) -> None:
        """Drop the waiting messages of a closed connection, and end its part in the session."""
        self._paused.pop(connection, None)
        others = [entry for entry in self._queue if entry.connection is not connection]
        if len(others) < len(self._queue):
            self._queue = deque(others)
            self._queue_bytes = sum(entry.bytes for entry in others)
            self._resume_paused()
        if self._replica is not None:
            self._replica.disconnected(connection)

    @property
    def _pause_reason(self) -> str:
        """The reason under which connections are paused: one may fill several partitions' queues."""
        return f"queue of partition {self._partition}"

    async def _run(self) -> None:
        try:
            await self._open()
        finally:
            self._opened.set()
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            async with self._changing:
                run = self._next_run()
                # Opened anew only when a session begins: until then nobody may be told what is on the disk, and each
                # try costs a recovery. Or when the copy is to be emptied: no session may ever begin with it again.
                if run and self._is_shut and isinstance(run[0].message, LastSessionInfo | EmptyCopy):
                    await self._open()
                if run:
                    await self._obey(run)
            self._resume_paused()

    def _resume_paused(self) -> None:
        """Read the paused connections again, once the queue is half empty: not at the first byte of room."""
        if self._paused and self._queue_bytes <= self._settings.queue_bytes_max // 2:
            for connection in self._paused:
                connection.resume(self._pause_reason)
            self._paused.clear()

    @property
    def _is_shut(self) -> bool:
        """Whether the files have to be opened anew, or are being cut or read again."""
        return self.unavailable is not None or (self._log is not None and self._log.broken is not None)

    @property
    def fault(self) -> PolonaiseError | None:
        """Why the files have to be opened anew; else None."""
        # While a cut is under way, its log is broken only in case that it is cut short.
        if self.unavailable is not None or self._log is None or self._changing.locked():
            return self.unavailable
        return self._log.broken

    @property
    def loss(self) -> DamageFound | None:
        """The damage by which acknowledged batches of this copy were lost; None once it has been filled again."""
        if self._log is None or not self._log.slot.promises.may_have_lost:
            return None
        return self._damage

    async def _open(self) -> None:
        """Open the files, for the first time or again: the cause of the trouble may have passed."""
        before, self._log, self._replica = self._log, None, None
        try:
            if before is not None:
                await before.close()
            log = await self._open_log()
        except PolonaiseError as error:
            _log.error("%s can't be used: %s", self._name, error, extra=self._fields)
            self.unavailable = error
            return
        if log.damage:
            _log.error("%s: %s", self._name, log.damage, extra=self._fields)
        self._log, self._replica = log, Replica(log.slot.promises, log.last, log.last_crc)
        self.unavailable = None

    def _next_run(self) -> list[_Entry]:
        """Take the next message out; if it is a `Store`, with all further ones of its connection right behind it.

        They become one write and one sync. The list is empty if the sender has disconnected meanwhile.
        """
        queue = self._queue
        run = [queue.popleft()] if queue else []
        if run and isinstance(run[0].message, Store):
            while queue and isinstance(queue[0].message, Store) and queue[0].connection is run[0].connection:
                run.append(queue.popleft())
        self._queue_bytes -= sum(entry.bytes for entry in run)
        return run

    # ------------------------------------------------------------------ obeying

    async def _obey(self, run: Sequence[_Entry]) -> None:
        first = run[0]
        try:
            log, replica = self._usable()
            actions = self._decide(log, replica, run)
        except ProtocolError as error:
            # Not what a server sends: nothing else on this connection can be believed either.
            first.connection.turn_away(error)
            return
        except PolonaiseError as error:
            self._not_stored(first)
            self._refuse(first, Refuse(error))
            return
        for action in actions:
            try:
                await self._carry_out(log, replica, first, action)
            except PolonaiseError as error:
                # The loss is durable before anybody hears of it: after a crash the copy must not look whole.
                if isinstance(error, DamageFound):
                    await self._record_damage(log, replica, error)
                self._update_decisions(log, replica)
                self._not_stored(first)
                # The actions behind the failed one are left out, above all the acknowledgement. For a run of `Store`s
                # there is one answer, under the number of the last: to its sender any refusal ends the replica's part.
                self._refuse(first, Refuse(error, number=run[-1].request))
                return

    def _usable(self) -> tuple[PartitionLog, Replica]:
        if self.unavailable is not None:
            raise self.unavailable.with_traceback(None)  # shared by many messages, each of which would add to it
        if self._log is None or self._replica is None:
            raise fault("partition_unavailable", f"partition {self._partition} is being opened")
        # What is left in memory is no longer what is on the disk: it must not be told, nor joined with.
        self._log.check_whole()
        return self._log, self._replica

    def _decide(self, log: PartitionLog, replica: Replica, run: Sequence[_Entry]) -> list[Action]:
        first = run[0]
        message = first.message
        match message:
            case Store():
                return replica.store([_store_request(entry) for entry in run])
            case LastSessionInfo():
                return replica.fence(message.session)
            case Truncate():
                return replica.truncate(message.session, message.last)
            case CutForReset():
                return replica.cut_for_reset(message.session, message.last, message.since)
            case LowerMarks():
                return replica.lower_marks(message.session, message.last, message.since)
            case Copy():
                return replica.copy(message.session, _batches(message.payload))
            case Join():
                return replica.join(first.connection, message.session, message.prepared, message.last_crc)
            case Confirm():
                return replica.confirm(message.session, message.low_water_mark)
            case Trim():
                return replica.trim(message.session, message.before)
            case EmptyCopy():
                return replica.empty(message.session, _size(log))
        raise ProtocolError(f"unexpected message from a server: {type(message).__name__}")

    async def _carry_out(self, log: PartitionLog, replica: Replica, entry: _Entry, action: Action) -> None:
        """Carry out one action, to its end: what it makes durable is durable when this returns."""
        match action:
            case StoreBatches():
                began_s = self._host.clock.monotonic_s()
                await log.append(action.batches)
                self._syncs.observe(self._host.clock.monotonic_s() - began_s)
                self.written = True
                self._count(action.batches)
            case Save():
                await log.slot.save(action.promises)
            case Cut():
                await log.cut(action.last)
            case DropBelow():
                await log.trim(action.before)
                self._answer(entry, Trimmed(log.first, not log.may_trim(action.before)))
            case TellSession():
                self._answer(entry, _session_info(log))
            case TellEnd():
                self._answer(entry, Done(log.last, log.last_crc))
            case TellEmptied():
                self._answer(entry, CopyEmptied(max(0, action.bytes - _size(log))))
            case Acknowledge():
                stored = Stored(action.session, log.last)
                entry.connection.send(stored, request=action.number, partition=self._partition)
            case Refuse():
                self._refuse(entry, action)
        self._update_decisions(log, replica)

    def _count(self, batches: Sequence[Batch]) -> None:
        counts = self.counts
        counts["batches"] += len(batches)
        counts["transactions"] += batches[-1].last - batches[0].first + 1
        counts["bytes"] += sum(batch.length for batch in batches)
        counts["syncs"] += 1

    def _update_decisions(self, log: PartitionLog, replica: Replica) -> None:
        """Tell `replica`, which decides, what is durable by now."""
        replica.promises, replica.last, replica.last_crc = log.slot.promises, log.last, log.last_crc

    def _not_stored(self, entry: _Entry) -> None:
        """End a connection's part in the session after a `Store` of it failed: nothing more may be acknowledged."""
        if isinstance(entry.message, Store) and self._replica is not None:
            self._replica.store_failed(entry.connection)

    def _answer(self, entry: _Entry, message: Message) -> None:
        entry.connection.send(message, request=entry.request, partition=self._partition)

    def _refuse(self, entry: _Entry, refuse: Refuse) -> None:
        self.counts["refused"] += 1
        self._no_room.note(refuse.error)
        number = refuse.number or entry.request
        entry.connection.refuse(refuse.error, request=number, partition=self._partition, detail=refuse.detail)

    # ------------------------------------------------------------------ reading

    async def answer(self, connection: Connection, read: ReplicaRead, request: int) -> None:
        """Answer a read beside the queue. What is told was verified, and damage is recorded before it is told."""
        try:
            # A connection that is not read would only gather answers in memory.
            await connection.wait_writable()
            log, replica = self._usable()
            _check_session(replica, read)
            answer = await self._noting_damage(log, replica, self._read(log, read))
            # Again: meanwhile a later session may have fenced this one and cut what was read.
            _check_session(replica, read)
            await connection.wait_writable()
            connection.send(answer, request=request, partition=self._partition)
        except PolonaiseError as error:
            connection.refuse(error, request=request, partition=self._partition, detail=self._detail(error))

    async def scrub(self, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
        """Verify a part of the log, as `verify_part`. Damage is recorded before `DamageFound` is raised."""
        await self._opened.wait()
        log, replica = self._usable()
        return await self._noting_damage(log, replica, verify_part(log, first, bytes_max))

    async def _noting_damage(self, log: PartitionLog, replica: Replica, reading: Awaitable[T]) -> T:
        """Await `reading`; record damage that it meets, unless the log was opened anew meanwhile."""
        try:
            return await reading
        except DamageFound as error:
            async with self._changing:
                if log is self._log:
                    await self._record_damage(log, replica, error)
            raise

    async def _read(self, log: PartitionLog, read: ReplicaRead) -> Message:
        match read:
            case ReadBatches():
                bytes_max = min(read.bytes_max, self._settings.read_bytes_max)
                batches = await log.read(read.first, read.last, bytes_max, read.after_time_us, read.part_last)
                payload = [batch.view if read.with_data else batch.without_data() for batch in batches]
                return Batches(read.last, payload)
            case GetRegisters():
                return RegistersAre(log.last, log.registers_snapshot())
            case Digest():
                return DigestIs(read.last, *await digest(log, read.first, read.last))
            case FindBatch():
                found = await log.read(read.transaction, log.last, bytes_max=1)
                return (
                    BatchFound(found[0].first, found[0].last) if found else BatchFound(NO_TRANSACTION, NO_TRANSACTION)
                )

    def _detail(self, error: PolonaiseError) -> int:
        """Return the session obeyed for `Fenced`, the first id held for `HistoryTrimmed`, else 0."""
        if isinstance(error, HistoryTrimmed):
            return error.first
        return self._replica.promises.fence if isinstance(error, Fenced) and self._replica is not None else 0

    async def _record_damage(self, log: PartitionLog, replica: Replica, damage: DamageFound) -> None:
        """Record damage, unless it says nothing about the log as it is: it was cut, or recorded before."""
        if damage.cuts == log.slot.cuts and damage.last_good < log.last:
            await self._record_loss(log, replica, damage)

    async def _record_loss(self, log: PartitionLog, replica: Replica, damage: DamageFound) -> None:
        """Record durably that nothing above the last good id is believed, then tell the owner of the session."""
        _log.error("%s: %s", self._name, damage, extra=self._fields)
        self._damage = damage
        try:
            await log.lose_above(damage.last_good, str(damage))
        except PolonaiseError as error:
            self.unavailable = error
        self._update_decisions(log, replica)
        if (loss := replica.lost(damage)) is not None:
            # Under no number, as no message is refused: to its owner any refusal ends the replica's part.
            cast(Connection, loss.connection).refuse(loss.error, partition=self._partition)


def _check_session(replica: Replica, read: ReplicaRead) -> None:
    """Raise the refusal if the replica does not obey the session of this read; an operator's is of none."""
    refusal = None if isinstance(read, FindBatch) else replica.refusal(read.session)
    if refusal is not None:
        raise refusal.error


def _session_info(log: PartitionLog) -> SessionInfo:
    """Return everything that this copy can prove, all of it durable."""
    promises = log.slot.promises
    return SessionInfo(
        fence=promises.fence,
        joined=promises.joined,
        prepared=promises.prepared,
        confirmed=promises.confirmed,
        max_synced=log.last,
        last_crc=log.last_crc,
        lost_above=promises.lost_above,
    )


def _size(log: PartitionLog) -> int:
    return sum(segment.end for segment in log.segments)


def _payload_bytes(message: Message) -> int:
    if isinstance(message, Store | Copy):
        return sum(len(part) for part in message.payload)
    return 0


def _store_request(entry: _Entry) -> StoreRequest:
    message = entry.message
    assert isinstance(message, Store)
    return StoreRequest(entry.connection, message.session, entry.request, _batches(message.payload))


def _batches(payload: Payload) -> Sequence[Batch]:
    """Return the batches of a message, each checked against its CRC: what arrives damaged is never written."""
    return split(payload[0]) if payload else ()
