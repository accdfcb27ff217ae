"""The owner of one partition: one session after the other, and between them nothing is lost.

What clients send goes through one inbox in order of arrival; what they are told comes only from commits and from
engaged sessions. See `docs/replication.md` for why.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from polonaise.coordination import Coordinator
from polonaise.errors import (
    ConsistencyLost,
    FragmentsAhead,
    InvariantViolated,
    NotOwner,
    Overloaded,
    PartitionNotReady,
    PolonaiseError,
)
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.server.catchup import CatchUp
from polonaise.server.feeding import Feeding
from polonaise.server.history import History
from polonaise.server.mounts import Mount
from polonaise.server.opening import Opened, Opening
from polonaise.server.protocol.feed import Committed
from polonaise.server.protocol.locks import LockTable
from polonaise.server.protocol.order import Order, Refusal, Sealed
from polonaise.server.protocol.recovery import Known
from polonaise.server.replicas import StorageLink
from polonaise.server.settings import ServerSettings
from polonaise.server.writing import Flight, Proved, Question, Writing
from polonaise.terms import NO_TRANSACTION, ClientId, FailureReason, Generation, PartitionId, StorageId, TransactionId
from polonaise.wire.appends import Failure, ReceivedAppends, encode_failures
from polonaise.wire.messages import AppendsFailed

_log = logging.getLogger(__name__)
_TICK_S = 0.25
_APPENDS_BYTES = 4_096
"""What a frame in the inbox takes beside its bytes, about."""
_INBOX_COUNT_MAX = 20_000
_HELD_MAX = 100_000
"""Refusals that wait for the fate of what they rest on; with more, nothing is judged."""


class _Appends(NamedTuple):
    """An append frame in the inbox."""

    mount: Mount
    appends: ReceivedAppends
    bytes: int
    until_s: float


class Owner:
    """Owns one partition under one generation, until `close` or until a later generation is seen."""

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        links: Mapping[StorageId, StorageLink],
        settings: ServerSettings,
        partition: PartitionId,
        generation: Generation,
        history: History | None = None,
    ) -> None:
        self._host = host
        self._coordinator = coordinator
        self._links = links
        self._settings = settings
        self.partition = partition
        self.generation = generation
        self.history = history
        """The fragments of the log; None in a server that was not told of any."""
        self._writing: Writing | None = None
        self.committed: TransactionId = NO_TRANSACTION
        """The committed high-water mark as far as this owner has ever proved it."""
        self.committed_registers: dict[bytes, bytes] = {}
        """The registers as they are at the committed high-water mark."""
        self._last_crc = 0
        self.waits_for = "its first session has not begun"
        """What keeps the partition from being ready; empty when it is."""
        self.stopped: PolonaiseError | None = None
        """Why it serves no more; None while it does."""
        self.refusal: FragmentsAhead | None = None
        """Why nothing is taken until an operator has acted; None while that is not needed."""
        self.faults = 0
        """How many sessions a fault has ended."""
        self.last_fault = ""
        """What ended the last of them."""
        self._inbox: deque[_Appends | Question] = deque()
        self._inbox_bytes = 0
        self._paused: dict[Connection, None] = {}
        self._held: deque[Refusal] = deque()
        self.mounts: dict[ClientId, Mount] = {}
        self.feeding = Feeding(host, settings, self)
        self._undecided: list[Sealed] = []
        self._questions: list[Question] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._readmitted_s = -1e9
        self.counts = {"void_appends": 0, "expired": 0, "sessions": 0, "refused": 0}

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        self._tasks = [
            self._host.spawn(self._run(), f"owner of partition {self.partition}"),
            self._host.spawn(self._tick(), f"tick of partition {self.partition}"),
        ]

    def close(self, error: PolonaiseError) -> None:
        """Own no more. Clients are told to look elsewhere; what is in flight is decided by the next owner."""
        if self.stopped is not None:
            return
        self.stopped = error
        self.waits_for = error.text
        for task in self._tasks:
            task.cancel()
        self._stop_writing()
        self.feeding.close()
        waiting = self._questions + [entry for entry in self._inbox if isinstance(entry, Question)]
        self._inbox.clear()
        self._questions = []
        for question in waiting:
            question.expired(error)
        for mount in list(self.mounts.values()):
            mount.connection.refuse(error, partition=self.partition)
        self.mounts.clear()
        for connection in self._paused:
            connection.resume(f"inbox of partition {self.partition}")

    async def _run(self) -> None:
        pause_s = self._settings.retry_s_min
        patient = True
        while True:
            try:
                opening = Opening(
                    self._host, self._coordinator, self._links, self._settings,
                    partition=self.partition, generation=self.generation, patient=patient, report=self._report_progress,
                    known=Known(self.committed, self._last_crc), history=self.history, compare=patient,
                )  # fmt: skip
                opened = await opening.run()
                self.refusal = None
            except NotOwner as error:
                self.close(error)
                return
            except ConsistencyLost as error:
                _log.critical("partition %d stops: %s", self.partition, error)
                self.close(error)
                return
            except (PolonaiseError, TimeoutError) as error:
                self._report(str(error))
                self._refuse_until_decided(error if isinstance(error, FragmentsAhead) else None)
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)
                continue
            pause_s, patient = self._settings.retry_s_min, False
            reason = await self._write(opened)
            self._report(f"session {opened.value.session} ended: {reason}")

    def _refuse_until_decided(self, error: FragmentsAhead | None) -> None:
        """Only an operator can help: who asks is told so, and who waits too."""
        self.refusal = error
        if error is None:
            return
        waiting = self._questions + [entry for entry in self._inbox if isinstance(entry, Question)]
        self._questions = []
        self._inbox = deque(entry for entry in self._inbox if not isinstance(entry, Question))
        for question in waiting:
            question.expired(error)

    def _report_progress(self, what: str) -> None:
        """What an attempt to open waits for; while an operator has to act, that stays the news."""
        if self.refusal is None:
            self._report(what)

    def _report(self, what: str) -> None:
        if what != self.waits_for:
            self.waits_for = what
            _log.info("partition %d: %s", self.partition, what)

    # ------------------------------------------------------------------ one session

    async def _write(self, opened: Opened) -> str:
        """Write until a fault ends the session; why it did."""
        order = Order(
            partition=self.partition,
            generation=self.generation,
            session=opened.value.session,
            closing=opened.closing,
            last_crc=opened.last_crc,
            commit_time_us=opened.commit_time_us,
            registers=opened.registers,
            locks=LockTable(opened.closing, self._settings.lock_entries),
            evidence=self._settings.evidence,
        )
        writing = Writing(
            self._host, self._settings, self.partition, opened.value, opened.engaged, order, opened.closing,
            on_committed=self._on_committed, on_room=self._pump,
        )  # fmt: skip
        self.counts["sessions"] += 1
        self._settle(opened)
        for name in opened.engaged:
            self._links[name].listen(self.partition, self)
        self._writing = writing
        self.waits_for = ""
        writing.start()
        catch_up = CatchUp(
            self._host, self._settings, self._links, self.partition, writing, self._readmitted_s, self.history
        )
        task = self._host.spawn(catch_up.run(), f"catch-up of partition {self.partition}")
        try:
            questions, self._questions = self._questions, []
            for question in questions:
                question.proved(self.committed)
            self._pump()
            reason = await writing.ended
            if not writing.planned_end:
                self.faults += 1
                self.last_fault = reason
            return reason
        finally:
            task.cancel()
            self._readmitted_s = catch_up.readmitted_s
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        writing.end("stopped", planned=True)
        for name in writing.engaged:
            self._links[name].unlisten(self.partition, self)
        batches, questions = writing.remains()
        self._undecided = batches
        self._questions += questions

    def _settle(self, opened: Opened) -> None:
        """Tell what became of the appends in flight: only here, after the engagement, is it certain."""
        undecided, self._undecided = self._undecided, []
        for batch in undecided:
            if batch.last < opened.closing or (batch.last == opened.closing and batch.crc == opened.last_crc):
                self._commit(batch)
            else:
                self._fail(batch)
        if self.committed != opened.closing:
            # Written before this owner's time: what the cache holds no longer reaches the end.
            self.feeding.cache.clear()
            self.committed = opened.closing
        self._last_crc = opened.last_crc
        self.committed_registers = dict(opened.registers)
        for refusal in self._held:
            if refusal.rests_on > opened.closing:
                refusal = refusal._replace(reason=FailureReason.SESSION_ENDED, value=opened.closing)
            self._tell(refusal.client_id, [Failure(refusal.sequence, refusal.value, refusal.reason)])
        self._held.clear()
        self.feeding.on_committed()

    def _fail(self, batch: Sealed) -> None:
        """An ordered batch that is not in the log and never will be."""
        columns = Batch(memoryview(batch.raw))
        failures: dict[ClientId, list[Failure]] = {}
        for client_id, sequence in zip(columns.client_ids.tolist(), columns.sequences.tolist(), strict=True):
            failures.setdefault(client_id, []).append(Failure(sequence, self.committed, FailureReason.SESSION_ENDED))
        for client_id, rows in failures.items():
            self._tell(client_id, rows)

    # ------------------------------------------------------------------ commits

    def _commit(self, batch: Sealed) -> None:
        self.committed = batch.last
        self._last_crc = batch.crc
        columns = Batch(memoryview(batch.raw))
        if columns.registers_bytes:
            registers.apply(self.committed_registers, columns.registers)
        self.feeding.commit(Committed(batch.first, batch.last, batch.raw))

    def _on_committed(self, flight: Flight) -> None:
        if flight.batch is not None:
            self._commit(flight.batch)
        held = self._held
        while held and held[0].rests_on <= self.committed:
            refusal = held.popleft()
            self._tell(refusal.client_id, [Failure(refusal.sequence, refusal.value, refusal.reason)])
        for question in flight.questions:
            question.proved(self.committed)
        writing = self._writing
        if writing and writing.committed - writing.closing >= self._settings.checkpoint_transactions:
            writing.end("checkpoint", planned=True)
        self._pump()

    def on_stored(self, name: StorageId, connection: Connection, session: int, number: int) -> None:
        if self._writing is not None and session == self._writing.session:
            self._writing.acknowledge(name, connection, number)

    def on_replica_failed(self, name: StorageId, connection: Connection, error: PolonaiseError) -> None:
        if self._writing is not None:
            self._writing.fail(name, connection, error)

    # ------------------------------------------------------------------ what clients send

    def mount_of(self, client_id: ClientId, connection: Connection) -> Mount | None:
        """The client's mount, if it is on this connection: messages of an older connection are void."""
        mount = self.mounts.get(client_id)
        return mount if mount is not None and mount.connection is connection else None

    def append(self, mount: Mount, appends: ReceivedAppends) -> None:
        """Order these, after everything that came before."""
        size = appends.size + _APPENDS_BYTES
        until_s = self._host.clock.monotonic_s() + self._settings.inbox_s_max
        self._inbox.append(_Appends(mount, appends, size, until_s))
        self._inbox_bytes += size
        self._pump()
        if self._inbox_bytes > self._settings.inbox_bytes_max:
            mount.connection.pause(self._pause_reason)
            self._paused[mount.connection] = None

    def ask(self, proved: Proved, expired: Callable[[PolonaiseError], None]) -> None:
        """Call `proved` with the committed mark once all that came before is decided; `expired` if that takes long."""
        if len(self._inbox) >= _INBOX_COUNT_MAX:
            expired(Overloaded(f"partition {self.partition} has {len(self._inbox)} requests waiting"))
            return
        wait_s = min(self._settings.question_s_max, self._settings.inbox_s_max)
        self._inbox.append(Question(proved, expired, self._host.clock.monotonic_s() + wait_s))
        self._pump()

    @property
    def _pause_reason(self) -> str:
        return f"inbox of partition {self.partition}"

    def _pump(self) -> None:
        """Judge what waits, in order, as long as there is a session and room in it."""
        inbox = self._inbox
        writing = self._writing
        while inbox and writing is not None and writing.open and writing.has_room and len(self._held) < _HELD_MAX:
            entry = inbox.popleft()
            if isinstance(entry, Question):
                writing.prove(entry)
                continue
            self._inbox_bytes -= entry.bytes
            self._judge(writing, entry)
        if writing is not None:
            writing.send_soon()
        if self._paused and self._inbox_bytes <= self._settings.inbox_bytes_max // 2:
            for connection in list(self._paused):
                connection.resume(self._pause_reason)
            self._paused.clear()

    def _judge(self, writing: Writing, entry: _Appends) -> None:
        mount = entry.mount
        if self.mounts.get(mount.client_id) is not mount:
            self.counts["void_appends"] += entry.appends.count
            return
        try:
            refusals = writing.order.judge(mount.client_id, entry.appends)
        except InvariantViolated as error:
            self._host.fail(error)
            raise
        except PolonaiseError as error:
            self.mounts.pop(mount.client_id, None)
            mount.connection.refuse(error)
            mount.connection.close(error)
            return
        if refusals:
            self.counts["refused"] += len(refusals)
            self._refuse(mount.client_id, refusals)

    def _refuse(self, client_id: ClientId, refusals: Sequence[Refusal]) -> None:
        """Tell now what rests on committed state; hold back what does not."""
        told = [r for r in refusals if r.rests_on <= self.committed]
        if told:
            self._tell(client_id, [Failure(r.sequence, r.value, r.reason) for r in told])
        if len(told) < len(refusals):
            for refusal in refusals:
                if refusal.rests_on > self.committed:
                    insort(self._held, refusal, key=lambda held: held.rests_on)

    def _tell(self, client_id: ClientId, failures: Sequence[Failure]) -> None:
        mount = self.mounts.get(client_id)
        if mount is not None:
            message = AppendsFailed(self.generation, encode_failures(failures))
            mount.connection.send(message, partition=self.partition)

    # ------------------------------------------------------------------ time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._writing is not None:
                self._writing.check()
            self._expire()

    def _expire(self) -> None:
        """Drop what has waited too long, and say so: questions wait less than appends, which all wait as long."""
        now = self._host.clock.monotonic_s()
        overdue = [question for question in self._questions if question.until_s < now]
        self._questions = [question for question in self._questions if question.until_s >= now]
        for question in overdue:
            question.expired(PartitionNotReady(f"partition {self.partition} is not ready: {self.waits_for}"))
        late = [entry for entry in self._inbox if entry.until_s < now]
        if late:
            self._inbox = deque(entry for entry in self._inbox if entry.until_s >= now)
        for entry in late:
            if isinstance(entry, Question):
                entry.expired(PartitionNotReady(f"partition {self.partition} is not ready: {self.waits_for}"))
                continue
            self._inbox_bytes -= entry.bytes
            self.counts["expired"] += entry.appends.count
            rows = [Failure(s, self.committed, FailureReason.DEADLINE) for s in entry.appends.sequences.tolist()]
            if self.mounts.get(entry.mount.client_id) is entry.mount:
                self._tell(entry.mount.client_id, rows)

    # ------------------------------------------------------------------ for its rooms

    @property
    def writing(self) -> Writing | None:
        """The session that is being written; None between sessions."""
        return self._writing if self._writing is not None and self._writing.open else None

    def link(self, name: StorageId) -> StorageLink:
        return self._links[name]
