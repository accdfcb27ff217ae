"""The readiness of a partition: whether it takes and commits appends, and what people are told if it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from polonaise.coordination.values import PartitionValue
from polonaise.errors import (
    ConsistencyLost,
    CoordinatorDamaged,
    CoordinatorLost,
    CoordinatorOutdated,
    CoordinatorUnavailable,
    FragmentDamaged,
    PartitionNotReady,
    PolonaiseError,
    UnsupportedFormat,
)
from polonaise.server.protocol.copythrottle import CopyProgress
from polonaise.server.protocol.recovery import OlderStateProved, ReplicaAnswer
from polonaise.server.protocol.sessionfaults import SessionFaults
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, TransactionId

_PASSES_S: Final = 1.0
"""Clients are told of a pause that no fault began only if it is longer than this: most are short."""


class ReadinessChanges:
    """Counts what happens to the sessions of a server's partitions.

    While the count stands still, every partition fares as it did at the last look, so nobody has to look at all of
    them.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1


class Closing(Protocol):
    @property
    def closed(self) -> PolonaiseError | None: ...


class Proved(NamedTuple):
    """The answer of a replica, and its connection: another life may have another directory."""

    answer: ReplicaAnswer
    connection: Closing


class Readiness:
    """Knows what a partition waits for, which faults ended its sessions, and which members are not engaged.

    Its events come from the partition's owner (sessions, commits), from attempts to start a session, and from copies to
    late replicas. Times are monotonic seconds.
    """

    __slots__ = (
        "_added", "_answers", "_blocked", "_changes", "_elsewhere", "_ended_s", "_faults", "_known", "_late",
        "_partition", "_progress", "_reached", "_slow", "_waits_for",
    )  # fmt: skip

    def __init__(self, partition: PartitionId, changes: ReadinessChanges | None = None) -> None:
        self._partition = partition
        self._changes = changes or ReadinessChanges()
        self._changes.note()
        self._waits_for = "its first session has not begun"
        self._elsewhere = False
        self._blocked: PolonaiseError | None = None
        self._faults = SessionFaults()
        self._late: dict[StorageId, str] = {}
        self._added: dict[StorageId, str] = {}
        self._reached: dict[StorageId, TransactionId] = {}
        self._answers: dict[StorageId, Proved] = {}
        """What each replica has proved in attempts to start a session, since the last session began."""
        self._known: TransactionId = NO_TRANSACTION
        self._progress: dict[StorageId, CopyProgress] = {}
        """Over sessions, which a busy partition ends often."""
        self._slow: list[StorageId] = []
        """Too many replicas to go on without, for whose sync a commit waits for long."""
        self._ended_s = 0.0
        """When the last session ended."""

    # ------------------------------------------------------------------ what there is

    @property
    def waits_for(self) -> str:
        """Why there is no session; empty while there is one."""
        return self._waits_for

    @property
    def elsewhere(self) -> bool:
        """Whether another server may have what there is no session for want of, as its way to storage nodes: not so for
        the coordinator, for an operator, or for replicas or fragments that answer and can't be believed.
        """
        return self._elsewhere

    @property
    def blocked(self) -> PolonaiseError | None:
        """The error with which requests are refused while only an operator can help; None otherwise."""
        return self._blocked

    @property
    def late(self) -> Mapping[StorageId, str]:
        """The members without which the last session started, each with why it is not up to date ("" if unknown)."""
        return self._late

    @property
    def added(self) -> Mapping[StorageId, str]:
        """The copies that a pending change adds, likewise."""
        return self._added

    @property
    def reached(self) -> Mapping[StorageId, TransactionId]:
        """The last id that each copy in `late` and `added` was known to hold, and between sessions each engaged one."""
        return self._reached

    @property
    def known(self) -> TransactionId:
        """The highest id that a replica knew, gone or not, of those that answered since the last session began."""
        return self._known

    @property
    def faults_total(self) -> int:
        return self._faults.total

    @property
    def last_fault(self) -> str:
        return self._faults.last

    @property
    def causes(self) -> str:
        return self._faults.causes

    @property
    def unsettled(self) -> bool:
        return self._faults.unsettled

    # ------------------------------------------------------------------ attempts to start a session

    def attempt_waits(self, waits_for: str, elsewhere: bool | None = None) -> None:
        """Note what an attempt to start a session waits for, unless the partition waits for an operator anyway.

        `elsewhere` says whether another server may have it; None leaves that as it was.
        """
        if self._blocked is None:
            self._changes.note()
            self._waits_for = waits_for
            self._elsewhere = self._elsewhere if elsewhere is None else elsewhere

    def replica_answered(self, name: StorageId, answer: ReplicaAnswer, connection: Closing) -> None:
        """Note what a replica has proved in an attempt to start a session."""
        self._answers[name] = Proved(answer, connection)
        self._known = max(self._known, answer.max_synced, answer.confirmed)

    @property
    def answers(self) -> dict[StorageId, ReplicaAnswer]:
        """What each replica has proved that is still connected; nothing once a session has begun."""
        return {name: each.answer for name, each in self._answers.items() if each.connection.closed is None}

    def attempt_failed(self, error: PolonaiseError, *, operator: bool) -> PolonaiseError | None:
        """Note that an attempt to start a session failed; `operator`: only an operator can help. Return `blocked`.

        Only an operator can help with a coordinator that has lost its data or is of an older state, but later attempts
        look again.
        """
        self._changes.note()
        if isinstance(error, CoordinatorOutdated):
            error = OlderStateProved(f"partition {self._partition}: {error.text}")
        operator = operator or isinstance(error, CoordinatorLost | ConsistencyLost)
        self._waits_for = str(error)
        self._blocked = error if operator else None
        the_same_for_all = CoordinatorUnavailable | CoordinatorDamaged | FragmentDamaged | UnsupportedFormat
        if operator or isinstance(error, the_same_for_all):
            self._elsewhere = False
        return self._blocked

    # ------------------------------------------------------------------ sessions and commits

    def session_started(self, late: Iterable[StorageId]) -> None:
        self._changes.note()
        self._waits_for, self._blocked, self._elsewhere = "", None, False
        self._answers, self._known = {}, NO_TRANSACTION
        self._late = dict.fromkeys(late, "")
        self._reached = {name: last for name, last in self._reached.items() if name in (*self._late, *self._added)}
        self._progress = {
            name: progress for name, progress in self._progress.items() if name in (*self._late, *self._added)
        }

    def change_pending(self, value: PartitionValue) -> None:
        """Note which copies the change adds that is pending in this value of the partition."""
        self._changes.note()
        added = [name for name in value.next or () if name not in value.members]
        self._added = {name: self._added.get(name, "") for name in added}

    def session_ended(
        self,
        reason: str,
        now_s: float,
        *,
        fault: bool,
        waiting_since_s: float | None,
        reached: dict[StorageId, TransactionId],
    ) -> None:
        """Note that the partition is not ready until the next session; `fault`: a replica's fault ended this one.

        `waiting_since_s` is as in `SessionFaults.ended_session`; `reached` has the last id that each engaged replica
        holds.
        """
        self._changes.note()
        self._reached |= reached
        if fault:
            self._faults.ended_session(reason, now_s, waiting_since_s)
        self._slow = []
        self._waits_for, self._elsewhere = f"its session ended: {reason}", fault
        self._ended_s = now_s

    def replicas_failed(self, names: Sequence[StorageId], fault: str, now_s: float) -> None:
        """Note that these replicas have failed, whether or not that ends a session."""
        self._faults.blame(names, fault, now_s)

    def committed(self) -> bool:
        """Note a commit; return whether it ends a trouble. A session's start does not: with full disks, sessions start
        and fail.

        A session's start does not: with full disks, sessions start and fail.
        """
        if not self._faults.unsettled:
            return False
        self._faults.committed()
        return True

    def stopped(self, reason: str) -> None:
        self._changes.note()
        self._waits_for = reason

    # ------------------------------------------------------------------ copies to late replicas

    def replica_late(self, name: StorageId, reason: str) -> None:
        """Note why a member that is not engaged, or an added copy, is not up to date."""
        for waiting in (self._late, self._added):
            if name in waiting:
                waiting[name] = reason

    def replica_reached(self, name: StorageId, last: TransactionId) -> None:
        """Note how far the copy of such a replica goes."""
        if name in self._late or name in self._added:
            self._reached[name] = last

    def replica_lacks(self, name: StorageId, missing: int, now_s: float, patience_s: float) -> bool:
        """Note how many transactions a late replica lacks; return whether that got no less for `patience_s` seconds."""
        return self._progress.setdefault(name, CopyProgress()).falls_behind(missing, now_s, patience_s)

    def replica_not_copied(self, name: StorageId) -> None:
        """Note that a late replica is away or fails: that time does not count in `replica_lacks`."""
        self._progress.pop(name, None)

    @property
    def falling_behind(self) -> list[StorageId]:
        """The late members and added copies that came no nearer for too long when they were last copied to."""
        return [
            name
            for name, progress in self._progress.items()
            if progress.lost and (name in self._late or name in self._added)
        ]

    # ------------------------------------------------------------------ what is told

    def slow(self, names: list[StorageId]) -> None:
        """Note for which replicas' sync a commit waits for long."""
        self._slow = names

    @property
    def _slowness(self) -> str:
        if not self._slow:
            return ""
        return f"the disks of {', '.join(sorted(self._slow))} are slow: a sync takes seconds, and commits wait for it"

    def trouble(self, now_s: float) -> str:
        """Return what keeps appends from being committed although sessions start; empty if nothing does."""
        faults = self._faults
        if not faults.are_lasting(now_s):
            return self._slowness
        return f"{faults.fruitless} sessions in a row ended before anything was committed: {faults.causes}"

    def lasting_trouble(self, now_s: float, *, writing: bool) -> str | None:
        """Return what has kept appends from being committed for longer than a session start takes; empty if nothing
        has.

        None while a pause between sessions is still short: what clients were told before stands. `writing`: there is a
        session.
        """
        if writing:
            return self._faults.causes if self._faults.are_lasting(now_s) else self._slowness
        return self._waits_for if now_s - self._ended_s > _PASSES_S else None

    def not_ready(self, now_s: float) -> PartitionNotReady:
        why = self._waits_for or self.trouble(now_s) or "waiting for the replicas to sync what they were sent"
        return PartitionNotReady(f"partition {self._partition} is not ready: {why}")
