"""When a scrub reads what next: all pieces in turn, in rounds, at a bounded rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final, Generic, TypeVar

DAMAGES_MAX: Final = 100
"""The most damages that a scrub remembers."""
ROUND_S_MIN: Final = 1.0
"""The shortest time between the beginnings of two rounds, in seconds: a round may have nothing to read."""

P = TypeVar("P")


class ScrubRounds(Generic[P]):
    """The rounds of one scrub, each with pieces to be read one after the other. Times are monotonic seconds."""

    __slots__ = ("_bytes_per_s", "_waiting", "begin_s", "every_s", "free_s")

    def __init__(self, bytes_per_s: int, every_s: float, first_s: float) -> None:
        """Begin rounds `every_s` seconds after each other or later, the first at `first_s`, and read at most
        `bytes_per_s` bytes a second.

        With 0 bytes per second there are no rounds, and what is read apart from them is read at any rate.
        """
        self._bytes_per_s = bytes_per_s
        self.every_s: Final = max(every_s, ROUND_S_MIN)
        self.begin_s = inf
        """When the next round may begin."""
        self.free_s = -inf
        """When anything may be read next: the rate is kept by this."""
        self._waiting: deque[P] = deque()
        """The pieces that this round has still to read."""
        self.plan(first_s)

    def plan(self, at_s: float) -> None:
        """Have the next round begin at this time. With 0 bytes per second there are none."""
        self.begin_s = at_s if self._bytes_per_s else inf

    def begin(self, now_s: float, pieces: Iterable[P]) -> None:
        self.begin_s = now_s + self.every_s
        self._waiting = deque(pieces)

    @property
    def next(self) -> P | None:
        """The piece that is to be read next, or is being read; None if the round has none left."""
        return self._waiting[0] if self._waiting else None

    def done(self) -> bool:
        """Go on behind the piece that was read; return whether the round is over by that."""
        self._waiting.popleft()
        return not self._waiting

    def rest(self, until_s: float) -> None:
        """Read nothing before this time."""
        self.free_s = until_s

    def read(self, now_s: float, bytes_read: int) -> None:
        """Note that so many bytes were read."""
        # Not from when it might have read: what it could not read in time is no credit for a burst.
        self.free_s = max(self.free_s, now_s)
        if self._bytes_per_s:
            self.free_s += bytes_read / self._bytes_per_s
