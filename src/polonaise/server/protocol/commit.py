"""The rule for commits: engaged replicas acknowledge, which have to be a quorum and the copies and zones required."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from polonaise.coordination.values import Requirement
from polonaise.errors import invariant
from polonaise.server.protocol.recovery import quorum
from polonaise.terms import StorageId


class Acknowledgements:
    """Counts what the replicas engaged in one session have synced, which alone decides a commit.

    The messages of a session (batches and barriers) are numbered 1, 2, 3, … in one order that is the same for all
    replicas; to acknowledge a number is to acknowledge all before it.
    """

    __slots__ = ("_needed", "_required", "_synced", "committed")

    def __init__(
        self, members: Collection[StorageId], engaged: Iterable[StorageId], required: Requirement | None = None
    ) -> None:
        # Of the members, not of the engaged: any two quorums of the same members meet, and recovery relies on that.
        self._needed = quorum(members)
        self._synced: dict[StorageId, int] = dict.fromkeys(engaged, 0)
        invariant(len(self._synced) >= self._needed, "a session is engaged on a quorum")
        self._required = required
        if required is not None:
            self._needed = max(self._needed, required.copies)
            invariant(not required.lack_of(self._synced), "a session is engaged on the copies and zones required")
        self.committed = 0
        """The highest number that a quorum has synced, and as many copies and zones as are required."""

    def acknowledge(self, name: StorageId, number: int) -> bool:
        """Count an acknowledgement; return whether it commits anything. A replica that is not engaged does not count.

        The coordinator does not name such a replica as engaged, so the next session start does not go by what it holds.
        """
        if name not in self._synced or number <= self._synced[name]:
            return False
        self._synced[name] = number
        # The highest number that at least `_needed` replicas have reached.
        committed = sorted(self._synced.values(), reverse=True)[self._needed - 1]
        if self._required is not None and self._required.zones:
            committed = min(committed, self._on_zones(self._required))
        if committed <= self.committed:
            return False
        self.committed = committed
        return True

    def _on_zones(self, required: Requirement) -> int:
        best: dict[str, int] = {}
        for name, synced in self._synced.items():
            zone = required.zone_of.get(name)
            if zone is not None:
                best[zone] = max(best.get(zone, 0), synced)
        return sorted(best.values(), reverse=True)[required.zones - 1]

    def synced(self, name: StorageId) -> int:
        """Return the highest number that an engaged replica has acknowledged; 0 for none."""
        return self._synced[name]


def losses_that_stop(
    members: Collection[StorageId], engaged: Collection[StorageId], required: Requirement | None
) -> list[StorageId]:
    """Return the engaged replicas each of which is needed: without it nothing could be committed."""
    return [name for name in engaged if stops(members, [other for other in engaged if other != name], required)]


def zones_that_stop(
    members: Collection[StorageId],
    engaged: Collection[StorageId],
    required: Requirement | None,
    zone_of: Mapping[StorageId, str],
) -> list[str]:
    """Return the zones each of which is needed as a whole: without it nothing could be committed."""
    zones = sorted({zone_of[name] for name in engaged if name in zone_of})
    return [zone for zone in zones if stops(members, [name for name in engaged if zone_of.get(name) != zone], required)]


def stops(members: Collection[StorageId], left: Collection[StorageId], required: Requirement | None) -> bool:
    """Return whether nothing could be committed if only these replicas are left of the members."""
    return len(left) < quorum(members) or (required is not None and bool(required.lack_of(left)))
