"""The readiness of a partition: whether it takes and commits appends, and what people are told if it does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, TransactionId

_PASSES_S: Final = 1.0
"""Clients are told of a pause that no fault began only if it is longer than this: most are short."""


FAULTS_LAST_S: Final = 10.0
"""Faults that are no farther apart than this many seconds count as one trouble."""


class SessionFaults:
    """Remembers which replica failed with what, and how often that ended a session. Times are monotonic seconds."""

    __slots__ = ("_blamed", "_fruitless_s", "_last_s", "fruitless", "last", "total", "unsettled")

    def __init__(self) -> None:
        self.total = 0
        self.unsettled = False
        """Whether a fault has ended a session since the last commit."""
        self.fruitless = 0
        """How many sessions, since the last commit, a fault has ended while they waited for a commit in vain.

        Begins anew after more than `FAULTS_LAST_S` from the end of one to the beginning of the wait of the next."""
        self.last = ""
        """The fault that ended a session last; empty if none has."""
        self._last_s = 0.0
        self._fruitless_s = 0.0
        self._blamed: dict[StorageId, str] = {}

    def blame(self, names: Sequence[StorageId], fault: str, now_s: float) -> None:
        """Note that these replicas have failed, whether or not that ends a session.

        Earlier ones are forgotten if no fault ended a session within `FAULTS_LAST_S`.
        """
        if now_s - self._last_s > FAULTS_LAST_S:
            self._blamed.clear()
        self._blamed.update(dict.fromkeys(names, fault))

    def ended_session(self, reason: str, now_s: float, waiting_since_s: float | None) -> None:
        """Note that a fault has ended a session, which had waited for a commit since `waiting_since_s`.

        None if it did not wait: nobody had appended, or all was committed, so it says nothing of the next appends.
        """
        self.total += 1
        self.last = reason
        self.unsettled = True
        self._last_s = now_s
        if waiting_since_s is None:
            return
        # By the beginning of the wait, and not by its end: a session whose disks hang is ended only after a while.
        if waiting_since_s - self._fruitless_s > FAULTS_LAST_S:
            self.fruitless = 0
        self.fruitless += 1
        self._fruitless_s = now_s

    def committed(self) -> None:
        self.unsettled, self.fruitless = False, 0
        self._blamed.clear()

    @property
    def causes(self) -> str:
        """The replicas that failed, each with its fault; the last reason if none is known."""
        return "; ".join(f"storage node {name}: {fault}" for name, fault in self._blamed.items()) or self.last

    def are_lasting(self, now_s: float) -> bool:
        """Whether faults end sessions that wait for a commit: two or more, the last within `FAULTS_LAST_S`."""
        return self.fruitless >= 2 and now_s - self._fruitless_s <= FAULTS_LAST_S


class ReadinessChanges:
    """Counts what happens to sessions: while it stands still, every partition fares as at the last look."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1


class Closing(Protocol):
    """A connection, of which only its end matters here."""

    @property
    def closed(self) -> PolonaiseError | None: ...


class Proved(NamedTuple):
    """What a replica has proved of its copy, and on which connection: after another start it may have another
    directory."""

    answer: ReplicaAnswer
    connection: Closing


class Readiness:
    """Knows what a partition waits for, which faults ended its sessions, and which members are not engaged.

    Its events come from the partition's owner (sessions, commits), from attempts to start a session, and from copies to
    late replicas. Times are monotonic seconds.
    """

    __slots__ = (
        "_answers", "_changes", "_ended_s", "_partition", "_progress", "_slow",
        "added", "blocked", "elsewhere", "faults", "known", "late", "reached", "waits_for",
    )  # fmt: skip

    def __init__(self, partition: PartitionId, changes: ReadinessChanges | None = None) -> None:
        self._partition = partition
        self._changes = changes or ReadinessChanges()
        self._changes.note()
        self.waits_for = "its first session has not begun"
        """Why there is no session; empty while there is one."""
        self.elsewhere = False
        """Whether another server might start the session: true when this one lacks only its own way to storage
        nodes."""
        self.blocked: PolonaiseError | None = None
        """The error with which requests are refused while only an operator can help; None otherwise."""
        self.faults: Final = SessionFaults()
        self.late: dict[StorageId, str] = {}
        """The members without which the last session started, each with why it is not up to date ("" if unknown)."""
        self.added: dict[StorageId, str] = {}
        """The copies that a pending change adds, likewise."""
        self.reached: dict[StorageId, TransactionId] = {}
        """The last id that each copy in `late` and `added` was known to hold, and between sessions each engaged one."""
        self._answers: dict[StorageId, Proved] = {}
        self.known: TransactionId = NO_TRANSACTION
        """The highest id that a replica knew, gone or not, of those that answered since the last session began."""
        self._progress: dict[StorageId, CopyProgress] = {}
        self._slow: list[StorageId] = []
        """Too many replicas to go on without, for whose sync a commit waits for long."""
        self._ended_s = 0.0

    # ------------------------------------------------------------------ attempts to start a session

    def attempt_waits(self, waits_for: str, elsewhere: bool | None = None) -> None:
        """Note what an attempt to start a session waits for, unless the partition waits for an operator anyway.

        `elsewhere` says whether another server may have it; None leaves that as it was.
        """
        if self.blocked is None:
            self._changes.note()
            self.waits_for = waits_for
            self.elsewhere = self.elsewhere if elsewhere is None else elsewhere

    def replica_answered(self, name: StorageId, answer: ReplicaAnswer, connection: Closing) -> None:
        """Note what a replica has proved in an attempt to start a session."""
        self._answers[name] = Proved(answer, connection)
        self.known = max(self.known, answer.max_synced, answer.confirmed)

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
        # That this process has seen a later state proves the same as a replica that has.
        if isinstance(error, CoordinatorOutdated):
            error = OlderStateProved(f"partition {self._partition}: {error.text}")
        operator = operator or isinstance(error, CoordinatorLost | ConsistencyLost)
        self.waits_for = str(error)
        self.blocked = error if operator else None
        the_same_for_all = CoordinatorUnavailable | CoordinatorDamaged | FragmentDamaged | UnsupportedFormat
        if operator or isinstance(error, the_same_for_all):
            self.elsewhere = False
        return self.blocked

    # ------------------------------------------------------------------ sessions and commits

    def session_started(self, late: Iterable[StorageId]) -> None:
        self._changes.note()
        self.waits_for, self.blocked, self.elsewhere = "", None, False
        self._answers, self.known = {}, NO_TRANSACTION
        self.late = dict.fromkeys(late, "")
        self.reached = {name: last for name, last in self.reached.items() if name in (*self.late, *self.added)}
        # Kept over sessions, which a busy partition ends often.
        self._progress = {
            name: progress for name, progress in self._progress.items() if name in (*self.late, *self.added)
        }

    def change_pending(self, value: PartitionValue) -> None:
        """Note which copies the change adds that is pending in this value of the partition."""
        self._changes.note()
        added = [name for name in value.next or () if name not in value.members]
        self.added = {name: self.added.get(name, "") for name in added}

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
        self.reached |= reached
        if fault:
            self.faults.ended_session(reason, now_s, waiting_since_s)
        self._slow = []
        self.waits_for, self.elsewhere = f"its session ended: {reason}", fault
        self._ended_s = now_s

    def stopped(self, reason: str) -> None:
        self._changes.note()
        self.waits_for = reason

    # ------------------------------------------------------------------ copies to late replicas

    def replica_late(self, name: StorageId, reason: str) -> None:
        """Note why a member that is not engaged, or an added copy, is not up to date."""
        for waiting in (self.late, self.added):
            if name in waiting:
                waiting[name] = reason

    def replica_reached(self, name: StorageId, last: TransactionId) -> None:
        """Note how far the copy of such a replica goes."""
        if name in self.late or name in self.added:
            self.reached[name] = last

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
            if progress.lost and (name in self.late or name in self.added)
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
        faults = self.faults
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
            return self.faults.causes if self.faults.are_lasting(now_s) else self._slowness
        return self.waits_for if now_s - self._ended_s > _PASSES_S else None

    def not_ready(self, now_s: float) -> PartitionNotReady:
        why = self.waits_for or self.trouble(now_s) or "waiting for the replicas to sync what they were sent"
        return PartitionNotReady(f"partition {self._partition} is not ready: {why}")
