"""One partition that a server owns: carries out what its `PartitionOwner` decides, and starts its sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from polonaise.coordination import Coordinator
from polonaise.errors import (
    BatchDamaged,
    BeyondLog,
    ConsistencyLost,
    DeadlineExceeded,
    FragmentsAhead,
    InvariantViolated,
    NotOwner,
    PartitionNotReady,
    PolonaiseError,
)
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.log.batch import Batch
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.carrying import EffectQueue
from polonaise.server.catchup import CatchUp
from polonaise.server.clients import ClientMessages, receive
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.effects import (
    AwaitRoom,
    AwaitTurn,
    ConfirmClean,
    Effect,
    EndSession,
    MarkMoved,
    ReadHistory,
    Replicate,
)
from polonaise.server.protocol.feed import Committed
from polonaise.server.protocol.moment import Moment
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.session import StartedSession
from polonaise.server.replicas import StorageLink
from polonaise.server.sessionstart import SessionStart
from polonaise.server.settings import ServerSettings
from polonaise.server.starts import SessionStarts
from polonaise.terms import Generation, PartitionId, StorageId
from polonaise.wire.codec import Message
from polonaise.wire.messages import Confirm, Store

_log = logging.getLogger(__name__)

_HISTORY_READS_MAX = 8
"""Laggards of one partition that are read for at the same time: a flood of mounts must not hold a flood of history."""


class ServedPartition:
    """Brings its owner every event, and does what comes of it, in order. It decides nothing."""

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        links: Mapping[StorageId, StorageLink],
        settings: ServerSettings,
        partition: PartitionId,
        generation: Generation,
        starts: SessionStarts,
        busy: Callable[[PartitionId], None],
        history: ArchivedHistory | None = None,
    ) -> None:
        """`starts` gives it its turns to start a session; `busy` hears that something begins which has a deadline."""
        self._host = host
        self._coordinator = coordinator
        self._links = links
        self._settings = settings
        self.partition = partition
        self.generation = generation
        self.owner = PartitionOwner(partition, generation, settings)
        self.reader = PartitionReader(self.owner, links, settings, history, self._on_damage)
        self._starts = starts
        self._busy = busy
        self._history = history
        self._engaged: Mapping[StorageId, Connection] = {}
        self._ended: asyncio.Future[str] | None = None
        self._sessions: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._history_reads = asyncio.Semaphore(_HISTORY_READS_MAX)
        self._readmitted_s = -1e9
        self._carry_out = EffectQueue(lambda effect: self._carriers[type(effect)](effect))
        self._said = ""
        self._carriers: dict[type[Effect], Callable[[Any], None]] = {
            **ClientMessages(partition, generation).senders,
            Replicate: self._replicate,
            MarkMoved: self._mark_moved,
            AwaitTurn: self._await_turn,
            AwaitRoom: self._await_room,
            ReadHistory: self._read_history,
            ConfirmClean: self._confirm,
            EndSession: self._end_session,
        }

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start sessions, one after the other, until `close` or until a later generation is seen."""
        self._sessions = self._host.spawn(self._keep_sessions(), f"sessions of partition {self.partition}")

    def close(self, error: PolonaiseError) -> None:
        """End the ownership. Clients are told to look elsewhere; what is in flight is decided by the next owner."""
        if self._sessions is not None:
            self._sessions.cancel()
        for task in list(self._tasks):
            task.cancel()
        for link in self._links.values():
            link.unlisten(self.partition, self)
        self._carry_out(self.owner.stop(error, self._now))

    async def confirm(self) -> None:
        """Have the engaged replicas note up to where the log is committed, for whoever reads one of them by itself.

        It waits for all of them, with the deadline of a request to each. It promises nothing: one that is not there, or
        fails, knows what it knew before. An engaged replica holds the log of this session and, as it hears this after
        what was sent it before, all that is committed, so that the mark is as true as that of the session's beginning.
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

    def tick(self) -> None:
        """Tell the owner the time."""
        self._carry_out(self.owner.tick(self._now))
        if not self.owner.at_rest:
            self._busy(self.partition)

    @property
    def _now(self) -> Moment:
        clock = self._host.clock
        return Moment(clock.monotonic_s(), clock.wall_us())

    async def _keep_sessions(self) -> None:
        pause_s = self._settings.retry_s_min
        patient = True
        while True:
            try:
                start = SessionStart(
                    self._host, self._coordinator, self._links, self._settings,
                    partition=self.partition, generation=self.generation, patient=patient, report=self._report,
                    known=self.owner.known, history=self._history, compare=patient,
                )  # fmt: skip
                async with self._starts.turn(self, wanted=self.owner.wanted, waits=self.owner.readiness.attempt_waits):
                    started = await start.run()
            except NotOwner as error:
                self.close(error)
                return
            except ConsistencyLost as error:
                _log.critical("partition %d stops: %s", self.partition, error)
                self.close(error)
                return
            except (PolonaiseError, TimeoutError) as error:
                self._say(str(error))
                self._carry_out(self.owner.session_not_started(error, operator=isinstance(error, FragmentsAhead)))
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)
                continue
            pause_s, patient = self._settings.retry_s_min, False
            reason = await self._write(started)
            self._say(f"session {started.value.session} ended: {reason}")

    def _report(self, what: str) -> None:
        """An attempt to start a session waits for something."""
        self.owner.readiness.attempt_waits(what)
        self._say(what)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            _log.info("partition %d: %s", self.partition, what)

    async def _write(self, started: StartedSession) -> str:
        """Write until the session ends, and return why it did."""
        self._engaged = cast(Mapping[StorageId, Connection], started.engaged)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ended = ended
        for name in started.engaged:
            self._links[name].listen(self.partition, self)
        catch_up: asyncio.Task[None] | None = None
        self._busy(self.partition)
        try:
            self._carry_out(self.owner.session_started(started, self._now))
            for name, connection in self._engaged.items():
                if connection.closed is not None:  # before anybody listened
                    self.on_replica_failed(name, connection, connection.closed)
            session = self.owner.session
            if session is not None and len(session.engaged) < len(session.value.members):
                catching_up = CatchUp(
                    self._host, self._settings, self._links, self.owner, session, self._history, self._readmit,
                    self._readmitted_s, self._starts.catch_ups,
                )  # fmt: skip
                catch_up = self._host.spawn(catching_up.run(), f"catch-up of partition {self.partition}")
            return await ended
        finally:
            if catch_up is not None:
                catch_up.cancel()

    def _readmit(self, name: StorageId) -> None:
        """A replica has caught up: the next session takes it in."""
        self._readmitted_s = self._host.clock.monotonic_s()
        self._carry_out(self.owner.end_session(f"{name} has caught up", self._now))

    def _on_damage(self, reason: str) -> None:
        self._carry_out(self.owner.end_session(reason, self._now, fault=True))

    # ------------------------------------------------------------------ events

    def receive(self, connection: Connection, message: Message, request: int) -> None:
        """A client's message. Raises the `PolonaiseError` with which it is to be refused."""
        self._busy(self.partition)
        self._carry_out(receive(self.owner, connection, message, request, self._now, self._settings.inline_bytes_max))

    def disconnected(self, connection: Connection) -> None:
        """A client's connection has ended, and its mount with it."""
        if connection.peer is not None:
            self._carry_out(self.owner.unmount(connection.peer.node, connection))

    def on_stored(self, name: StorageId, connection: Connection, session: int, number: int) -> None:
        self._carry_out(self.owner.stored(name, connection, session, number, self._now))

    def on_replica_failed(self, name: StorageId, connection: Connection, error: PolonaiseError) -> None:
        self._busy(self.partition)
        self._carry_out(self.owner.replica_failed(name, connection, error, self._now))

    # ------------------------------------------------------------------ effects

    def _confirm(self, effect: ConfirmClean) -> None:
        for connection in self._engaged.values():
            connection.send(Confirm(effect.session, effect.closing), partition=self.partition)

    def _replicate(self, effect: Replicate) -> None:
        payload = () if effect.batch is None else (effect.batch.raw,)
        message = Store(effect.session, effect.committed, payload=payload)
        frame = message.frame(request=effect.number, partition=self.partition)
        for connection in self._engaged.values():
            connection.send_frame(frame)

    def _mark_moved(self, effect: MarkMoved) -> None:
        self.reader.mark_moved()

    def _end_session(self, effect: EndSession) -> None:
        self._busy(self.partition)
        for name in effect.late:
            self._engaged[name].abort(DeadlineExceeded(effect.reason))
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(effect.reason)

    def _await_turn(self, effect: AwaitTurn) -> None:
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._carry_out(self.owner.turn(self._now))
        except InvariantViolated as error:
            self._host.fail(error)
            raise

    def _await_room(self, effect: AwaitRoom) -> None:
        self._spawn(self._room(effect.mount), f"feed of client {effect.mount.client_id}")

    async def _room(self, mount: ClientMount) -> None:
        try:
            await _connection(mount).wait_writable()
        except PolonaiseError:
            return  # its connection is gone, and with it the mount
        self._carry_out(self.owner.room(mount))

    def _read_history(self, effect: ReadHistory) -> None:
        self._spawn(self._history_for(effect), f"history for client {effect.mount.client_id}")

    async def _history_for(self, effect: ReadHistory) -> None:
        mount = effect.mount
        batches: list[Committed] = []
        try:
            async with self._history_reads:
                raw = await self.reader.read_history(effect.first, self.owner.committed, self._settings.copy_bytes)
            batches = self._parsed(raw)
        except (PartitionNotReady, BeyondLog):
            pass  # it passes: asked for again
        except PolonaiseError as error:
            _log.warning("partition %d: client %d can't be fed: %s", self.partition, mount.client_id, error)
            self._carry_out(self.owner.history_failed(mount, error))
            return
        if not batches:
            await asyncio.sleep(self._settings.retry_s_min)
        try:
            await _connection(mount).wait_writable()
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
                _log.warning("partition %d: a damaged batch from a replica: %s", self.partition, error)
                break
            offset += batch.length
            batches.append(Committed(batch.first, batch.last, bytes(batch.view)))
        return batches

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._host.spawn(work, name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _connection(mount: ClientMount) -> Connection:
    return cast(Connection, mount.connection)
