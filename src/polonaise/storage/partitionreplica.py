"""One partition on a storage node: one task that obeys the replica's decisions, one message after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from polonaise.errors import (
    Closed,
    Fenced,
    HistoryTrimmed,
    InvariantViolated,
    PartitionUnavailable,
    PolonaiseError,
    ProtocolError,
)
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.log.batch import Batch, split
from polonaise.log.digest import digest
from polonaise.log.partitionlog import PartitionLog
from polonaise.log.segment import DamageFound
from polonaise.log.segmentscrub import look
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
    TellEnd,
    TellSession,
)
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire.codec import Message, Payload
from polonaise.wire.messages import (
    Batches,
    Confirm,
    Copy,
    Digest,
    DigestIs,
    Done,
    GetRegisters,
    Join,
    LastSessionInfo,
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
"""What a message that waits takes in memory beside its payload, generously."""

ReplicaRead: TypeAlias = ReadBatches | GetRegisters | Digest
"""What is answered beside the queue."""


class _Entry(NamedTuple):
    """A message that waits its turn."""

    connection: Connection
    message: Message
    request: int
    bytes: int


class PartitionReplica:
    """A partition's replica on this node.

    Messages that change something, and those that must be ordered with them, go through one queue; requests about
    what is held are answered beside it. `open_log` is called by the task itself, so that messages wait in order while
    the files are recovered.
    """

    def __init__(
        self,
        host: Host,
        partition: PartitionId,
        settings: StorageSettings,
        open_log: Callable[[], Awaitable[PartitionLog]],
    ) -> None:
        self._host = host
        self._partition = partition
        self._settings = settings
        self._name = f"partition {partition} in {settings.directory}"
        """For the log: several nodes may be in one process."""
        self._open_log = open_log
        self._queue: deque[_Entry] = deque()
        self._queue_bytes = 0
        self._paused: dict[Connection, None] = {}
        self._arrived = asyncio.Event()
        self._opened = asyncio.Event()
        """Opening the files has been tried."""
        self._log: PartitionLog | None = None
        self._replica: Replica | None = None
        self._changing = asyncio.Lock()
        """Held by whoever changes the log: the queue's task, or a read that has met damage."""
        self.unavailable: PolonaiseError | None = None
        """Why the files can't be used; None while they can."""
        self.written = False
        """Since its files were looked for last."""
        self.counts = {"batches": 0, "syncs": 0, "refused": 0}
        self._task = host.spawn(self._run(), f"partition {partition}")

    @property
    def whole(self) -> bool:
        """Whether it is open and, as far as is known, lacks nothing that it ever acknowledged."""
        log = self._log
        if log is None or self._is_shut:
            return False
        return not (log.slot.promises.may_have_lost or log.slot.promises.untrusted)

    async def close(self, gone: PolonaiseError | None = None) -> None:
        """Stop taking messages and close the files. What was acknowledged is durable already.

        With `gone` its directory is not its own any more: nothing is written there.
        """
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with self._changing:
            log, self._log = self._log, None
            self.unavailable = gone or Closed("this storage node is stopping")
            if log is not None:
                log.broken = log.broken or gone
                await log.close()

    async def check_in_place(self) -> None:
        """Record a loss if the file that is written was removed; it is noticed by nobody else. Raises what a disk does.

        Not while the log is opened: then its files are looked for in any case.
        """
        self.written = False
        async with self._changing:
            log, replica = self._log, self._replica
            if log is None or replica is None or self._is_shut:
                return
            try:
                await log.check_tail_in_place()
            except DamageFound as error:
                await self._record(log, error)
                self._keep_true(log, replica)

    # ------------------------------------------------------------------ the queue

    def take(self, connection: Connection, message: Message, request: int) -> None:
        """Put a message into the queue; a connection that fills it is not read until there is room again."""
        size = _ENTRY_BYTES + _payload_bytes(message)
        self._queue.append(_Entry(connection, message, request, size))
        self._queue_bytes += size
        self._arrived.set()
        if self._queue_bytes > self._settings.queue_bytes_max:
            connection.pause(self._pause_reason)
            self._paused[connection] = None

    def disconnected(self, connection: Connection) -> None:
        """Forget what it said and was not heard yet: only an answer proves, and there is nobody to be answered."""
        self._paused.pop(connection, None)
        kept = [entry for entry in self._queue if entry.connection is not connection]
        if len(kept) < len(self._queue):
            self._queue = deque(kept)
            self._queue_bytes = sum(entry.bytes for entry in kept)
            self._let_in()
        if self._replica is not None:
            self._replica.disconnected(connection)

    @property
    def _pause_reason(self) -> str:
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
                if run and self._is_shut and isinstance(run[0].message, LastSessionInfo):
                    await self._open()
                if run:
                    await self._obey(run)
            self._let_in()

    def _let_in(self) -> None:
        """Read again from those who filled the queue, once there is room."""
        if self._paused and self._queue_bytes <= self._settings.queue_bytes_max // 2:
            for connection in self._paused:
                connection.resume(self._pause_reason)
            self._paused.clear()

    @property
    def _is_shut(self) -> bool:
        return self.unavailable is not None or (self._log is not None and self._log.broken is not None)

    async def _open(self) -> None:
        """Open the files: at first, and when a session begins after they could not be used: that may have passed."""
        before, self._log, self._replica = self._log, None, None
        try:
            if before is not None:
                await before.close()
            log = await self._open_log()
        except InvariantViolated:
            raise
        except PolonaiseError as error:
            _log.error("%s can't be used: %s", self._name, error)
            self.unavailable = error
            return
        if log.damage:
            _log.error("%s: %s", self._name, log.damage)
        self._log, self._replica = log, Replica(log.slot.promises, log.last, log.last_crc)
        self.unavailable = None

    def _next_run(self) -> list[_Entry]:
        """The next message; with it, if it is a `Store`, all those of its connection that follow at once.

        Nothing when whoever sent what was there has gone meanwhile.
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
            actions = self._decide(replica, run)
        except ProtocolError as error:
            first.connection.refuse(error)
            first.connection.close(error)
            return
        except InvariantViolated:
            raise
        except PolonaiseError as error:
            self._not_stored(first)
            self._refuse(first, Refuse(error))
            return
        for action in actions:
            try:
                await self._carry_out(log, replica, first, action)
            except InvariantViolated:
                raise
            except PolonaiseError as error:
                if isinstance(error, DamageFound):
                    await self._record(log, error)
                self._keep_true(log, replica)
                self._not_stored(first)
                # A failed `Store` is answered under its own number: whoever sent it counts by these.
                self._refuse(first, Refuse(error, number=run[-1].request))
                return

    def _usable(self) -> tuple[PartitionLog, Replica]:
        if self.unavailable is not None:
            raise self.unavailable.with_traceback(None)  # one error for many messages: it would grow with each
        if self._log is None or self._replica is None:
            raise PartitionUnavailable(f"partition {self._partition} is being opened")
        if self._log.broken is not None:
            # What is left in memory is no longer what is on the disk: it must not be told, nor joined with.
            raise PartitionUnavailable(f"the log has to be opened anew after: {self._log.broken.text}")
        return self._log, self._replica

    def _decide(self, replica: Replica, run: Sequence[_Entry]) -> list[Action]:
        first = run[0]
        message = first.message
        match message:
            case Store():
                return replica.store([_store_request(entry) for entry in run])
            case LastSessionInfo():
                return replica.last_session_info(message.session)
            case Truncate():
                return replica.truncate(message.session, message.last)
            case Copy():
                return replica.copy(message.session, _batches(message.payload))
            case Join():
                return replica.join(first.connection, message.session, message.prepared, message.last_crc)
            case Confirm():
                return replica.confirm(message.session, message.low_water_mark)
            case Trim():
                return replica.trim(message.session, message.before)
        raise ProtocolError(f"{type(message).__name__} is nothing that a server says")

    async def _carry_out(self, log: PartitionLog, replica: Replica, entry: _Entry, action: Action) -> None:
        match action:
            case StoreBatches():
                await log.append(action.batches)
                self.written = True
                self.counts["batches"] += len(action.batches)
                self.counts["syncs"] += 1
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
            case Acknowledge():
                stored = Stored(action.session, log.last)
                entry.connection.send(stored, request=action.number, partition=self._partition)
            case Refuse():
                self._refuse(entry, action)
        self._keep_true(log, replica)

    def _keep_true(self, log: PartitionLog, replica: Replica) -> None:
        replica.promises, replica.last, replica.last_crc = log.slot.promises, log.last, log.last_crc

    def _not_stored(self, entry: _Entry) -> None:
        """After a `Store` that failed nothing of its connection may be acknowledged in the session."""
        if isinstance(entry.message, Store) and self._replica is not None:
            self._replica.store_failed(entry.connection)

    def _answer(self, entry: _Entry, message: Message) -> None:
        entry.connection.send(message, request=entry.request, partition=self._partition)

    def _refuse(self, entry: _Entry, refuse: Refuse) -> None:
        self.counts["refused"] += 1
        number = refuse.number or entry.request
        entry.connection.refuse(refuse.error, request=number, partition=self._partition, detail=refuse.detail)

    # ------------------------------------------------------------------ reading

    async def answer(self, connection: Connection, read: ReplicaRead, request: int) -> None:
        """Answer beside the queue; what is told was verified, and damage is recorded before it is told."""
        try:
            await connection.wait_writable()
            log, replica = self._usable()
            _check_session(replica, read)
            answer = await self._noting_damage(log, replica, self._found(log, read))
            _check_session(replica, read)
            await connection.wait_writable()
            connection.send(answer, request=request, partition=self._partition)
        except InvariantViolated:
            raise
        except PolonaiseError as error:
            connection.refuse(error, request=request, partition=self._partition, detail=self._detail(error))

    async def scrub(self, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
        """Verify some of what is held from `first` on, as `log.scrub.look` does; damage is recorded before it is told.

        Raises `DamageFound`, and whatever keeps the files from being used.
        """
        await self._opened.wait()
        log, replica = self._usable()
        return await self._noting_damage(log, replica, look(log, first, bytes_max))

    async def _noting_damage(self, log: PartitionLog, replica: Replica, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except DamageFound as error:
            async with self._changing:
                if log is self._log:
                    await self._record(log, error)
                    self._keep_true(log, replica)
            raise

    async def _found(self, log: PartitionLog, read: ReplicaRead) -> Message:
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

    def _detail(self, error: PolonaiseError) -> int:
        """With `Fenced`: by which session; with `HistoryTrimmed`: what is held from."""
        if isinstance(error, HistoryTrimmed):
            return error.first
        return self._replica.promises.fence if isinstance(error, Fenced) and self._replica is not None else 0

    async def _record(self, log: PartitionLog, damage: DamageFound) -> None:
        """Bytes that were good once are not: nothing above them is believed from now on, also after a restart."""
        if damage.cuts != log.slot.cuts or damage.last_good >= log.last:
            return
        _log.error("%s: %s", self._name, damage)
        try:
            await log.lose_above(damage.last_good, str(damage))
        except InvariantViolated:
            raise
        except PolonaiseError as error:
            self.unavailable = error


def _check_session(replica: Replica, read: ReplicaRead) -> None:
    refused = replica.read(read.session)
    if refused is not None:
        raise refused.error


def _session_info(log: PartitionLog) -> SessionInfo:
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


def _payload_bytes(message: Message) -> int:
    if isinstance(message, Store | Copy):
        return sum(len(part) for part in message.payload)
    return 0


def _store_request(entry: _Entry) -> StoreRequest:
    message = entry.message
    assert isinstance(message, Store)
    return StoreRequest(entry.connection, message.session, entry.request, _batches(message.payload))


def _batches(payload: Payload) -> Sequence[Batch]:
    """The batches of a message, every CRC checked: what arrives damaged is never written."""
    return split(payload[0]) if payload else ()
