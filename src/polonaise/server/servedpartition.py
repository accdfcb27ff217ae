"""The shell of one owned partition: it brings `PartitionOwner` events, carries out the effects, and starts sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeAlias, cast

from polonaise.errors import (
    BatchDamaged,
    BeyondLog,
    ConsistencyLost,
    DeadlineExceeded,
    FragmentsAhead,
    InsufficientReplicas,
    InvariantViolated,
    NotOwner,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
)
from polonaise.link.connection import Connection
from polonaise.log.batch import Batch
from polonaise.server.catchup import CatchUp
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.effects import (
    Answer,
    AwaitRoom,
    AwaitTurn,
    ConfirmClean,
    CutOff,
    Effect,
    EffectQueue,
    EndSession,
    FeedBatch,
    MarkMoved,
    ReadHistory,
    RefuseRequest,
    Replicate,
    TellFailures,
)
from polonaise.server.protocol.givingup import Struggle
from polonaise.server.protocol.mounts import ClientMount, Committed
from polonaise.server.protocol.order import INLINE_BYTES_MAX, check_bodies, check_frame
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.ownerhealth import stand_still_until_us
from polonaise.server.protocol.recovery import participants
from polonaise.server.protocol.session import StartedSession
from polonaise.server.sessionstart import SessionStart
from polonaise.server.sharedparts import SharedParts
from polonaise.terms import FailureReason, Generation, PartitionId, StorageId
from polonaise.wire.appends import ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.copies import ProveCopies
from polonaise.wire.leases import HoldLeases, ReleaseLeases
from polonaise.wire.messages import (
    Append,
    AppendsFailed,
    Confirm,
    Credit,
    Feed,
    Flush,
    GetRegister,
    HighWaterMark,
    ListRegisters,
    Mount,
    Store,
    Unmount,
)

ClientEffect: TypeAlias = FeedBatch | TellFailures | Answer | RefuseRequest | CutOff


def receive(
    owner: PartitionOwner,
    connection: Connection,
    message: Message,
    request: int,
    now: Moment,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> list[Effect]:
    """Bring the owner a client's message, and return the effects; raises the `PolonaiseError` to refuse it with."""
    client_id = connection.peer.node
    match message:
        case Append():
            # Size, structure, sums: each check makes the next one affordable.
            check_frame(message.count, len(message.columns) + sum(map(len, message.payload)))
            appends = ReceivedAppends(message)
            check_bodies(appends, inline_bytes_max)
            return owner.append(client_id, connection, message.generation, appends, now)
        case Credit():
            return owner.credit(client_id, connection, message.bytes)
        case Flush():
            return owner.flush(client_id, connection, request, now)
        case Mount():
            return owner.mount(client_id, connection, request, message, now)
        case Unmount():
            return owner.unmount(client_id, connection)
        case HighWaterMark():
            return owner.ask_mark(connection, request, now)
        case ProveCopies():
            return owner.prove_copies(connection, request, message, now)
        case HoldLeases() | ReleaseLeases():
            return owner.ask_leases(connection, request, message, now)
        case GetRegister() | ListRegisters():
            return owner.ask_registers(connection, request, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is not a message that a client sends")


def send(effect: ClientEffect, partition: PartitionId, generation: Generation) -> None:
    """Carry out an effect that concerns one client: send it a message, or close its connection."""
    match effect:
        case FeedBatch(mount, committed, payload, shared):
            connection_of(mount).send(Feed(committed, payload=[payload]), partition=partition, shared=shared)
        case TellFailures(mount, failures):
            message = AppendsFailed(generation, encode_failures(failures))
            connection_of(mount).send(message, partition=partition)
        case Answer():
            connection_of(effect).send(effect.message, request=effect.request, partition=partition)
        case RefuseRequest():
            connection_of(effect).refuse(effect.error, request=effect.request, partition=partition)
        case CutOff():
            connection_of(effect).close(effect.error)


def connection_of(holder: ClientMount | Answer | RefuseRequest | CutOff) -> Connection:
    """Return the connection of a mount or an effect, which the owner knows only as a value to compare."""
    return cast(Connection, holder.connection)


_log = logging.getLogger(__name__)

_HISTORY_READS_MAX = 8
"""The most lagging mounts of one partition for which history is read at the same time: it is held in memory."""

_FAILED: Final = tuple((reason, f"failed_{reason.name.lower()}") for reason in FailureReason)


class ServedPartition:
    """Starts sessions, brings every event to a `PartitionOwner`, and carries out the effects in order.

    It decides nothing.
    """

    def __init__(self, shared: SharedParts, partition: PartitionId, generation: Generation) -> None:
        self._shared = shared
        self._host = shared.host
        self._links = shared.links
        self._settings = shared.settings
        self._busy = shared.ticks.busy
        self.partition = partition
        self.generation = generation
        self.owner = PartitionOwner(partition, generation, shared.settings, shared.latencies, shared.changes)
        self.failures_told = [0] * (max(FailureReason) + 1)
        """How many clients were told of, by the number of the reason."""
        self.reader = PartitionReader(self.owner, shared.links, shared.settings, shared.history, self._on_damage)
        self._engaged: Mapping[StorageId, Connection] = {}
        self._ends: asyncio.Queue[str] = asyncio.Queue()
        """Why the session has ended, for each that was run."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._history_reads = asyncio.Semaphore(_HISTORY_READS_MAX)
        self._readmitted_s = -1e9
        self._catching_up: asyncio.Task[None] | None = None
        self._carry_out = EffectQueue(self._carry_out_one)
        self._logged = ""
        self._sessions = self._host.spawn(self._keep_sessions(), f"sessions of partition {partition}")

    # ------------------------------------------------------------------ life

    def close(self, error: PolonaiseError) -> None:
        """End the ownership, and tell clients the error. The next owner decides the fate of appends in flight."""
        self._sessions.cancel()
        for task in list(self._tasks):
            task.cancel()
        for link in self._links.values():
            link.unlisten(self.partition, self)
        self._carry_out(self.owner.stop(error, self._now))

    async def confirm(self) -> None:
        """Have the engaged replicas note the committed high-water mark, for readers of a single replica's files.

        Waits for their answers at most `farewell_s_max` seconds, and promises nothing: one that is away keeps its older
        mark.
        """
        session, mark = self.owner.session, self.owner.committed
        if session is None or mark <= session.closing:
            return
        asked = [
            connection.request(
                Confirm(session.id, mark), partition=self.partition, deadline_s=self._settings.farewell_s_max
            )
            for connection in self._engaged.values()
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, PolonaiseError):
                raise answer

    def totals(self) -> dict[str, int]:
        """Return what was counted since the ownership began, by name: sums of these go on when it ends.

        Beside the owner's counts, `failed_` and the name of a reason counts the failed appends that clients were told
        of.
        """
        owner = self.owner
        return {
            **owner.counts,
            "faults": owner.readiness.faults.total,
            "cache_hits": owner.cache.hits,
            "cache_misses": owner.cache.misses,
            **{name: self.failures_told[reason] for reason, name in _FAILED},
        }

    def tick(self) -> None:
        self._carry_out(self.owner.tick(self._now))
        # Each tick has to be asked for anew, so that a partition at rest costs nothing.
        if not self.owner.at_rest:
            self._busy(self.partition)

    @property
    def struggle(self) -> Struggle | None:
        """How the partition fails or has failed; None if it never has."""
        owner = self.owner
        faults = owner.readiness.faults.total
        fails = owner.session is None and owner.readiness.elsewhere and owner.stopped is None
        return Struggle(fails, faults) if fails or faults else None

    @property
    def times_stand_still(self) -> bool:
        """Whether commit times stand still, because a clock was ahead."""
        return stand_still_until_us(self.owner, self._now) is not None

    @property
    def _now(self) -> Moment:
        return self._shared.clock.now()

    async def _keep_sessions(self) -> None:
        """Start one session after the other, with growing pauses after failures, until the ownership ends.

        It ends with `close`, and when a later generation is seen or the partition must stop (`ConsistencyLost`).
        """
        pause_s = self._settings.retry_s_min
        first = True
        while True:
            try:
                start = SessionStart(
                    self._shared, partition=self.partition, generation=self.generation, first=first,
                    report=self._report, known=self.owner.known, answered=self.owner.readiness.replica_answered,
                    insufficient=self._on_insufficient,
                )  # fmt: skip
                async with self._shared.starts.turn(
                    self, wanted=self.owner.wanted, report=self.owner.readiness.attempt_waits
                ):
                    started = await start.run()
            except NotOwner as error:
                self.close(error)
                return
            except ConsistencyLost as error:
                _log.critical("partition %d stops: %s", self.partition, error, extra=self._fields)
                self.close(error)
                return
            except PolonaiseError as error:
                self._log_news(str(error))
                if isinstance(error, InsufficientReplicas):
                    self._on_insufficient(error.text)
                self._carry_out(self.owner.session_not_started(error, operator=isinstance(error, FragmentsAhead)))
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)
                continue
            pause_s, first = self._settings.retry_s_min, False
            reason = await self._run_session(started)
            self._log_news(f"session {started.value.session} ended: {reason}", session=started.value.session)

    def _report(self, waits_for: str, elsewhere: bool | None) -> None:
        self.owner.readiness.attempt_waits(waits_for, elsewhere)
        self._log_news(waits_for)

    @property
    def _fields(self) -> dict[str, int]:
        session = self.owner.session
        known = {"partition": self.partition, "generation": self.generation}
        return known if session is None else {**known, "session": session.id}

    def _log_news(self, news: str, **fields: int) -> None:
        if news != self._logged:
            self._logged = news
            _log.info("partition %d: %s", self.partition, news, extra={**self._fields, **fields})

    async def _run_session(self, started: StartedSession) -> str:
        self._engaged = cast(Mapping[StorageId, Connection], started.engaged)
        # Listening before the owner sends anything: an acknowledgement must not come before somebody hears it.
        for name in started.engaged:
            self._links[name].listen(self.partition, self)
        self._busy(self.partition)
        try:
            self._carry_out(self.owner.session_started(started, self._now))
            # Nobody was told of a connection that closed before the loop above listened to it. Looked at after the
            # session has started, because before that there is no session to be ended.
            for name, connection in self._engaged.items():
                if connection.closed is not None:
                    self.on_replica_failed(name, connection, connection.closed)
            self.follow_requirement()
            self._catch_up()
            return await self._ends.get()
        finally:
            self._stop_catching_up()

    def _catch_up(self) -> None:
        """Begin, or begin anew, to bring up to date what is not engaged in the present session."""
        self._stop_catching_up()
        session = self.owner.session
        if session is not None and len(session.engaged) < len(participants(session.value)):
            catching_up = CatchUp(self._shared, self.reader, session, self._readmit, self._readmitted_s)
            self._catching_up = self._host.spawn(catching_up.run(), f"catch-up of partition {self.partition}")

    def _stop_catching_up(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    @property
    def replicas(self) -> tuple[StorageId, ...]:
        """The storage nodes of the members, and of copies being added; none between sessions."""
        session = self.owner.session
        return () if session is None else participants(session.value)

    @property
    def members_change(self) -> bool:
        """Whether the present session knows of a pending change of the members."""
        return self.owner.session is not None and self.owner.session.value.next is not None

    async def look(self) -> bool:
        """Look whether an operator has asked for other members, and act upon it; return whether the value was read.

        Between two sessions it is not: the next start reads it anyway. Raises what the coordinator raises.
        """
        session = self.owner.session
        if session is None:
            return False
        value = (await self._shared.coordinator.partition(self.partition)).value
        # Read for another session: its start has seen the pending change, or the next look will.
        if self.owner.session is not session or value.session != session.id:
            return True
        if value.next != session.value.next:
            asked = "no other members any more" if value.next is None else f"the members {', '.join(value.next)}"
            self._log_news(f"an operator asks for {asked}")
            self._carry_out(self.owner.change_pending(value.next, self._now))
            if self.owner.session is session:
                self._catch_up()
        return True

    def follow_requirement(self) -> None:
        """End the session if it acts by another requirement, or other zones, than were read by now."""
        session, required = self.owner.session, self._shared.requirements.of(self.partition)
        if session is not None and session.value.required != required:
            self._carry_out(self.owner.end_session("commits need other copies or zones now", self._now))
        elif session is not None and session.zones != self._shared.requirements.zones:
            self._carry_out(self.owner.end_session("storage nodes are in other zones now", self._now))

    def _on_insufficient(self, why: str) -> None:
        self._carry_out(self.owner.replicas_lacking(why))

    def _readmit(self, name: StorageId) -> None:
        self._readmitted_s = self._host.clock.monotonic_s()
        self._carry_out(self.owner.end_session(f"{name} has caught up", self._now))

    def _on_damage(self, reason: str) -> None:
        """End the session because a replica can't read what it holds: the next one repairs it."""
        self._carry_out(self.owner.end_session(reason, self._now, fault=True))

    # ------------------------------------------------------------------ events

    def receive(self, connection: Connection, message: Message, request: int) -> None:
        """Bring the owner a client's message; raises the `PolonaiseError` to refuse it with."""
        self._busy(self.partition)
        self._carry_out(receive(self.owner, connection, message, request, self._now, self._settings.inline_bytes_max))

    def disconnected(self, connection: Connection) -> None:
        self._carry_out(self.owner.unmount(connection.peer.node, connection))

    def on_stored(self, name: StorageId, connection: Connection, session: int, number: int) -> None:
        self._carry_out(self.owner.stored(name, connection, session, number, self._now))

    def on_replica_failed(self, name: StorageId, connection: Connection, error: PolonaiseError) -> None:
        self._busy(self.partition)
        self._carry_out(self.owner.replica_failed(name, connection, error, self._now))

    # ------------------------------------------------------------------ effects

    def _carry_out_one(self, effect: Effect) -> None:
        """Carry out one effect. Nothing waits: what takes time gets a task, and comes back as an event."""
        match effect:
            case Replicate():
                self._replicate(effect)
            case MarkMoved():
                self.reader.moved.wake()
            case AwaitTurn():
                asyncio.get_running_loop().call_soon(self._turn)
            case AwaitRoom(mount):
                self._spawn(self._wait_for_room(mount), f"feed of client {mount.client_id}")
            case ReadHistory(mount):
                self._spawn(self._read_history_for(effect), f"history for client {mount.client_id}")
            case ConfirmClean(session, closing):
                for connection in self._engaged.values():
                    connection.send(Confirm(session, closing), partition=self.partition)
            case EndSession():
                self._end_session(effect)
            case TellFailures(_, failures):
                for failure in failures:
                    self.failures_told[failure.reason] += 1
                send(effect, self.partition, self.generation)
            case _:
                send(effect, self.partition, self.generation)

    def _replicate(self, effect: Replicate) -> None:
        payload = () if effect.batch is None else (effect.batch.raw,)
        message = Store(effect.session, effect.committed, payload=payload)
        frame = message.frame(request=effect.number, partition=self.partition)
        for connection in self._engaged.values():
            connection.send_frame(frame)

    def _end_session(self, effect: EndSession) -> None:
        """Let `_run_session` return; close the connections of late replicas, which may be alive and hang."""
        self._busy(self.partition)
        for name in effect.late:
            self._engaged[name].abort(DeadlineExceeded(effect.reason))
        self._ends.put_nowait(effect.reason)

    def _turn(self) -> None:
        try:
            self._carry_out(self.owner.turn(self._now))
        except InvariantViolated as error:
            self._host.fail(error)  # a callback of the loop: nobody else would
            raise

    async def _wait_for_room(self, mount: ClientMount) -> None:
        try:
            await connection_of(mount).wait_writable()
        except PolonaiseError:
            return  # its connection is gone, and with it the mount
        self._carry_out(self.owner.room(mount))

    async def _read_history_for(self, effect: ReadHistory) -> None:
        """Read history for a lagging mount, and hand it to the owner once its connection takes more."""
        mount = effect.mount
        batches: list[Committed] = []
        try:
            async with self._history_reads:
                if not self.owner.feeds.is_current(mount):
                    return  # it has gone while others were read for: the disks may be slow
                raw = await self.reader.read_history(effect.first, self.owner.committed, self._settings.copy_bytes)
            batches = self._parsed(raw)
        except (PartitionNotReady, BeyondLog):
            pass  # without batches the owner asks again, after the pause below
        except PolonaiseError as error:
            _log.warning(
                "partition %d: client %d can't be fed: %s", self.partition, mount.client_id, error, extra=self._fields
            )
            self._carry_out(self.owner.history_failed(mount, error))
            return
        if not batches:
            await asyncio.sleep(self._settings.retry_s_min)
        # After the read, so that several mounts are read for while others wait for their clients.
        try:
            await connection_of(mount).wait_writable()
        except PolonaiseError:
            return
        self._carry_out(self.owner.history_read(mount, batches))

    def _parsed(self, raw: memoryview) -> list[Committed]:
        batches: list[Committed] = []
        offset = 0
        while offset < len(raw):
            try:
                batch = Batch.parse(raw, offset)
            except BatchDamaged as error:
                # It can only be a replica's: batches from fragments have just been made again, with their own CRCs.
                _log.warning(
                    "partition %d: a replica sent a damaged batch: %s", self.partition, error, extra=self._fields
                )
                break
            offset += batch.length
            batches.append(Committed(batch.first, batch.last, bytes(batch.view)))
        return batches

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._host.spawn(work, name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
