"""The throttle of catch-up copies: how many bytes may be copied to late replicas, and when.

Copies share disks and network with appends. They may take a share of the time and a number of bytes a second, and slow
down while appends take longer because of them; but never below a least rate, or a late replica would stay late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

_ECHO_S: Final = 0.1
"""Commits within this time after a copy count as disturbed by it: its bytes are still being synced."""
_SLOWER: Final = 0.7
_FASTER: Final = 1.1
_MUCH_FASTER: Final = 2.0
"""The factors of the rate after a copy: one that disturbed appends, one that did not, and one that met none."""
_WEIGHT: Final = 0.3
"""The weight of the latest commits in the latencies that are compared."""
_DISTURBED: Final = 2.0
"""Appends are disturbed when they take more than this many times what they take without copies."""


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """Bounds of copying in the background, for one server."""

    bytes_per_s_max: float
    """The most bytes per second."""
    bytes_per_s_min: float
    """The bytes per second that are copied however slow appends are; at most `bytes_per_s_max`."""
    share: float
    """The share of the time that copies take, above 0 and at most 1, as far as `bytes_per_s_min` leaves time for the
    pauses."""
    latency_s: float
    """Appends that take no longer than this, in seconds, are not disturbed."""


class Commits(NamedTuple):
    """How many batches were committed since some beginning, and the sum of the seconds that they took."""

    batches: int
    total_s: float


class CopyThrottle:
    """Decides when the next bytes may be copied, by the bytes copied before and the latency of appends meanwhile.

    Each copy is announced with `begin`, as soon as `wait_s` is 0, and ended with `end`. Times are monotonic seconds.
    """

    def __init__(self, settings: ThrottleSettings) -> None:
        self._settings = settings
        self.bytes_per_s = settings.bytes_per_s_max
        """The present rate."""
        self.copied_bytes = 0
        self.under_way = 0
        self._bytes_free_s = self._rested_s = self._ended_s = float("-inf")
        self._seen = Commits(0, 0.0)
        self._met_appends = False
        self._undisturbed_s: float | None = None
        self._disturbed_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next copy may begin; 0 for now."""
        return max(0.0, self._bytes_free_s - now_s, self._rested_s - now_s)

    def begin(self, now_s: float, size: int, commits: Commits) -> None:
        self._learn(commits, disturbed=bool(self.under_way) or now_s < self._ended_s + _ECHO_S)
        self.under_way += 1
        # Taken for all of `size` now, so that copies side by side keep to the rate; `end` gives back what is left.
        self._bytes_free_s = max(self._bytes_free_s, now_s) + size / self.bytes_per_s

    def end(self, now_s: float, size: int, copied: int, worked_s: float, commits: Commits) -> None:
        """Note that a copy announced with `size` ended after `worked_s` seconds, with `copied` bytes (0: it failed)."""
        self._bytes_free_s -= (size - copied) / self.bytes_per_s
        if copied:
            # Copies that run side by side share what each must rest. And a disk so slow that even the least rate takes
            # more than the share is not rested for any longer: the least rate is a promise, of work and rest together.
            rest_s = worked_s * (1 / self._settings.share - 1) / self.under_way
            rest_s = min(rest_s, max(0.0, copied / self._settings.bytes_per_s_min - worked_s))
            self._rested_s = max(self._rested_s, now_s) + rest_s
        self.under_way -= 1
        self.copied_bytes += copied
        self._ended_s = now_s
        self._learn(commits, disturbed=True)
        self._adapt()

    def _learn(self, commits: Commits, *, disturbed: bool) -> None:
        """Take in what was committed since the last call: during or just after copies (`disturbed`), or without."""
        count, seen = commits.batches - self._seen.batches, self._seen
        self._seen = commits
        if count <= 0:
            return
        latency_s = (commits.total_s - seen.total_s) / count
        if disturbed:
            self._met_appends = True
            self._disturbed_s = _mean(self._disturbed_s, latency_s)
        else:
            self._undisturbed_s = _mean(self._undisturbed_s, latency_s)

    def _adapt(self) -> None:
        settings = self._settings
        if not self._met_appends:
            factor = _MUCH_FASTER  # there was nobody to be disturbed
        else:
            bearable_s = max(settings.latency_s, _DISTURBED * (self._undisturbed_s or 0.0))
            factor = _SLOWER if (self._disturbed_s or 0.0) > bearable_s else _FASTER
        self._met_appends = False
        rate = min(self.bytes_per_s * factor, settings.bytes_per_s_max)
        self.bytes_per_s = max(rate, settings.bytes_per_s_min)


class CopyProgress:
    """Tells whether a late replica comes nearer to the end of the log, or falls behind for ever."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._since_s = 0.0
        self.lost = False
        """What `falls_behind` said last."""

    def falls_behind(self, missing: int, now_s: float, patience_s: float) -> bool:
        """Note how many transactions the replica lacks now; return whether that got no less for `patience_s` seconds.

        The time between two calls counts, as a copy may wait for its turn: take a new object for a node that was away.
        """
        if self._least is None or missing < self._least:
            self._least, self._since_s = missing, now_s
        self.lost = now_s - self._since_s > patience_s
        return self.lost


def _mean(before: float | None, latest: float) -> float:
    return latest if before is None else (1 - _WEIGHT) * before + _WEIGHT * latest
