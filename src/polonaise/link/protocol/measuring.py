"""The measuring of which part of what a side of a connection sends is lost on the way."""

from __future__ import annotations

from collections import deque
from typing import Final

from polonaise.terms import PeerClock

LATELY_S: Final = 5.0
_RESENT_MIN: Final = 3
"""With fewer pieces sent again, nothing is told: one is lost now and then on every network."""


class LossMeasuring:
    """Tells which part of the pieces of data that were sent lately had to be sent again."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int]] = deque()
        self.resent: float | None = None
        """The share of pieces that were sent again lately: 0 to 1; None if nobody counts."""

    def seen(self, now_s: float, sent: int, resent: int) -> None:
        """Note how many pieces were sent since the beginning, and how many of these once more."""
        looks = self._looks
        looks.append((now_s, sent, resent))
        while len(looks) > 2 and looks[1][0] <= now_s - LATELY_S:
            looks.popleft()
        _, sent_before, resent_before = looks[0]
        again = resent - resent_before
        self.resent = again / max(again, sent - sent_before) if again >= _RESENT_MIN else 0.0


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
