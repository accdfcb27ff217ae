"""The faults that have ended a partition's sessions: in all under one owner, and while a commit was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polonaise.terms import StorageId

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
        """Note that these replicas have failed; earlier ones are forgotten if no fault ended a session within
        `FAULTS_LAST_S`.
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
