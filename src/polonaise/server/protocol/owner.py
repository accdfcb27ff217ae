"""The owner of a partition as one state machine: events in, effects out, without clock, I/O or asyncio.

Clients' messages go through one inbox in the order of arrival. While there is a session, appends are judged against
everything ordered so far, and batches are sent to the replicas while the session's window is not full. A batch is
committed once a quorum of the members has synced it, and as many copies and zones as are required; only engaged
replicas count. Whatever a client is told of the log, or fed, rests on a commit, or on an engaged session:

* **nothing before it is committed**: a batch is fed when it is committed, and a request answered when the message to
  the replicas that proves it is, or when the next session starts;
* **refuse before feed**: a refusal that rests on an undecided append is held until that append is decided, and told
  before the batch with that append is fed. If the append goes with its session, the refusal says SESSION_ENDED; if it
  was never sent, both are judged anew in the next session;
* **feed before answer**: the answer to a mount or a flush is kept until the mount was fed everything up to its mark;
* **nothing before it is engaged**: the fate of the appends of an ended session is told when the next session starts.

When each of these happens is decided in this file alone; `effects` says in which order the effects of one event are
carried out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from polonaise.errors import Overloaded, PartitionNotReady, PolonaiseError
from polonaise.histogram import Histogram
from polonaise.log.batch import Batch
from polonaise.server.protocol import headreset
from polonaise.server.protocol.answers import Answers
from polonaise.server.protocol.commitclock import Moment
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
from polonaise.server.protocol.feeds import Feeds, TailCache
from polonaise.server.protocol.inbox import (
    PULSE,
    Inbox,
    PendingFlush,
    PendingLeases,
    PendingMark,
    PendingMount,
    PendingRegisters,
    PendingRequest,
    WaitingAppends,
)
from polonaise.server.protocol.leasetable import LeaseTable, checked_leases
from polonaise.server.protocol.mounts import ClientMount, Committed, Flow
from polonaise.server.protocol.order import HeldRefusals, Order, Refusal, SealedBatch
from polonaise.server.protocol.readiness import Readiness, ReadinessChanges
from polonaise.server.protocol.recovery import Known, takes_next
from polonaise.server.protocol.session import REQUESTS_MAX, CopyProofs, PendingProof, Session, StartedSession
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import (
    NO_SESSION,
    NO_TRANSACTION,
    ClientId,
    FailureReason,
    Generation,
    OwnKind,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
)
from polonaise.wire.appends import ReceivedAppends
from polonaise.wire.copies import Needs, ProveCopies
from polonaise.wire.leases import HoldLeases, ReleaseLeases
from polonaise.wire.messages import Mount as MountRequest
from polonaise.wire.messages import Mounted


class OwnerCounts(dict[str, int]):
    """Counts by name, from the beginning of the ownership; raised once for a whole batch or frame. No decision rests on
    them.

    They are counts of appends unless they say otherwise.

    - `sessions`: sessions started. `committed_batches`, `committed_transactions`, `committed_bytes`: what this owner
      committed, in bytes of batches.
    - `refused`: appends judged and refused. `conflicts`: those of them refused because of a lock.
      `conflicts_before_session`: those conflicts that rest on nothing ordered in the session, but on how little is
      known of the locks from before it. `conflicts_by_table`: others, judged while the locks shared places in the
      table. Of these two kinds some may be false; all other conflicts are certain.
    - `expired`: appends that waited in the inbox past their deadline. `void_appends`: those that came without a mount
      on their connection, or whose mount had ended when they were to be judged.
    """

    def __init__(self, latencies: Histogram | None = None) -> None:
        super().__init__(
            void_appends=0,
            expired=0,
            sessions=0,
            refused=0,
            conflicts=0,
            conflicts_before_session=0,
            conflicts_by_table=0,
            committed_batches=0,
            committed_transactions=0,
            committed_bytes=0,
        )
        self._latencies = latencies or Histogram()
        self._received_s: list[float] = []

    def add(self, name: str, count: int = 1) -> None:
        self[name] += count

    def committed(self, batch: SealedBatch) -> None:
        self["committed_batches"] += 1
        self["committed_transactions"] += batch.last - batch.first + 1
        self["committed_bytes"] += len(batch.raw)
        self._received_s.append(batch.received_s)

    def measure(self, now_s: float) -> None:
        """Observe how long each batch committed since the last call took, from the receipt of its oldest append."""
        for received_s in self._received_s:
            self._latencies.observe(now_s - received_s)
        self._received_s.clear()

    def judged(self, refusals: Sequence[Refusal], order: Order, closing: TransactionId) -> None:
        """Count the refusals of one frame; `closing` is the last id before the session."""
        self["refused"] += len(refusals)
        conflicts = [each.value for each in refusals if each.reason is FailureReason.LOCK_CONFLICT]
        self["conflicts"] += len(conflicts)
        self["conflicts_before_session"] += conflicts.count(closing)
        if not order.locks.exact:
            self["conflicts_by_table"] += len(conflicts) - conflicts.count(closing)


class PartitionOwner:
    """Owns one partition under one generation: decides what is let in, committed, fed and told.

    Every public method is an event, and returns the effects, which the caller carries out in their order. One that
    raises a `PolonaiseError` refuses the request, and has changed nothing.
    """

    def __init__(
        self,
        partition: PartitionId,
        generation: Generation,
        settings: OwnerSettings,
        latencies: Histogram | None = None,
        changes: ReadinessChanges | None = None,
    ) -> None:
        """`latencies` takes the time from append to commit of each batch, `changes` counts what happens to sessions."""
        self.partition: Final = partition
        self.generation: Final = generation
        self._settings = settings
        self.session: Session | None = None
        self.committed: TransactionId = NO_TRANSACTION
        """The last transaction that this owner has proved committed. Only a reset of the log's head lowers it."""
        self._last_crc = 0
        self._last_session: SessionId = NO_SESSION
        self.registers: Final = CommittedRegisters(settings.listing_count_max)
        self.cache = TailCache(settings.cache_bytes_max)
        self._out = EffectsInOrder()
        self.feeds: Final = Feeds(partition, generation, settings, self.cache)
        self.leases: Final = LeaseTable()
        self._answers = Answers(generation, settings, self.feeds, self.registers, self.leases)
        self._proofs = CopyProofs(partition)
        self.readiness: Final = Readiness(partition, changes)
        self.stopped: PolonaiseError | None = None
        """Why the ownership has ended; None while it lasts."""
        self._counts = OwnerCounts(latencies)
        self._inbox = Inbox(settings)
        self._held = HeldRefusals()
        self._undecided: list[SealedBatch] = []
        self._turn_awaited = False
        self._lacking = ""
        """What the replicas lack that commits need; empty if nothing is known to lack."""

    @property
    def proved(self) -> TransactionId | None:
        """The committed high-water mark; None before the first session has proved any."""
        return self.committed if self._counts["sessions"] else None

    @property
    def known(self) -> Known:
        """The last commit that this owner has seen: the next session start must not decide below it."""
        return Known(self.committed, self._last_crc, self._last_session)

    @property
    def wanted(self) -> bool:
        """Whether a client is mounted, or an append or a request waits in the inbox."""
        return bool(self.feeds.mounts or self._inbox)

    @property
    def waiting(self) -> tuple[int, int]:
        """The append frames and requests in the inbox: their number, and the bytes of the appends."""
        return len(self._inbox), self._inbox.bytes

    @property
    def counts(self) -> dict[str, int]:
        """A copy of what was counted so far: see `OwnerCounts`."""
        return dict(self._counts)

    @property
    def at_rest(self) -> bool:
        """Whether it needs `tick` for its pulse only: no deadline is running, and time brings no news for a mount."""
        if self._inbox or self._answers.unanswered or self._proofs:
            return False
        if self.session is None:
            # Mounts are told what keeps their appends once that has lasted for a while: a matter of time.
            return not self.feeds.mounts
        # A trouble that was told has to be taken back, and faults stop being lasting as time passes.
        return self.session.at_rest and not self.feeds.trouble

    # ------------------------------------------------------------------ sessions

    def session_started(self, started: StartedSession, now: Moment) -> list[Effect]:
        """Begin to write in an engaged session: settle the appends in flight, then go on with what waits."""
        self.session = Session(self.partition, self.generation, self._settings, started, now)
        # Without a session before, nobody can have granted a lease that is not known here.
        self.leases.begin(-inf if started.first else now.monotonic_s)
        reset = headreset.unrecorded(started.value, started.closing)
        was_reset = headreset.carried_out_since(started.value, self._last_session)
        self._last_session, self._lacking = self.session.id, ""
        self._counts.add("sessions")
        self.readiness.session_started(name for name in started.value.members if name not in started.engaged)
        self.readiness.change_pending(started.value)
        # Only now are the replicas told that `closing` is certain: before the engagement it might not have lasted.
        self._out.add(ConfirmClean(self.session.id, started.closing))
        # Fates first: the answers below say that everything up to `closing` is decided and fed, which has to be true
        # by then.
        if was_reset is not None:
            # Perhaps not by this session: the engagement that did may have been written without this owner's hearing.
            # Clients may have been fed what was given up, and appends in flight may be in the log or not. By their next
            # mounts they learn both: that they are ahead of the log, and which of their appends it holds.
            self._out.add(
                *self.feeds.end_all(PartitionNotReady(f"an operator has reset the head of its log to {was_reset.to}"))
            )
            self._undecided = []
        self._settle(started)
        if reset is not None:
            # Before anything that waits: the record of a reset is the first transaction after it.
            self.session.order.received(now.monotonic_s)
            self.session.order.write_own(self.session.id, OwnKind.RESET_HEAD, headreset.record(started.value, reset))
        # A request of the ended session needs no further barrier: a quorum was fenced for this session after the
        # request had come, which proves more than a barrier would.
        for pending in self._answers.take_unanswered():
            self._prove(pending, now)
        self._counts.measure(now.monotonic_s)
        # New appends last: they are judged against the locks and registers with which this session starts.
        self._pump(now)
        return self._out.taken()

    def session_not_started(self, error: PolonaiseError, *, operator: bool = False) -> list[Effect]:
        """Note that an attempt to start a session failed.

        If only an `operator` can help, requests that wait are refused with `error`; else they wait for the next
        attempt.
        """
        blocked = self.readiness.attempt_failed(error, operator=operator)
        if blocked is not None:
            self._out.add(*self._answers.expire(self._inbox, blocked, lambda request: True))
        return self._out.taken()

    def replicas_lacking(self, why: str) -> list[Effect]:
        """Refuse appends, those that wait included, until a session starts; `why` says what commits lack."""
        self._lacking = why
        for entry in self._inbox.take_late_appends(float("inf")):
            if self.feeds.is_current(entry.mount):
                self._out.add(
                    *self.feeds.refuse(entry.mount, entry.appends, self.committed, FailureReason.INSUFFICIENT_REPLICAS)
                )
        return self._out.taken()

    def change_pending(self, members: Sequence[StorageId] | None, now: Moment) -> list[Effect]:
        """Note the membership that an operator has asked for (None: none is pending any more).

        The session ends if the next one can make the change on the replicas that are engaged: an added copy has to be
        caught up with before.
        """
        session = self.session
        if session is not None:
            session.value = replace(session.value, next=None if members is None else tuple(members))
            self.readiness.change_pending(session.value)
            if takes_next(session.value, session.engaged):
                self._end_session("its members change", now)
        return self._out.taken()

    def end_session(self, reason: str, now: Moment, *, fault: bool = False) -> list[Effect]:
        """End the session, for other replicas or another requirement; `fault`: a replica has failed."""
        self._end_session(reason, now, fault=fault)
        return self._out.taken()

    def _end_session(self, reason: str, now: Moment, *, fault: bool = False, late: Sequence[StorageId] = ()) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        waiting_since_s = session.waiting_since_s(now.monotonic_s) if fault else None
        # Nothing is told here. A batch in flight may be on a quorum already, or on a single replica that the next
        # session believes: only the next decision makes it committed or lost, and its client learns which then.
        # One session's leftovers are settled before the next session can leave any, so `_undecided` is free.
        self._undecided, requests, never_sent = session.remains()
        self._answers.left_unanswered(requests)
        # The next session of this owner orders it, before what has come since: no append fails because a session ends
        # before the append was sent to anybody.
        self._held.drop_above(session.sent)
        self._inbox.put_back(never_sent)
        self._out.add(
            *self._proofs.end(PartitionNotReady(f"partition {self.partition}: session {session.id} has ended"))
        )
        reached = {name: session.reached(name) for name in session.engaged}
        self.readiness.session_ended(
            reason, now.monotonic_s, fault=fault, waiting_since_s=waiting_since_s, reached=reached
        )
        # A checkpoint, or a replica that comes back, is followed by a session at once: that is no news to clients.
        if fault:
            self._tell_trouble(self.readiness.faults.causes)
        self._out.add(EndSession(session.id, reason, late))

    def _settle(self, started: StartedSession) -> None:
        """Tell the fate of the appends in flight: only after the engagement is it certain."""
        closing = started.closing
        undecided, self._undecided = self._undecided, []
        for batch in undecided:
            # This owner alone has written since its last session began, so ids below `closing` are in the log as it
            # sent them. At `closing` the CRC has to agree as well: each batch carries the CRC of the one before it, so
            # this one comparison covers all earlier batches too.
            if batch.last < closing or (batch.last == closing and batch.crc == started.last_crc):
                self._commit(batch)
            else:
                self._out.add(*self.feeds.tell_lost(batch, self.committed))
        if self.committed != closing:
            # The ids up to `closing` are of an earlier owner. The cache must have no gap below the committed mark, so
            # it starts anew; mounts are fed these ids from the replicas.
            self.cache.clear()
            self.committed = closing
        self._last_crc = started.last_crc
        self.registers.replace(started.registers)
        # After the commits above, which have told the refusals that rest on them: the others rest on appends that are
        # gone. They must not be told as they are, for they would speak of a state that never was. The client builds its
        # append anew (docs/decisions/0007).
        told = []
        for refusal in self._held.take():
            if refusal.rests_on > closing:
                refusal = refusal._replace(reason=FailureReason.SESSION_ENDED, value=closing)
            told.append(refusal)
        self._out.add(*self.feeds.tell(told))
        self._out.add(MarkMoved(self.committed))
        self._feed_all()

    # ------------------------------------------------------------------ commits

    def stored(
        self, name: StorageId, connection: Hashable, session: SessionId, number: int, now: Moment
    ) -> list[Effect]:
        """Count a replica's acknowledgement: it has synced everything of the session up to this number."""
        current = self.session
        # An acknowledgement of an earlier session, or over another connection than the one on which the replica
        # joined, says nothing about the messages of this session: those in between may have been lost on the way.
        if current is None or session != current.id or not current.is_engaged(name, connection):
            return []
        committed = current.acknowledged(name, number, now.monotonic_s)
        # Before the commits, which may end the session: what it has proved by now is told.
        if self._proofs:
            self._out.add(*self._proofs.look(current, self.committed))
            if not committed:
                return self._out.taken()
        if not committed:
            return []
        for sent in committed:
            # The batch before the requests that it proves: their answers tell the mark with the batch in it.
            if sent.batch is not None:
                self._commit(sent.batch)
            for pending in sent.requests:
                self._prove(pending, now)
        self._counts.measure(now.monotonic_s)
        if self.committed - current.closing >= self._settings.checkpoint_transactions:
            self._end_session("checkpoint", now)
        # At once: the acknowledgement is what a full window waited for, and what has come meanwhile is a batch by now.
        self._pump(now, at_once=True)
        return self._out.taken()

    def _commit(self, batch: SealedBatch) -> None:
        """Note that a batch is committed: tell the refusals that rest on it, then feed it."""
        self.committed = batch.last
        self._last_crc = batch.crc
        self._counts.committed(batch)
        if self.readiness.faults.unsettled:
            # Only now: a session's start ends no trouble, as with full disks sessions start and fail.
            self.readiness.faults.committed()
            self._tell_trouble("")
        columns = Batch(memoryview(batch.raw))
        if columns.registers_bytes:
            self.registers.apply(columns.registers)
        # Into the cache before it is fed: feeding reads from there.
        self.cache.add(Committed(batch.first, batch.last, batch.raw))
        # What these refusals rest on is committed now, so they may be told. And they must be, before the batch is fed:
        # a client that is fed a younger append of its own takes an older one that it has heard nothing of for lost.
        self._out.add(*self.feeds.tell(self._held.take(batch.last)))
        self._out.add(MarkMoved(self.committed))
        self._feed_all()

    def replica_failed(self, name: StorageId, connection: Hashable, error: PolonaiseError, now: Moment) -> list[Effect]:
        """End the session as an engaged replica failed; between sessions, add to the causes that clients are told."""
        if self.session is not None and self.session.is_engaged(name, connection):
            # Even where a quorum is left: only a new session can record that this replica lacks what comes next.
            self.readiness.faults.blame([name], str(error), now.monotonic_s)
            self._end_session(f"{name}: {error}", now, fault=True)
        elif self.session is None and self.readiness.faults.unsettled:
            # The first fault has ended the session already. Clients are to learn of all nodes in trouble, not of one.
            self.readiness.faults.blame([name], str(error), now.monotonic_s)
            self._tell_trouble(self.readiness.faults.causes)
        return self._out.taken()

    def _tell_trouble(self, trouble: str) -> None:
        self._out.add(*self.feeds.tell_trouble(trouble, self.committed))

    # ------------------------------------------------------------------ appends

    def append(
        self, client_id: ClientId, connection: Hashable, generation: Generation, appends: ReceivedAppends, now: Moment
    ) -> list[Effect]:
        """Judge a client's appends after everything that came before; without a mount on its connection they are void.

        Refused at once are appends of another generation, those that would pass a bound of the inbox, and all while the
        replicas lack what commits need.
        """
        mount = self.feeds.mount_of(client_id, connection)
        if mount is None:
            # Void without a word: the client has left or mounted anew, and learns of these by its next READY.
            self._counts.add("void_appends", appends.count)
            return []
        if generation != self.generation:
            # The generation is part of a request id, and batches record this owner's. Ordered here, the append would be
            # in the log under a name that its client never gave it.
            self._out.add(*self.feeds.refuse(mount, appends, self.generation, FailureReason.GENERATION))
        elif self._lacking:
            self._out.add(*self.feeds.refuse(mount, appends, self.committed, FailureReason.INSUFFICIENT_REPLICAS))
        elif self._inbox.add(mount, appends, now.monotonic_s + self._settings.inbox_s_max):
            self._pump(now)
        else:
            # Refused, not left unread: the connection is shared by all partitions of this client.
            self._out.add(*self.feeds.refuse(mount, appends, self.committed, FailureReason.OVERLOADED))
        return self._out.taken()

    def turn(self, now: Moment) -> list[Effect]:
        """Send what arrived in the turn of the loop that is over now (after `AwaitTurn`)."""
        self._turn_awaited = False
        self._pump(now, at_once=True)
        return self._out.taken()

    def _pump(self, now: Moment, *, at_once: bool = False) -> None:
        """Judge what waits, in order; send what was let in while the session's window is not full.

        When nothing is on its way, or with `at_once`, a message goes out now. Otherwise it goes out at the end of this
        turn of the loop, so that what arrives together becomes one batch.
        """
        while (session := self.session) is not None:
            # Judged first, also while the window is full: refusals need no room in it, and what was let in is ready to
            # be sealed when there is some.
            self._judge_waiting(session)
            if not session.has_something_to_send or session.in_flight >= self._settings.window:
                return
            if session.in_flight and not at_once:
                # The disks are busy with what is on its way, so the rest of this turn costs no time, and larger
                # batches cost fewer syncs.
                if not self._turn_awaited:
                    self._turn_awaited = True
                    self._out.add(AwaitTurn())
                return
            if not session.has_numbers_left:
                self._end_session("all its message numbers are used", now)
                return
            sent = session.next_message(now)
            self._out.add(Replicate(session.id, sent.number, self.committed, sent.batch))
            # One message without waiting is enough: what is left over belongs to the end of the turn again.
            at_once = False

    def _judge_waiting(self, session: Session) -> None:
        """Judge the inbox in order of arrival, until the forming batch is full or a bound is reached."""
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
                self._judge(session, entry)
            else:
                session.prove(entry)

    def _judge(self, session: Session, entry: WaitingAppends) -> None:
        mount, order = entry.mount, session.order
        if not self.feeds.is_current(mount):
            # The client has left or mounted anew while these waited. What an older mount sent is void: by READY the
            # client takes everything for lost that it was not fed, and it may append it again.
            self._counts.add("void_appends", entry.appends.count)
            return
        order.received(entry.until_s - self._settings.inbox_s_max)
        try:
            refusals = order.judge(mount.client_id, entry.appends, self.committed)
        except PolonaiseError as error:
            # Nothing of the frame is ordered, and no failure reason says that a frame breaks the protocol. The
            # connection ends with the error instead; the next mount shows that these appends are not in the log.
            self._out.add(*self.feeds.end(mount, error))
            self._out.add(CutOff(mount.connection, error))
            return
        session.judged(entry, refusals)
        if refusals:
            self._counts.judged(refusals, order, session.closing)
        told = []
        for refusal in refusals:
            if refusal.rests_on <= self.committed:
                told.append(refusal)
            else:
                self._held.add(refusal)
        self._out.add(*self.feeds.tell(told))

    # ------------------------------------------------------------------ mounts

    def mount(
        self, client_id: ClientId, connection: Hashable, request: int, message: MountRequest, now: Moment
    ) -> list[Effect]:
        """Feed a client from its mark on, and tell it when it may append. Raises what `Feeds.subscribe` raises."""
        mount = self.feeds.subscribe(client_id, connection, message)
        # What is committed can be fed at once: that it is committed holds for ever, under any owner.
        self._feed(mount)
        # READY says more, that nothing of the client's older mounts is undecided. So it goes through the inbox, behind
        # their appends, and is proved by a message to the replicas.
        mark, until_s = message.client_high_water_mark, self._settings.asked_until_s(now.monotonic_s)
        self._ask(PendingMount(until_s, request, mount, mark), now)
        return self._out.taken()

    def unmount(self, client_id: ClientId, connection: Hashable) -> list[Effect]:
        mount = self.feeds.mount_of(client_id, connection)
        if mount is not None:
            self._out.add(*self.feeds.end(mount))
        return self._out.taken()

    def credit(self, client_id: ClientId, connection: Hashable, granted_bytes: int) -> list[Effect]:
        mount = self.feeds.mount_of(client_id, connection)
        if mount is not None and granted_bytes > 0:
            mount.credit += granted_bytes
            self._feed(mount)
        return self._out.taken()

    def room(self, mount: ClientMount) -> list[Effect]:
        """Go on feeding a mount (after `AwaitRoom`)."""
        if self.feeds.is_current(mount) and mount.flow is Flow.FULL:
            mount.flow = Flow.OPEN
            self._feed(mount)
        return self._out.taken()

    def history_read(self, mount: ClientMount, batches: Sequence[Committed]) -> list[Effect]:
        """Feed a mount the batches that were read for it (after `ReadHistory`)."""
        if not self.feeds.is_current(mount) or mount.flow is not Flow.READING:
            return []
        self._out.add(*self.feeds.feed_history(mount, batches, self.committed))
        self._feed(mount)
        return self._out.taken()

    def history_failed(self, mount: ClientMount, error: PolonaiseError) -> list[Effect]:
        """End a mount for which history can't be read (after `ReadHistory`)."""
        if self.feeds.is_current(mount):
            self._out.add(*self.feeds.end(mount, error))
        return self._out.taken()

    def _feed_all(self) -> None:
        for mount in list(self.feeds.mounts.values()):
            self._feed(mount)

    def _feed(self, mount: ClientMount) -> None:
        """Feed a mount what is committed, then send the answers whose marks it has reached."""
        self._out.add(*self.feeds.feed(mount, self.committed))
        for kept in mount.due_answers():
            self._out.add(Answer(mount.connection, kept.request, kept.message))
            if isinstance(kept.message, Mounted):
                self._out.add(*self.feeds.make_ready(mount, self.committed))

    # ------------------------------------------------------------------ requests

    def flush(self, client_id: ClientId, connection: Hashable, request: int, now: Moment) -> list[Effect]:
        """Answer once every earlier append of the mount is decided, and fed if it is committed.

        Raises as `Feeds.admit_flush`.
        """
        mount = self.feeds.admit_flush(client_id, connection)
        self._ask(PendingFlush(self._settings.asked_until_s(now.monotonic_s), request, mount), now)
        return self._out.taken()

    def ask_mark(self, connection: Hashable, request: int, now: Moment) -> list[Effect]:
        """Answer with the committed high-water mark, as proved by a message to the replicas, or a session, that begins
        from now on: a deposed owner can't prove one, and so never answers with a mark that was overtaken.
        """
        self._ask(PendingMark(self._settings.asked_until_s(now.monotonic_s), request, connection), now)
        return self._out.taken()

    def ask_registers(self, connection: Hashable, request: int, asked: AskedRegisters, now: Moment) -> list[Effect]:
        """Answer with a register, or a page of registers, proved like the mark of `ask_mark`.

        Raises as `CommittedRegisters.admit`.
        """
        self.registers.admit(asked)
        self._ask(PendingRegisters(self._settings.asked_until_s(now.monotonic_s), request, connection, asked), now)
        return self._out.taken()

    def ask_leases(
        self, connection: Hashable, request: int, asked: HoldLeases | ReleaseLeases, now: Moment
    ) -> list[Effect]:
        """Grant, renew, list or release leases, proved likewise. Raises as `checked_leases`."""
        until_s = self._settings.asked_until_s(now.monotonic_s)
        self._ask(PendingLeases(until_s, request, connection, checked_leases(asked)), now)
        return self._out.taken()

    def prove_copies(self, connection: Hashable, request: int, asked: ProveCopies, now: Moment) -> list[Effect]:
        """Answer once as many engaged replicas as asked for, in as many zones, have synced a committed transaction."""
        until_s, needs = self._settings.asked_until_s(now.monotonic_s), Needs(asked.copies, asked.zones)
        self._out.add(
            *self._proofs.ask(PendingProof(until_s, request, connection, asked.id, needs), self.session, self.committed)
        )
        return self._out.taken()

    def _ask(self, pending: PendingRequest, now: Moment) -> None:
        if self._inbox.ask(pending):
            self._pump(now)
        else:
            text = f"partition {self.partition} has {len(self._inbox)} requests waiting: ask again after a pause"
            self._out.add(*self._answers.refuse(pending, Overloaded(text)))

    def _prove(self, pending: PendingRequest, now: Moment) -> None:
        given = self._answers.give(pending, self.committed, now.monotonic_s)
        self._out.add(*given.effects)
        if given.mount is not None:
            self._feed(given.mount)

    # ------------------------------------------------------------------ time, and the end

    def tick(self, now: Moment) -> list[Effect]:
        """Check what comes with time: late replicas, a pulse, what waited too long, troubles to tell."""
        session, settings = self.session, self._settings
        if session is not None:
            late = session.late(now.monotonic_s, settings.acknowledge_s_max)
            if late:
                # Ended although a quorum may acknowledge all along. An engaged replica that is silent would be in doubt
                # at the next session start, and together with another one could block it; left out of a session, it
                # has a closing mark and is asked for nothing. And what it is sent piles up in memory.
                fault = f"did not sync within {settings.acknowledge_s_max:g} s"
                self.readiness.faults.blame(late, fault, now.monotonic_s)
                self._end_session(f"{', '.join(sorted(late))}: {fault}", now, fault=True, late=late)
            elif session.is_idle(now.monotonic_s, settings.pulse_s):
                # Not through the inbox: a pulse says nothing about appends, so it has none to stay behind.
                session.prove(PULSE)
                self._pump(now)
        self.readiness.slow(self.session.slow(now.monotonic_s, settings.acknowledge_s_max) if self.session else [])
        trouble = self.readiness.lasting_trouble(now.monotonic_s, writing=self.session is not None)
        if trouble is not None:
            self._tell_trouble(trouble)
        not_ready = self.readiness.not_ready(now.monotonic_s)
        self._out.add(*self._answers.expire(self._inbox, not_ready, lambda request: request.until_s < now.monotonic_s))
        self._out.add(*self._proofs.expire(now.monotonic_s))
        # Only appends that were never ordered have a deadline here. One that was ordered may be on a disk, and so can
        # no more be refused by time: its fate is a commit, or the end of its session.
        for entry in self._inbox.take_late_appends(now.monotonic_s):
            self._counts.add("expired", entry.appends.count)
            if self.feeds.is_current(entry.mount):
                self._out.add(*self.feeds.refuse(entry.mount, entry.appends, self.committed, FailureReason.DEADLINE))
        return self._out.taken()

    def stop(self, error: PolonaiseError, now: Moment) -> list[Effect]:
        """End the ownership, and tell clients the error. The next owner decides the fate of appends in flight."""
        if self.stopped is not None:
            return []
        self.stopped = error
        # The session first: it hands its unproved requests over, and they are refused below with the others.
        self._end_session(error.text, now)
        self.readiness.stopped(error.text)
        self._out.add(*self._answers.expire(self._inbox, error, lambda request: True))
        # Appends that were not ordered are dropped in silence, like those in flight: their clients mount at the next
        # owner, and what that one has not fed them by READY is not in the log.
        self._inbox.clear()
        self._out.add(*self.feeds.end_all(error))
        # The mark has not moved. This wakes the readers that wait for it, so that they find the owner stopped.
        self._out.add(MarkMoved(self.committed))
        return self._out.taken()
