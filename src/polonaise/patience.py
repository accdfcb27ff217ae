"""How long an answer is waited for: longer after answers that came too late, as what is slow works all the same."""

from __future__ import annotations

from typing import Final

PATIENCE_S_MAX: Final = 60.0
"""The longest that a storage node's answer is waited for, in seconds."""
_SLACKENS: Final = 0.9
"""What is left of the patience after an answer that came at once."""
_KEPT_S: Final = 60.0
"""For how many seconds the patience stays after the last answer that needed it."""


class SyncPatience:
    """The deadline of requests to one party. It doubles when one is exceeded, and falls when all answers are quick. A
    quick answer alone says little: what is in memory is told at once, whatever the disk is like."""

    __slots__ = ("_least_s", "_most_s", "_needed_s", "seconds")

    def __init__(self, least_s: float, most_s: float) -> None:
        """Begin with `least_s` seconds; `most_s` is never passed, unless `least_s` is longer."""
        self._least_s = least_s
        self._most_s = max(least_s, most_s)
        self._needed_s = float("-inf")
        """When an answer last needed this patience, in monotonic seconds."""
        self.seconds = least_s
        """The deadline of the next request, in seconds."""

    def exceeded(self, waited_s: float, now_s: float) -> None:
        """Note that an answer did not come within `waited_s` seconds, which were the patience when it was asked for."""
        # Not twice what it is by now: of many requests at the same time, all that are late are late for one reason.
        self.seconds = max(self.seconds, min(2 * waited_s, self._most_s))
        self._needed_s = now_s

    def answered(self, took_s: float, now_s: float) -> None:
        if 4 * took_s >= self.seconds:
            self._needed_s = now_s
        elif now_s - self._needed_s > _KEPT_S:
            self.seconds = max(self._least_s, _SLACKENS * self.seconds)
