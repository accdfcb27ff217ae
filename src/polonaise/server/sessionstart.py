"""One attempt to start a session: claim, fence, decide, clean, engage (`docs/replication.md`, steps 1 to 6).

`protocol.recovery` and `headreset` decide; this file carries that out. Nothing that an attempt learns leaves it before
the engagement is written, but for what health tells, and that appends are refused while commits lack copies or zones:
it returns a `StartedSession`, or raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from polonaise.coordination.values import HeadReset, PartitionValue, Versioned
from polonaise.errors import (
    ConnectionLost,
    ConsistencyLost,
    CoordinatorUnavailable,
    Fenced,
    FragmentMissing,
    HistoryTrimmed,
    InsufficientReplicas,
    LogForked,
    NotOwner,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    SegmentDamaged,
    fresh,
)
from polonaise.fragments.protocol.coverage import Span
from polonaise.link.connection import Connection
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.server.archivedhistory import ToCopy, check_not_ahead, copy_on, read_to_copy, required
from polonaise.server.coordinatortrouble import answered_within
from polonaise.server.protocol import headreset, recovery
from polonaise.server.protocol.headreset import CarryOut, Withheld
from polonaise.server.protocol.recovery import Contradiction, Decided, ReplicaAnswer, Undecided, gather_s, pace_s
from polonaise.server.protocol.session import StartedSession
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagelinks import expect
from polonaise.terms import (
    NO_SESSION,
    NO_TRANSACTION,
    UNRESOLVED,
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
)
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    MARKS_VERSION,
    Batches,
    CutForReset,
    Done,
    GetRegisters,
    Join,
    LastSessionInfo,
    LowerMarks,
    ReadBatches,
    RegistersAre,
    SessionInfo,
    Truncate,
)


def answer_of(info: SessionInfo) -> ReplicaAnswer:
    """Turn a replica's message into the answer that `recovery` decides by."""
    lost_above = None if info.lost_above == UNRESOLVED else info.lost_above
    return ReplicaAnswer(info.joined, info.prepared, info.confirmed, info.max_synced, info.last_crc, lost_above)


_LOOK_AGAIN_S: Final = 5.0
"""An attempt that waits looks at the coordinator again after this: an operator may have decided."""


def cut_of(
    session: SessionId, value: PartitionValue, answer: ReplicaAnswer, last: TransactionId, *, resetting: bool = False
) -> Truncate | CutForReset:
    """Return the message that cuts a replica at `last`; `resetting`: this session carries out a reset of the head."""
    since = headreset.cut_since(value, answer)
    return CutForReset(session, last, since) if resetting or since != NO_SESSION else Truncate(session, last)


class SessionStart:
    """One attempt to start a session."""

    def __init__(
        self,
        shared: SharedParts,
        *,
        partition: PartitionId,
        generation: Generation,
        known: recovery.Known,
        first: bool,
        report: Callable[[str, bool | None], None],
        answered: Callable[[StorageId, ReplicaAnswer, Connection], None],
        insufficient: Callable[[str], None],
    ) -> None:
        """`known` is the last commit that this owner has seen, and `first` says that it has had no session yet.

        `report` is called with what the attempt waits for, `answered` with what each replica proves, and on which
        connection, and `insufficient` when the replicas that commits need beside a quorum can't be had at present.
        """
        self._shared = shared
        self._host = shared.host
        self._coordinator = shared.coordinator
        self._settings = shared.settings
        self._partition = partition
        self._generation = generation
        self._known = known
        self._first = first
        self._report = report
        self._on_answer = answered
        self._on_insufficient = insufficient
        self._session: SessionId = 0
        self._version = 0
        self._carrying: HeadReset | None = None
        """The reset whose source, and not the replicas' own proof, has decided where the log ends."""
        self._certain: TransactionId = NO_TRANSACTION
        self._answers: dict[StorageId, ReplicaAnswer] = {}
        """Those that count: while replicas are fenced, an answer goes with the connection on which it came."""
        self._connections: dict[StorageId, Connection] = {}
        self._fenced: Fenced | None = None
        self._outdated: SessionId = NO_SESSION
        self._answered = asyncio.Event()
        """Set when a replica has answered, was reached, or is gone: `_until_decided` looks again."""
        self._fenced_s: dict[StorageId, float] = {}
        self._joined_s: dict[StorageId, float] = {}

    async def run(self) -> StartedSession:
        """Make the attempt, and return the session once it is engaged.

        Raises `NotOwner` when a later generation exists, and `ConsistencyLost` when the partition must stop. After any
        other `PolonaiseError` the caller makes another attempt: `FragmentsAhead` when an operator has to act.
        """
        # The number first: fencing with a number that another owner may have got as well would fence nobody out.
        claimed = await self._claim()
        async with self._coordinator_answers():
            required = await self._shared.requirements.for_session(self._partition, claimed.value)
        claimed = replace(claimed, value=replace(claimed.value, required=required))
        self._session, self._version = claimed.value.session, claimed.version
        try:
            decided = await self._fence_and_decide(claimed.value)
        except Fenced as error:
            await self._check_coordinator(error)
            raise
        except ConsistencyLost:
            if self._outdated != NO_SESSION:
                await self._mark_outdated(self._outdated)
                await self._coordinator.prove_older(self._partition, self._outdated)
            raise
        # Before any replica is cut, and while the partition can still stop without having given out an id twice. Once
        # is enough: later sessions rest on what this owner has seen committed, unless a reset of the head gives it up.
        history = self._shared.history
        if history is not None and (self._first or self._carrying is not None):
            self._report(f"waiting for the fragment store {history} to tell how far it reaches", True)
            held = None if self._carrying is None else self._answers[self._carrying.source].max_synced
            await check_not_ahead(history, self._partition, decided.closing, held)
        if self._carrying is not None:
            await self._check_fillable(claimed.value, decided)
            claimed = await self._begin_reset(claimed)
        # Told anew, as this takes long where disks are slow: what was out of reach a while ago may not be any more.
        waits_for = "its next session waits for replicas to have the whole log and join"
        self._report(waits_for, self._is_cut_off(recovery.participants(claimed.value)))
        clean = await self._clean(claimed.value, decided)
        # What the session starts from is read from clean replicas, so that it is of the log that was decided; and
        # before the engagement, so that no session is engaged that can't start.
        names = [name for name in recovery.participants(claimed.value) if name in clean]
        values = await self._registers(names, decided.closing)
        time_us = await self._commit_time_us(names, decided.closing)
        # Last, as the clocks of all replicas that take part were measured by now: each was asked for its time before it
        # was asked for anything else.
        self._shared.clock.check()
        value = recovery.engage(claimed.value, clean, decided.closing)
        reset = headreset.pending(claimed.value)
        confirmed = headreset.is_confirmed_at(reset, decided)
        value = headreset.engaged(value, clean, reset if confirmed else None, self._certain)
        # With the version of the claim: if another owner has claimed since, this fails, and the session never begins.
        await self._engage(value, claimed.version)
        # The connections on which the replicas were fenced and joined: a message on an older one may have been lost
        # without anybody noticing on a new one.
        engaged = {name: self._connections[name] for name in value.members if name in clean}
        zones = self._shared.requirements.zones
        pace = pace_s(self._joined_s.values(), recovery.quorum(value.members))
        first = recovery.is_first(claimed.value, self._answers)
        return StartedSession(value, decided.closing, decided.last_crc, time_us, values, engaged, zones, pace, first)

    @contextlib.asynccontextmanager
    async def _coordinator_answers(self) -> AsyncIterator[None]:
        """Raise `CoordinatorUnavailable` when the block takes longer than the coordinator has lately needed."""
        patience, began_s = self._shared.coordinator_patience, self._host.clock.monotonic_s()
        deadline_s = patience.seconds
        try:
            async with answered_within(deadline_s, self._coordinator):
                yield
        except CoordinatorUnavailable:
            if self._host.clock.monotonic_s() - began_s >= deadline_s:
                patience.exceeded(deadline_s, self._host.clock.monotonic_s())
            raise
        patience.answered(self._host.clock.monotonic_s() - began_s, self._host.clock.monotonic_s())

    # ------------------------------------------------------------------ 1 claim

    async def _claim(self) -> Versioned[PartitionValue]:
        """Take the next session number, unless a later generation owns the partition, or its value has changed."""
        async with self._coordinator_answers():
            current = await self._coordinator.partition(self._partition)
            if current.value.outdated != NO_SESSION:
                await self._coordinator.prove_older(self._partition, current.value.outdated)
                raise recovery.OlderStateProved(
                    f"partition {self._partition}: session {current.value.outdated} was given out before, and the "
                    f"coordinator's value is of an older state. {recovery.RESTORE_LATEST}"
                )
            claimed = recovery.claim(current.value, self._generation)
            if claimed is None:
                raise NotOwner(
                    f"partition {self._partition} has a later owner, of generation {current.value.generation}; "
                    f"this one has generation {self._generation}: read the assignment again"
                )
            written = await self._coordinator.set_partition(self._partition, claimed, current.version)
        if written is None:
            raise PartitionNotReady(
                "the partition's value was changed at the same time, by another owner or an operator"
            )
        return written

    async def _check_coordinator(self, fenced: Fenced) -> None:
        """After a newer fence: raise `OlderStateProved` unless a claim explains it; else two owners could get one
        session.
        """
        async with self._coordinator_answers():
            current = await self._coordinator.partition(self._partition)
        if current.value.session == self._session:
            await self._mark_outdated(self._session)
            await self._coordinator.prove_older(self._partition, self._session + 1)
            raise recovery.OlderStateProved(
                f"partition {self._partition}: a replica knows of a later session than the coordinator's "
                f"{self._session} ({fenced.text}): the coordinator was restored from an older state. "
                f"{recovery.RESTORE_LATEST}"
            )

    async def _mark_outdated(self, session: SessionId) -> None:
        """Write into the value that it is of an older state: after enough attempts, the session number alone would look
        right.
        """
        with contextlib.suppress(CoordinatorUnavailable):
            async with answered_within(self._settings.coordinator_s_max, self._coordinator):
                current = await self._coordinator.partition(self._partition)
                if current.value.session == self._session:
                    marked = replace(current.value, outdated=session)
                    await self._coordinator.set_partition(self._partition, marked, current.version)

    # ------------------------------------------------------------------ 2-4 fence, doubt, decide

    async def _fence_and_decide(self, value: PartitionValue) -> Decided:
        names = recovery.participants(value)
        # All at the same time: with one after the other, one node that is away would hold up all sessions.
        fencing = [self._host.spawn(self._fence(name), f"fence {name}") for name in names]
        try:
            await self._until_decided(value)
            await self._wait_for_more(value)
            # Decided again with the answers that came during the wait, because these replicas take part too: one of
            # them may hold more, or contradict. Only one that is gone can make it undecided again.
            outcome = await self._until_decided(value)
            while isinstance(outcome, CarryOut):
                held = self._answers[outcome.reset.source]
                decided = await self._decided_by(value, outcome.reset, held)
                # Once more, for the same reason: one that has answered meanwhile may prove the end of the log, or know
                # of more than the operator was shown, and would be cut. And the source may have come back as another.
                again = await self._until_decided(value)
                if again == outcome and self._answers[outcome.reset.source] is held:
                    return decided
                self._carrying, outcome = None, again
            self._certain = outcome.closing
            return outcome
        finally:
            for task in fencing:
                task.cancel()

    async def _decided_by(self, value: PartitionValue, reset: HeadReset, held: ReplicaAnswer) -> Decided:
        """Return an operator's decision, once the reset's source shows that a batch ends at its id."""
        if reset.to == NO_TRANSACTION:
            last_crc = 0
        else:
            # The batch that holds the id alone, wherever it ends.
            request = ReadBatches(self._session, reset.to, held.max_synced, 1, 1, 0)
            answer = expect(await self._ask(reset.source, request), Batches)
            if not answer.payload:
                raise PartitionNotReady(
                    f"{reset.source} sent no batch with {reset.to}, to which the head is to be reset"
                )
            batch = Batch.parse(answer.payload[0])
            if batch.last != reset.to:
                raise PartitionNotReady(headreset.no_batch_ends(reset, batch.first, batch.last))
            last_crc = batch.crc
        self._carrying = reset
        self._certain = headreset.certain_of(value, reset, held)
        return Decided(reset.to, last_crc, (reset.source,))

    def _decide(self, value: PartitionValue) -> Decided | Undecided | CarryOut:
        """Decide by the answers so far.

        Raises `Fenced` after a newer fence, `ConsistencyLost` for a contradiction, and `PartitionNotReady` for a reset
        of the head that must not be carried out.
        """
        if self._fenced is not None:
            raise fresh(self._fenced)
        outcome = headreset.decide(value, self._answers, self._known)
        if isinstance(outcome, Withheld):
            raise PartitionNotReady(outcome.why)
        if isinstance(outcome, Contradiction):
            self._outdated = outcome.outdated
            kind = ConsistencyLost if outcome.outdated == NO_SESSION else recovery.OlderStateProved
            raise kind(f"partition {self._partition}: {outcome.what}")
        return outcome

    async def _until_decided(self, value: PartitionValue) -> Decided | CarryOut:
        """Wait until the answers decide where the log ends, and come from enough replicas to engage."""
        told, wait_s = False, _LOOK_AGAIN_S
        while True:
            # Cleared before the look, not after it: an answer that comes in between must not be slept through.
            self._answered.clear()
            outcome = self._decide(value)
            silent = sorted(name for name in recovery.participants(value) if name not in self._answers)
            cut_off = self._is_cut_off(silent)
            if isinstance(outcome, Undecided):
                self._report(f"its next session waits for {outcome.waits_for(self._answers)}", cut_off)
            elif recovery.may_engage(value, self._answers):
                return outcome
            elif recovery.has_quorum(value, self._answers):
                lack = recovery.lack_of(value, self._answers)
                self._report(f"its next session waits for more replicas: {lack}", cut_off)
                # Appends are refused once the replicas that are connected have had a moment to answer.
                wait_s = _LOOK_AGAIN_S if told else self._gather_s(value, self._fenced_s)
            else:
                self._report(f"its next session waits for a quorum: no answer from {', '.join(silent)}", cut_off)
            try:
                async with asyncio.timeout(wait_s):
                    await self._answered.wait()
            except TimeoutError:
                if wait_s != _LOOK_AGAIN_S:
                    told, wait_s = True, _LOOK_AGAIN_S
                    self._on_insufficient(recovery.lack_of(value, self._answers))
                else:
                    await self._look_again(value)

    def _is_cut_off(self, names: Iterable[StorageId]) -> bool:
        """Whether one of these replicas is out of reach. What is connected and slow is as slow for other servers."""
        return any(self._shared.links[name].session is None for name in names)

    async def _look_again(self, value: PartitionValue) -> None:
        """Raise `PartitionNotReady` if what this attempt goes by has changed since the claim."""
        if self._shared.requirements.of(self._partition) != value.required:
            raise PartitionNotReady("other copies or zones are required now")
        try:
            async with self._coordinator_answers():
                current = await self._coordinator.partition(self._partition)
        except CoordinatorUnavailable:
            return
        if current.version != self._version:
            raise PartitionNotReady("the partition's value was changed at the coordinator: it is read again")

    def _gather_s(self, value: PartitionValue, took_s: Mapping[StorageId, float]) -> float:
        return gather_s(self._settings.gather_s, pace_s(took_s.values(), recovery.quorum(value.members)))

    async def _wait_for_more(self, value: PartitionValue) -> None:
        """Wait a moment for replicas whose node is connected: a late one costs another session.

        For an owner's first session any is waited for.
        """
        clock, settings = self._host.clock, self._settings
        began_s = clock.monotonic_s()
        while missing := [name for name in recovery.participants(value) if name not in self._answers]:
            if any(self._shared.links[name].session for name in missing):
                wait_s = self._gather_s(value, self._fenced_s)
            else:
                wait_s = settings.gather_s if self._first else 0.0
            left_s = began_s + wait_s - clock.monotonic_s()
            if left_s <= 0:
                return
            self._answered.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._answered.wait()
            except TimeoutError:
                return

    async def _fence(self, name: StorageId) -> None:
        """Ask one replica for its last session until it answers, which raises its fence; on each new connection."""
        pause_s, clock = self._settings.retry_s_min, self._host.clock
        asked_on: Connection | None = None
        began_s = 0.0
        while True:
            connection = await self._shared.links[name].connected()
            if connection is not asked_on:
                asked_on, began_s = connection, clock.monotonic_s()
                self._answered.set()  # what the attempt waits for is told anew: this replica is within reach
            try:
                asked = LastSessionInfo(self._session)
                answer = await self._shared.links[name].ask(connection, asked, self._partition)
                self._answers[name] = answer_of(expect(answer, SessionInfo))
                self._connections[name] = connection
                # Since it was first asked there: what it has not answered in time keeps it from answering the next.
                self._fenced_s[name] = clock.monotonic_s() - began_s
                self._on_answer(name, self._answers[name], connection)
                self._answered.set()
                await self._shared.links[name].until_closed(connection)
                # What is started under this name from now on may have another directory: an empty one, because a mount
                # is missing, or the right one at last. It is asked for itself.
                del self._answers[name], self._fenced_s[name]
                pause_s = self._settings.retry_s_min
                continue
            except Fenced as error:
                self._fenced = error
                self._answered.set()
                return
            except PolonaiseError as error:
                self._report(f"{name} does not answer: {error}", None)
            await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
            pause_s = min(2 * pause_s, self._settings.retry_s_max)

    async def _check_fillable(self, value: PartitionValue, decided: Decided) -> None:
        """Raise `FragmentMissing` if too few copies can be filled for a session, before any copy is cut for a reset.

        A copy that was cut in vain keeps the operator from deciding otherwise. Raises `HistoryTrimmed` in a server
        without fragments, and what `ArchivedHistory.lacks` raises.
        """
        (source,) = decided.sources
        marks = self._marks(value, decided.closing)
        if recovery.may_engage(value, [name for name, mark in marks.items() if mark == decided.closing]):
            return
        lowest = min(marks.values())
        request = ReadBatches(self._session, lowest + 1, decided.closing, 1, 1, 0)
        try:
            await self._ask(source, request)
            return
        except HistoryTrimmed as refused:
            trimmed = refused
        history = required(self._shared.history, trimmed, self._partition)
        lacked = {
            mark: await history.lacks(self._partition, Span(mark + 1, trimmed.first - 1))
            for mark in set(marks.values())
        }
        if not recovery.may_engage(value, [name for name, mark in marks.items() if lacked[mark] is None]):
            lacking = ", ".join(name for name, mark in marks.items() if lacked[mark] is not None)
            hole = next(hole for _, hole in sorted(lacked.items()) if hole is not None)
            raise FragmentMissing(
                f"the head can't be reset to {decided.closing} yet: {history} has no fragment with the ids "
                f"{hole.first} to {hole.last}, which {lacking} would have to get, and which were trimmed from "
                f"{source}. Nothing was cut. Put the fragments back that hold these ids; one that reaches above "
                f"{decided.closing} is not moved out, but cut: polonaise archive cut {history} "
                f"{self._partition}={decided.closing}"
            )

    async def _begin_reset(self, claimed: Versioned[PartitionValue]) -> Versioned[PartitionValue]:
        async with self._coordinator_answers():
            current = await self._coordinator.partition(self._partition)
            begun = headreset.begun(current.value, self._certain) if current.version == claimed.version else None
            written = await self._coordinator.set_partition(self._partition, begun, claimed.version) if begun else None
        if written is None or begun is None:
            raise PartitionNotReady("the partition's value was changed while its reset was prepared: it is read again")
        return Versioned(written.version, replace(claimed.value, resets=begun.resets))

    # ------------------------------------------------------------------ 5 clean

    async def _clean(self, value: PartitionValue, decided: Decided) -> set[StorageId]:
        """Clean copies up to the closing mark; return the replicas that joined: a quorum and the quick ones."""
        closing = decided.closing
        marks = self._marks(value, closing)
        # The partition stands still while copies are made. So those that lack much are left to be caught up with in
        # the background, unless there is no quorum without them.
        near = [name for name, mark in marks.items() if closing - mark <= self._settings.readmit_transactions]
        # A copy that is only being added is waited for only if commits need it: else the members can go on without it.
        chosen = near
        if not recovery.may_engage(value, near):
            chosen = [name for name in marks if name in near or name in value.members]
            if not recovery.may_engage(value, chosen) and recovery.may_engage(value, marks):
                chosen = list(marks)
        clean: set[StorageId] = set()
        tasks = {asyncio.create_task(self._try_clean(value, name, marks[name], decided)): name for name in chosen}
        try:
            await self._until_clean(value, tasks, clean)
        finally:
            for task, name in tasks.items():
                if not task.done():
                    # Whether it has joined is unknown now. Its connection goes, so that it has no part in the session
                    # even if it has: a replica whose state is unknown must not be able to acknowledge.
                    task.cancel()
                    empty = self._answers[name].is_empty and closing != NO_TRANSACTION
                    why = "it was found empty, and is being filled" if empty else "it was too slow"
                    self._connections[name].abort(ConnectionLost(f"left out of the session: {why}"))
        return clean

    def _marks(self, value: PartitionValue, closing: TransactionId) -> dict[StorageId, TransactionId]:
        # A connection that has closed since the answer has ended that replica's part, whatever it answered.
        return {
            name: headreset.clean_to(value, name, answer, closing, self._carrying, self._certain)
            for name, answer in self._answers.items()
            if self._connections[name].closed is None
        }

    async def _until_clean(
        self,
        value: PartitionValue,
        tasks: Mapping[asyncio.Task[PolonaiseError | None], StorageId],
        clean: set[StorageId],
    ) -> None:
        """Collect into `clean` the replicas that join: a quorum, then those a moment later. Raises as `_clean`."""
        pending = set(tasks)
        errors: list[str] = []
        patience_s: float | None = None
        while pending:
            done, pending = await asyncio.wait(pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            # By name, because `done` has no order of its own: a simulated schedule has to be the same each time.
            for task in sorted(done, key=lambda t: tasks[t]):
                error = task.result()
                if error is None:
                    clean.add(tasks[task])
                elif isinstance(error, ConsistencyLost):
                    raise error
                else:
                    errors.append(f"{tasks[task]}: {error}")
            if recovery.may_engage(value, clean):
                patience_s = self._gather_s(value, self._joined_s)
        why = "; ".join(errors) or "others that answered are not connected any more"
        if lack := recovery.has_quorum(value, clean) and recovery.lack_of(value, clean):
            raise InsufficientReplicas(f"{lack}: {why}")
        if not recovery.may_engage(value, clean):
            raise PartitionNotReady(f"no quorum of clean replicas for its next session: {why}")

    async def _try_clean(
        self, value: PartitionValue, name: StorageId, mark: TransactionId, decided: Decided
    ) -> PolonaiseError | None:
        # Not raised: the attempt may end in this moment, and an error that nobody takes any more counts as a mistake.
        try:
            await self._clean_one(value, name, mark, decided)
        except PolonaiseError as error:
            return error
        return None

    async def _clean_one(self, value: PartitionValue, name: StorageId, mark: TransactionId, decided: Decided) -> None:
        """Cut what may not be the log on one replica, copy what it lacks, and let it join."""
        answer = self._answers[name]
        last, last_crc = answer.max_synced, answer.last_crc
        if self._carrying is not None and name == self._carrying.source:
            await self._have_forgotten(value, name, answer)
        # After a loss it is cut even at its own end: there may be bytes above that are not believed, and only a cut
        # removes them.
        if last > mark or answer.lost_above is not None or headreset.must_be_cut(value, answer, mark):
            cut = cut_of(self._session, value, answer, mark, resetting=self._carrying is not None)
            done = expect(await self._ask(name, cut), Done)
            last, last_crc = done.last, done.last_crc
        while last < decided.closing:
            read = await self._read(decided.sources, last + 1, decided.closing, name)
            done = await copy_on(partial(self._ask, name), self._session, name, last, read)
            last, last_crc = done.last, done.last_crc
        # Equal CRCs at the end are equal logs, since each batch carries the CRC of its predecessor. A different one is
        # never repaired by guess.
        if last != decided.closing or last_crc != decided.last_crc:
            raise ConsistencyLost(
                f"partition {self._partition}: {name} ends at {last} with CRC {last_crc:#010x}, "
                f"the log at {decided.closing} with {decided.last_crc:#010x}: the log has forked"
            )
        began_s = self._host.clock.monotonic_s()
        await self._ask(name, Join(self._session, decided.closing, decided.last_crc))
        self._joined_s[name] = self._host.clock.monotonic_s() - began_s

    async def _have_forgotten(self, value: PartitionValue, name: StorageId, answer: ReplicaAnswer) -> None:
        """Lower the marks of a reset's source, before it is cut and joins, if an earlier reset has outdated them."""
        knows_marks = self._connections[name].peer.version_max >= MARKS_VERSION
        if knows_marks and headreset.must_forget(value, answer, self._certain):
            since = headreset.cut_since(value, answer)
            expect(await self._ask(name, LowerMarks(self._session, self._certain, since)), Done)

    async def _ask(self, name: StorageId, message: Message) -> Message:
        """Return a replica's answer, over the connection on which it was fenced. Raises what it refuses with.

        `LogForked` becomes `ConsistencyLost`, which stops the partition. What only an owner can know becomes
        `ProtocolError`: a storage node must not be able to stop a partition.
        """
        try:
            return await self._shared.links[name].ask(self._connections[name], message, self._partition)
        except LogForked as error:
            raise ConsistencyLost(
                f"partition {self._partition}: {name} says {error.text}: the log has forked"
            ) from error
        except (NotOwner, ConsistencyLost) as error:
            raise ProtocolError(f"{name} refused with an error that only an owner can know of: {error}") from error

    async def _read(
        self, sources: tuple[StorageId, ...], first: TransactionId, last: TransactionId, reader: StorageId
    ) -> ToCopy:
        request = ReadBatches(self._session, first, last, self._settings.copy_bytes, 1, 0)
        others = [source for source in sources if source != reader]
        no_source = SegmentDamaged("no other replica holds the log's end")
        return await read_to_copy(self._ask, others, request, self._partition, self._shared.history, no_source)

    # ------------------------------------------------------------------ what the session starts from

    async def _registers(self, names: list[StorageId], closing: TransactionId) -> dict[bytes, bytes]:
        error: PolonaiseError = PartitionNotReady("no clean replica")
        for name in names:
            try:
                answer = expect(await self._ask(name, GetRegisters(self._session)), RegistersAre)
                if answer.last != closing:
                    raise ProtocolError(f"{name} sent its registers at {answer.last}, not at {closing}")
                values: dict[bytes, bytes] = {}
                registers.apply(values, answer.snapshot)
                return values
            except PolonaiseError as failed:
                error = failed
        raise error

    async def _commit_time_us(self, names: list[StorageId], closing: TransactionId) -> int:
        """Read the commit time of the last batch, µs UTC; 0 for an empty log."""
        if closing == NO_TRANSACTION:
            return 0
        read = await self._read(tuple(names), closing, closing, reader="")
        return Batch.parse(read.payload).commit_time_us

    # ------------------------------------------------------------------ 6 engage

    async def _engage(self, value: PartitionValue, version: int) -> None:
        """Write the engagement, and return only when it is certainly written.

        Raises `PartitionNotReady` when the coordinator holds another value by now: this session must not start then.
        While the coordinator is unavailable, an unknown result is read again until it is known: appends of a session
        that nobody may know of must not be sent. Any other error of the coordinator ends the attempt.
        """
        pause_s = self._settings.retry_s_min
        while True:
            try:
                async with self._coordinator_answers():
                    if await self._coordinator.set_partition(self._partition, value, version) is not None:
                        return
                    current = await self._coordinator.partition(self._partition)
                # Refused although the value is ours: an earlier try of this loop was written, and its answer was lost.
                if current.value == value:
                    return
                if current.value.session == self._session:
                    raise PartitionNotReady(
                        "an operator changed the members, or the head's reset, while its next session started"
                    )
                raise PartitionNotReady(f"session {self._session} was overtaken by session {current.value.session}")
            except CoordinatorUnavailable:
                self._report("waiting for the coordinator to tell whether its next session is engaged", False)
            await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
            pause_s = min(2 * pause_s, self._settings.retry_s_max)
