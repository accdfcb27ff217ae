"""The owner of a partition as one machine: events in, effects out, without clock, I/O or asyncio.

What clients send goes through one inbox in the order of arrival. An append is judged when there is a session with room
in it, against everything ordered so far; what was let in is sent to the replicas, and committed once a quorum of them
has synced it. Nothing that a client is told or fed rests on anything less than a commit, or an engaged session:

* **nothing before it is committed**: batches are fed, and requests answered, when their message is committed;
* **refuse before feed**: a refusal that rests on an undecided append is held until that append is decided, and told
  before the batch with it is fed. One whose ground went with its session is told as that;
* **feed before answer**: an answer that speaks for a mark is kept until the mount was fed everything up to there;
* **nothing before it is engaged**: what became of the appends of an ended session is told when the next one starts.

When each of these happens is decided here alone. `effects` says in which order the effects of one event are carried
out, and why; the other files are asked: `order` judges, `heldrefusals` keeps what may not be told yet, `feeds` feeds
mounts up to the mark that it is given, `answers` says what a request is told, and `readiness` what keeps appends
waiting.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from polonaise.errors import InvariantViolated, Overloaded, PolonaiseError
from polonaise.log.batch import Batch
from polonaise.server.protocol.answers import Answers
from polonaise.server.protocol.committedregisters import AskedRegisters, CommittedRegisters
from polonaise.server.protocol.effects import (
    Answer,
    AwaitTurn,
    ConfirmClean,
    CutOff,
    Effect,
    EffectsInOrder,
    EndSession,
    MarkMoved,
    Replicate,
)
from polonaise.server.protocol.feed import Committed, TailCache
from polonaise.server.protocol.feeds import Feeds
from polonaise.server.protocol.heldrefusals import HeldRefusals
from polonaise.server.protocol.inbox import Inbox, WaitingAppends
from polonaise.server.protocol.moment import Moment
from polonaise.server.protocol.mounts import ClientMount, Flow
from polonaise.server.protocol.order import Order, SealedBatch
from polonaise.server.protocol.pendingrequests import (
    PULSE,
    PendingFlush,
    PendingMark,
    PendingMount,
    PendingRegisters,
    PendingRequest,
)
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.protocol.recovery import Known
from polonaise.server.protocol.session import REQUESTS_MAX, Session, StartedSession
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import (
    NO_TRANSACTION,
    ClientId,
    FailureReason,
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
)
from polonaise.wire.appends import ReceivedAppends
from polonaise.wire.messages import Mount as MountRequest
from polonaise.wire.messages import Mounted


class PartitionOwner:
    """Owns one partition under one generation: every decision about what is let in, committed, fed and told.

    Every method is an event, and returns what to do about it, in order; some raise a `PolonaiseError` for a request
    that is to be refused as it is, and then nothing has changed.
    """

    def __init__(self, partition: PartitionId, generation: Generation, settings: OwnerSettings) -> None:
        self.partition = partition
        self.generation = generation
        self._settings = settings
        self.session: Session | None = None
        """The session that is being written; None between sessions."""
        self.committed: TransactionId = NO_TRANSACTION
        """The committed high-water mark as far as this owner has ever proved it."""
        self._last_crc = 0
        self.registers = CommittedRegisters(settings.listing_count_max)
        self.cache = TailCache(settings.cache_bytes_max)
        self._out = EffectsInOrder()
        self.feeds = Feeds(partition, generation, settings, self.cache, self._out)
        self._answers = Answers(generation, settings, self.feeds, self.registers, self._out)
        self.readiness = Readiness(partition)
        self.stopped: PolonaiseError | None = None
        """Why it serves no more; None while it does."""
        self.counts = {"void_appends": 0, "expired": 0, "sessions": 0, "refused": 0}
        self._inbox = Inbox(settings)
        self._held = HeldRefusals()
        self._undecided: list[SealedBatch] = []
        self._turn_awaited = False

    @property
    def known(self) -> Known:
        """What this owner has itself seen committed."""
        return Known(self.committed, self._last_crc)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for what this owner commits or answers."""
        return bool(self.feeds.mounts or self._inbox)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way that has a deadline, or is to be told to a mount as time passes.

        Then it need not be told the time, but for its pulse.
        """
        if self._inbox or self._answers.unanswered:
            return False
        if self.session is None:
            return not self.feeds.mounts
        return self.session.at_rest and not self.feeds.hindrance

    # ------------------------------------------------------------------ sessions

    def session_started(self, started: StartedSession, now: Moment) -> list[Effect]:
        """A session was engaged: what became of the appends in flight is certain now, and told; more is judged."""
        self.session = Session(self.partition, self.generation, self._settings, started, now)
        self.counts["sessions"] += 1
        self.readiness.session_started(name for name in started.value.members if name not in started.engaged)
        self._out.send(ConfirmClean(self.session.id, started.closing))
        self._settle(started)
        for pending in self._answers.take_unanswered():
            self._prove(pending)
        self._pump(now)
        return self._out.taken()

    def session_not_started(self, error: Exception, *, operator: bool = False) -> list[Effect]:
        """An attempt to start a session failed; `operator`: only one can help, and whoever asks is told so."""
        blocked = self.readiness.attempt_failed(error, operator=operator)
        if blocked is not None:
            self._answers.expire(self._inbox, blocked, lambda request: True)
        return self._out.taken()

    def end_session(self, reason: str, now: Moment, *, fault: bool = False) -> list[Effect]:
        """End the session, so that the next one goes on with other replicas; `fault`: one of these has failed."""
        self._end_session(reason, now, fault=fault)
        return self._out.taken()

    def _end_session(self, reason: str, now: Moment, *, fault: bool = False, late: Sequence[StorageId] = ()) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        self._undecided, requests = session.remains(now.wall_us)
        self._answers.unanswered += requests
        self.readiness.session_ended(session.id, reason, now.monotonic_s, fault=fault)
        if fault:
            self._hinder(self.readiness.faults.causes)
        self._out.end(EndSession(session.id, reason, late))

    def _settle(self, started: StartedSession) -> None:
        """Tell what became of the appends in flight: only here, after the engagement, is it certain."""
        closing = started.closing
        undecided, self._undecided = self._undecided, []
        for batch in undecided:
            if batch.last < closing or (batch.last == closing and batch.crc == started.last_crc):
                self._commit(batch)
            else:
                self.feeds.tell_lost(batch, self.committed)
        if self.committed != closing:
            # Written before this owner's time: what the cache holds no longer reaches the end.
            self.cache.clear()
            self.committed = closing
        self._last_crc = started.last_crc
        self.registers.replace(started.registers)
        for refusal in self._held.take():
            if refusal.rests_on > closing:
                refusal = refusal._replace(reason=FailureReason.SESSION_ENDED, value=closing)
            self.feeds.tell(refusal)
        self._out.ask(MarkMoved(self.committed))
        self._feed_all()

    # ------------------------------------------------------------------ commits

    def stored(
        self, name: StorageId, connection: Hashable, session: SessionId, number: int, now: Moment
    ) -> list[Effect]:
        """A replica has synced everything of the session up to this number."""
        current = self.session
        if current is None or session != current.id or not current.is_engaged(name, connection):
            return []
        committed = current.acknowledged(name, number)
        if not committed:
            return []
        for sent in committed:
            if sent.batch is not None:
                self._commit(sent.batch)
            for pending in sent.requests:
                self._prove(pending)
        if self.committed - current.closing >= self._settings.checkpoint_transactions:
            self._end_session("checkpoint", now)
        self._pump(now, at_once=True)
        return self._out.taken()

    def _commit(self, batch: SealedBatch) -> None:
        """Note that a batch is committed: tell the refusals that rest on it, then feed it."""
        self.committed = batch.last
        self._last_crc = batch.crc
        if self.readiness.faults.since_commit:
            self.readiness.faults.committed()
            self._hinder("")
        columns = Batch(memoryview(batch.raw))
        if columns.registers_bytes:
            self.registers.apply(columns.registers)
        self.cache.add(Committed(batch.first, batch.last, batch.raw))
        for refusal in self._held.take(batch.last):
            self.feeds.tell(refusal)
        self._out.ask(MarkMoved(self.committed))
        self._feed_all()

    def replica_failed(self, name: StorageId, connection: Hashable, error: PolonaiseError, now: Moment) -> list[Effect]:
        """Any fault of an engaged replica ends the session; what others say after that is the same trouble."""
        if self.session is not None and self.session.is_engaged(name, connection):
            self.readiness.faults.blame([name], str(error), now.monotonic_s)
            self._end_session(f"{name}: {error}", now, fault=True)
        elif self.session is None and self.readiness.faults.since_commit:
            self.readiness.faults.blame([name], str(error), now.monotonic_s)
            self._hinder(self.readiness.faults.causes)
        return self._out.taken()

    def _hinder(self, what: str) -> None:
        self.feeds.hinder(what, self.committed)

    # ------------------------------------------------------------------ appends

    def append(
        self, client_id: ClientId, connection: Hashable, generation: Generation, appends: ReceivedAppends, now: Moment
    ) -> list[Effect]:
        """Order these, after everything that came before; on a connection without a mount they are void."""
        mount = self.feeds.mount_of(client_id, connection)
        if mount is None:
            self.counts["void_appends"] += appends.count
            return []
        if generation != self.generation:
            self.feeds.refuse(mount, appends, self.generation, FailureReason.GENERATION)
        elif self._inbox.add(mount, appends, now.monotonic_s + self._settings.inbox_s_max):
            self._pump(now)
        else:
            self.feeds.refuse(mount, appends, self.committed, FailureReason.OVERLOADED)
        return self._out.taken()

    def turn(self, now: Moment) -> list[Effect]:
        """The turn of the loop that was awaited is over: send what arrived in it."""
        self._turn_awaited = False
        self._pump(now, at_once=True)
        return self._out.taken()

    def _pump(self, now: Moment, *, at_once: bool = False) -> None:
        """Judge what waits, in order, as long as there is a session and room in it; send what was let in.

        At once while nothing is on its way, for then there is nothing to wait for. Otherwise at the end of this turn
        of the loop, so that what arrives together goes into one batch; and while the window is full, with the
        acknowledgement that makes room.
        """
        while (session := self.session) is not None:
            self._judge_waiting(session)
            if not session.has_something_to_send or session.in_flight >= self._settings.window:
                return
            if session.in_flight and not at_once:
                if not self._turn_awaited:
                    self._turn_awaited = True
                    self._out.ask(AwaitTurn())
                return
            if not session.has_numbers_left:
                self._end_session("all its numbers are used", now)
                return
            sent = session.next_message(now)
            self._out.send(Replicate(session.id, sent.number, self.committed, sent.batch))
            at_once = False

    def _judge_waiting(self, session: Session) -> None:
        inbox, settings, order = self._inbox, self._settings, session.order
        while (
            inbox
            and order.forming_count < settings.batch_count_max
            and order.forming_bytes < settings.batch_bytes_max
            and session.requests_waiting < REQUESTS_MAX
            and not self._held.is_full
        ):
            entry = inbox.take()
            if isinstance(entry, WaitingAppends):
                self._judge(order, entry)
            else:
                session.prove(entry)

    def _judge(self, order: Order, entry: WaitingAppends) -> None:
        mount = entry.mount
        if not self.feeds.is_current(mount):
            self.counts["void_appends"] += entry.appends.count
            return
        try:
            refusals = order.judge(mount.client_id, entry.appends, self.committed)
        except InvariantViolated:
            raise
        except PolonaiseError as error:
            self.feeds.end(mount, error)
            self._out.end(CutOff(mount.connection, error))
            return
        self.counts["refused"] += len(refusals)
        for refusal in refusals:
            if refusal.rests_on <= self.committed:
                self.feeds.tell(refusal)
            else:
                self._held.add(refusal)

    # ------------------------------------------------------------------ mounts

    def mount(
        self, client_id: ClientId, connection: Hashable, request: int, message: MountRequest, now: Moment
    ) -> list[Effect]:
        """Feed this client from its mark on, and tell it when it may append. Its older mount is void from now on.

        Raises `ProtocolError`, `Overloaded` or `NotOwner`.
        """
        mount = self.feeds.subscribe(client_id, connection, message)
        self._feed(mount)
        mark, until_s = message.client_high_water_mark, self._settings.asked_until_s(now.monotonic_s)
        self._ask(PendingMount(until_s, request, mount, mark), now)
        return self._out.taken()

    def unmount(self, client_id: ClientId, connection: Hashable) -> list[Effect]:
        """The client's mount on this connection ends, or the connection has ended."""
        mount = self.feeds.mount_of(client_id, connection)
        if mount is not None:
            self.feeds.end(mount)
        return self._out.taken()

    def credit(self, client_id: ClientId, connection: Hashable, granted_bytes: int) -> list[Effect]:
        """The client takes so many more bytes of feed."""
        mount = self.feeds.mount_of(client_id, connection)
        if mount is not None and granted_bytes > 0:
            mount.subscription.credit += granted_bytes
            self._feed(mount)
        return self._out.taken()

    def room(self, mount: ClientMount) -> list[Effect]:
        """A mount's connection has taken enough of what it was sent."""
        if self.feeds.is_current(mount) and mount.flow is Flow.FULL:
            mount.flow = Flow.OPEN
            self._feed(mount)
        return self._out.taken()

    def history_read(self, mount: ClientMount, batches: Sequence[Committed]) -> list[Effect]:
        """Batches were read for a mount. When none came that it gets next, they are asked for again."""
        if not self.feeds.is_current(mount) or mount.flow is not Flow.READING:
            return []
        self.feeds.feed_history(mount, batches, self.committed)
        self._feed(mount)
        return self._out.taken()

    def history_failed(self, mount: ClientMount, error: PolonaiseError) -> list[Effect]:
        """What this mount is to be fed next can't be had: the mount ends, and the client is told why."""
        if self.feeds.is_current(mount):
            self.feeds.end(mount, error)
        return self._out.taken()

    def _feed_all(self) -> None:
        for mount in list(self.feeds.mounts.values()):
            self._feed(mount)

    def _feed(self, mount: ClientMount) -> None:
        """Feed what is committed; then give the answers that speak for no more than what was fed."""
        self.feeds.feed(mount, self.committed)
        for kept in mount.due_answers():
            self._out.answer(Answer(mount.connection, kept.request, kept.message))
            if isinstance(kept.message, Mounted):
                self.feeds.make_ready(mount, self.committed)

    # ------------------------------------------------------------------ requests

    def flush(self, client_id: ClientId, connection: Hashable, request: int, now: Moment) -> list[Effect]:
        """Answer once every append before it is decided and fed. Raises `PartitionNotReady` or `Overloaded`."""
        mount = self.feeds.admit_flush(client_id, connection)
        self._ask(PendingFlush(self._settings.asked_until_s(now.monotonic_s), request, mount), now)
        return self._out.taken()

    def ask_mark(self, connection: Hashable, request: int, now: Moment) -> list[Effect]:
        """Answer with the committed high-water mark, proved from now on."""
        self._ask(PendingMark(self._settings.asked_until_s(now.monotonic_s), request, connection), now)
        return self._out.taken()

    def ask_registers(self, connection: Hashable, request: int, asked: AskedRegisters, now: Moment) -> list[Effect]:
        """Answer with a register, or a page of them, proved from now on. Raises `ProtocolError` or `Overloaded`."""
        self.registers.admit(asked)
        self._ask(PendingRegisters(self._settings.asked_until_s(now.monotonic_s), request, connection, asked), now)
        return self._out.taken()

    def _ask(self, pending: PendingRequest, now: Moment) -> None:
        if self._inbox.ask(pending):
            self._pump(now)
        else:
            self._answers.refuse(
                pending, Overloaded(f"partition {self.partition} has {len(self._inbox)} requests waiting")
            )

    def _prove(self, pending: PendingRequest) -> None:
        """Answer a request: everything that came before it is decided. Behind the feed, if it is a mount's."""
        mount = self._answers.give(pending, self.committed)
        if mount is not None:
            self._feed(mount)

    # ------------------------------------------------------------------ time, and the end

    def tick(self, now: Moment) -> list[Effect]:
        """Look whether every replica keeps up, an idle partition is alive, and nothing has waited too long."""
        session, settings = self.session, self._settings
        if session is not None:
            late = session.late(now.monotonic_s, settings.acknowledge_s_max)
            if late:
                what = f"did not sync within {settings.acknowledge_s_max:g} s"
                self.readiness.faults.blame(late, what, now.monotonic_s)
                self._end_session(f"{', '.join(late)}: {what}", now, fault=True, late=late)
            elif session.is_idle(now.monotonic_s, settings.pulse_s):
                session.prove(PULSE)
                self._pump(now)
        hindrance = self.readiness.lasting_hindrance(now.monotonic_s, writing=self.session is not None)
        if hindrance is not None:
            self._hinder(hindrance)
        not_ready = self.readiness.not_ready(now.monotonic_s)
        self._answers.expire(self._inbox, not_ready, lambda request: request.until_s < now.monotonic_s)
        for entry in self._inbox.take_late_appends(now.monotonic_s):
            self.counts["expired"] += entry.appends.count
            if self.feeds.is_current(entry.mount):
                self.feeds.refuse(entry.mount, entry.appends, self.committed, FailureReason.DEADLINE)
        return self._out.taken()

    def stop(self, error: PolonaiseError, now: Moment) -> list[Effect]:
        """End the ownership. Clients are told to look elsewhere; what is in flight is decided by the next owner."""
        if self.stopped is not None:
            return []
        self.stopped = error
        self._end_session(error.text, now)
        self.readiness.waits_for = error.text
        self._answers.expire(self._inbox, error, lambda request: True)
        self._inbox.clear()
        for mount in list(self.feeds.mounts.values()):
            self.feeds.end(mount, error)
        self._out.ask(MarkMoved(self.committed))  # whoever waits looks again, and finds that it was stopped
        return self._out.taken()
