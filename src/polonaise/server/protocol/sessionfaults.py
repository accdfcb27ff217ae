"""What has kept a partition from committing since it did last: which replica failed with what, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polonaise.terms import StorageId

_LASTS_S: Final = 10.0
"""Faults that are no farther apart are one trouble."""


class SessionFaults:
    """The faults that have ended a partition's sessions. Times are monotonic seconds."""

    __slots__ = ("_blamed", "_in_a_row", "_last_s", "last", "total")

    def __init__(self) -> None:
        self.total = 0
        """How many sessions a fault has ended."""
        self.last = ""
        """What ended the last of them."""
        self._in_a_row = 0
        self._last_s = 0.0
        self._blamed: dict[StorageId, str] = {}

    def blame(self, names: Sequence[StorageId], what: str, now_s: float) -> None:
        """Replicas have failed. What any failed with long ago is another story."""
        if now_s - self._last_s > _LASTS_S:
            self._blamed.clear()
        self._blamed.update(dict.fromkeys(names, what))

    def ended_session(self, reason: str, now_s: float) -> None:
        self.total += 1
        self.last = reason
        self._in_a_row += 1
        self._last_s = now_s

    def committed(self) -> None:
        """Something was committed: whatever there was is over."""
        self._in_a_row = 0
        self._blamed.clear()

    @property
    def since_commit(self) -> int:
        """How many sessions have ended by a fault since something was committed last."""
        return self._in_a_row

    @property
    def causes(self) -> str:
        """The replicas that failed, each with its fault, as far as is known."""
        return "; ".join(f"storage node {name}: {what}" for name, what in self._blamed.items()) or self.last

    def are_lasting(self, now_s: float) -> bool:
        """Whether sessions end one after the other, and nothing is committed."""
        return self._in_a_row >= 2 and now_s - self._last_s <= _LASTS_S
