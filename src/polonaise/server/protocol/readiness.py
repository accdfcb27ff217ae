"""Whether a partition takes and commits appends, and what keeps it from that: what clients and operators are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polonaise.errors import PartitionNotReady, PolonaiseError
from polonaise.server.protocol.sessionfaults import SessionFaults
from polonaise.terms import PartitionId, SessionId, StorageId

_PASSES_S: Final = 1.0
"""Between two sessions this long is no news to clients: most that end are followed by the next one at once."""


class Readiness:
    """What a partition waits for, which faults have ended its sessions, and who is late. Times are monotonic."""

    __slots__ = ("_ended_s", "_partition", "blocked", "faults", "late", "waits_for")

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        self.waits_for = "its first session has not begun"
        """What keeps the partition from being ready; empty when it is."""
        self.blocked: PolonaiseError | None = None
        """Why nothing is taken until an operator has acted; None while that is not needed."""
        self.faults = SessionFaults()
        self.late: dict[StorageId, str] = {}
        """The members that take no part in the session, with what keeps each from being brought up to date."""
        self._ended_s = 0.0
        """When the last session ended."""

    def attempt_waits(self, what: str) -> None:
        """An attempt to start a session waits. While an operator has to act, that stays the news."""
        if self.blocked is None:
            self.waits_for = what

    def attempt_failed(self, error: Exception, *, operator: bool) -> PolonaiseError | None:
        """An attempt to start a session failed; `operator`: only one can help. Returns what blocks the partition."""
        self.waits_for = str(error)
        self.blocked = error if operator and isinstance(error, PolonaiseError) else None
        return self.blocked

    def session_started(self, late: Iterable[StorageId]) -> None:
        """The partition is ready, without these members."""
        self.waits_for, self.blocked = "", None
        self.late = dict.fromkeys(late, "")

    def session_ended(self, session: SessionId, reason: str, now_s: float, *, fault: bool) -> None:
        """The partition is not ready until the next session; `fault`: a replica's has ended this one."""
        if fault:
            self.faults.ended_session(reason, now_s)
        self.waits_for = f"session {session} ended: {reason}"
        self._ended_s = now_s

    def replica_late(self, name: StorageId, reason: str) -> None:
        """A member that takes no part in the session could not be brought up to date just now."""
        if name in self.late:
            self.late[name] = reason

    def trouble(self, now_s: float) -> str:
        """What keeps appends from being committed although sessions start; empty when nothing does.

        A session that starts proves nothing: with all disks full, one starts after the other, and none commits.
        """
        faults = self.faults
        if not faults.are_lasting(now_s):
            return ""
        return f"{faults.since_commit} sessions in a row ended before anything was committed: {faults.causes}"

    def lasting_hindrance(self, now_s: float, *, writing: bool) -> str | None:
        """What keeps appends from being committed for longer than it takes to start a session, empty when nothing
        does; None: nothing is known that is news. `writing`: there is a session."""
        if writing:
            return self.faults.causes if self.faults.are_lasting(now_s) else ""
        return self.waits_for if now_s - self._ended_s > _PASSES_S else None

    def not_ready(self, now_s: float) -> PartitionNotReady:
        """Why a request, or an append, was not answered in time."""
        why = self.waits_for or self.trouble(now_s) or "the replicas to sync what they were sent"
        return PartitionNotReady(f"partition {self._partition} is not ready: {why}")
