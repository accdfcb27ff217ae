"""Note what a storage node has refused lately because its disk had no room for it, for its health."""

from __future__ import annotations

from typing import Final

from polonaise.errors import DiskFull, PolonaiseError
from polonaise.host import Clock

_TOLD_S: Final = 60.0
"""For how many seconds a refusal counts as present trouble: servers try again every few seconds while there is
something to store."""


class NoRoom:
    """The last refusal of a storage node for want of room on its disk.

    The free bytes of the disk don't tell all: a quota may be used up, a file may have reached the limit of its process,
    or a batch may be larger than what is left.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""
        self._last_s = float("-inf")

    def note(self, error: PolonaiseError) -> None:
        """Take note of a refusal, if it is one for want of room."""
        if isinstance(error, DiskFull):
            self._last, self._last_s = error.text, self._clock.monotonic_s()

    def __str__(self) -> str:
        """Return what found no room within the last minute; empty if nothing did."""
        return self._last if self._clock.monotonic_s() - self._last_s < _TOLD_S else ""
