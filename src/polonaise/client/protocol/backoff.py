"""How long to wait before the next try: twice as long each time, up to a bound, with jitter."""

from __future__ import annotations


class Backoff:
    """Pauses in seconds. Jitter comes from the caller's random number, so that clients do not return in step."""

    __slots__ = ("_max_s", "_min_s", "_next_s")

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s

    def pause_s(self, chance: float) -> float:
        """The next pause, between half and all of its length; `chance` is a random number from 0 to 1."""
        pause = self._next_s
        self._next_s = min(self._max_s, pause * 2)
        return pause * (0.5 + chance / 2)

    def reset(self) -> None:
        """It worked: the next pause is a short one again."""
        self._next_s = self._min_s
