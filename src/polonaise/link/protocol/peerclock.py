"""How a side of a connection measures by how much the peer's clock differs from its own."""

from __future__ import annotations

from polonaise.terms import PeerClock


class ClockMeasuring:
    """Decides when a peer is asked for its time, and what its answers say. Times in seconds are monotonic."""

    def __init__(self, every_s: float) -> None:
        """Ask every `every_s` seconds; 0 for never."""
        self._every_s = every_s
        self._asked_s = float("-inf")
        self._unanswered = 0
        self.measured: PeerClock | None = None
        """The peer's clock, as it was measured last; None before that."""

    def due(self, now_s: float) -> bool:
        """Whether the peer is to be asked now; if so, the question counts as asked."""
        # A little less than the interval: a timer that is early would skip every other question.
        if not self._every_s or now_s - self._asked_s < self._every_s * 0.9:
            return False
        self._asked_s, self._unanswered = now_s, self._unanswered + 1
        return True

    def answered(self, wall_us: int, now_s: float) -> None:
        """Take note of an answer. One to an older question than the last says nothing: its time is not known here."""
        # Answers come in the order of the questions, so that those that are missing need only be counted.
        self._unanswered -= 1
        if self._unanswered == 0:
            half_us = int((now_s - self._asked_s) * 5e5)
            self.measured = PeerClock(wall_us - int(self._asked_s * 1e6) - half_us, half_us, now_s)
