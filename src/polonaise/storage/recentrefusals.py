"""What a storage node has refused lately, for its log and its health: strangers, and what found no room."""

from __future__ import annotations

import logging
from typing import Final

from polonaise.errors import DiskFull, PolonaiseError
from polonaise.host import Clock

_log = logging.getLogger(__name__)

_TOLD_S: Final = 60.0
"""For how many seconds a refusal counts as present trouble, as servers try again every few seconds; and the least time
between two lines about strangers in the log, as anybody may connect as often as they like."""


class Strangers:
    """The servers of other clusters that a storage node has refused lately.

    A refused server says so in its own log, but the mistake is as likely on this side: the node may run on the disk of
    another cluster, and would else look well.
    """

    def __init__(self, clock: Clock, directory: str) -> None:
        self._clock = clock
        self._directory = directory
        self._last = ""
        self._last_s = float("-inf")
        self._logged_s = float("-inf")

    def refused(self, name: str, address: str) -> None:
        """Take note of a server that was refused, and log it unless a refusal was logged just before."""
        self._last = f"{name} at {address}" if address else name
        self._last_s = self._clock.monotonic_s()
        if self._last_s - self._logged_s >= _TOLD_S:
            self._logged_s = self._last_s
            _log.warning("storage node %s: %s", self._directory, self)

    def __str__(self) -> str:
        """Return which server was refused lately, and what to do; empty if none was."""
        if self._clock.monotonic_s() - self._last_s >= _TOLD_S:
            return ""
        return (
            f"{self._last} was refused, because this directory belongs to another cluster than that server: correct "
            "the node's directory, or the address by which the server finds the node. If the server belongs to a "
            "cluster that was made in the place of this one, its coordinator has lost this one's values, or is another "
            f"one's: stop that server, and bring them back (polonaise cluster recover). Keep the directory: it may "
            "be the only copy of a log"
        )


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
