"""Pauses between attempts: twice as long each time, up to a bound, with jitter."""

from __future__ import annotations


class Backoff:
    """A growing series of pauses, in seconds, with jitter, so that clients do not come back all at the same time."""

    __slots__ = ("_max_s", "_min_s", "_next_s")

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s

    def pause_s(self, chance: float) -> float:
        """Return the next pause, from half its length to all of it; `chance` is from 0 to 1."""
        pause = self._next_s
        self._next_s = min(self._max_s, pause * 2)
        return pause * (0.5 + chance / 2)

    def reset(self) -> None:
        self._next_s = self._min_s
