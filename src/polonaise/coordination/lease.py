"""Leases of members: whether a member still works, judged by observers, and for how long, judged by the member."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, NamedTuple

from polonaise.terms import ServerId

LEASE_S: Final = 5.0
"""For so long a member may renew nothing before it counts as gone, whatever its process does."""
RENEW_S: Final = LEASE_S / 4
"""The longest time between two renewals: some of them may fail or come late."""
_MARGIN: Final = 0.05
"""By this share of its time a member stops earlier: clocks and timers are not exact."""


class _Seen(NamedTuple):
    """The last beat of a member that was seen, when that was looked at last, and for how long it was the same."""

    beat: int
    looked_s: float
    same_s: float


class Leases:
    """Judges members by their beats: a number that changes whenever the member renews its lease. Time counts only while
    this process keeps looking, and of the time since its last look no more than `RENEW_S`: after it was itself stopped,
    it takes nobody for dead at once."""

    def __init__(self) -> None:
        self._seen: dict[ServerId, _Seen] = {}

    def has_run_out(self, server: ServerId, beat: int, now_s: float) -> bool:
        """Whether the member with this latest beat has renewed nothing for the time of a lease."""
        seen = self._seen.get(server)
        if seen is None or seen.beat != beat:
            self._seen[server] = _Seen(beat, now_s, 0.0)
            return False
        same_s = seen.same_s + min(now_s - seen.looked_s, RENEW_S)
        self._seen[server] = _Seen(beat, now_s, same_s)
        return same_s >= LEASE_S

    def keep_only(self, servers: Collection[ServerId]) -> None:
        self._seen = {server: seen for server, seen in self._seen.items() if server in servers}


class Tenure:
    """Decides until when a member may count itself among the members: it ends before others can take it for gone.
    Others count from the moment at which a renewal reaches the coordinator. The member counts from the beginning of its
    request, and needs no word of the coordinator to know when to stop. All times are monotonic."""

    def __init__(self) -> None:
        self.until_s = -inf
        """`-inf` before the first renewal, and `inf` if it holds for as long as the process lives."""

    def renewed(self, began_s: float, holds_s: float) -> None:
        """Note a renewal that succeeded, and began at `began_s`, of a name that holds for `holds_s` after it."""
        self.until_s = max(self.until_s, began_s + holds_s * (1 - _MARGIN))

    def holds(self, now_s: float) -> bool:
        """Whether the member still counts among the members, whatever has happened at the coordinator."""
        return now_s < self.until_s


def renew_every_s(holds_s: float) -> float:
    """Return the interval at which a name that holds for so long is renewed."""
    return min(RENEW_S, holds_s / 4)
