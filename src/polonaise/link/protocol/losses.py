"""The measuring of which part of what a side of a connection sends is lost on the way."""

from __future__ import annotations

from collections import deque
from typing import Final

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
