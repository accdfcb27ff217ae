"""The rule for commits: acknowledgements of the engaged replicas are counted against a quorum of the members."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from polonaise.errors import invariant
from polonaise.server.protocol.recovery import quorum
from polonaise.terms import StorageId


class Acknowledgements:
    """Counts what the replicas engaged in one session have synced. Nothing else ever decides a commit.

    Everything sent in a session (batches and barriers) is numbered 1, 2, 3, … in one order that is the same for all
    replicas; to acknowledge a number is to acknowledge all before it.
    """

    __slots__ = ("_needed", "_synced", "committed")

    def __init__(self, members: Collection[StorageId], engaged: Iterable[StorageId]) -> None:
        # Of the members, not of the engaged: any two quorums of the same members meet, and recovery relies on that.
        self._needed = quorum(members)
        self._synced: dict[StorageId, int] = dict.fromkeys(engaged, 0)
        invariant(len(self._synced) >= self._needed, "a session is engaged on a quorum")
        self.committed = 0
        """The highest number that a quorum has synced."""

    def acknowledge(self, name: StorageId, number: int) -> bool:
        """Count an acknowledgement; return whether it commits anything. A replica that is not engaged does not count.

        The coordinator does not name such a replica as engaged, so the next session start does not go by what it holds.
        """
        if name not in self._synced or number <= self._synced[name]:
            return False
        self._synced[name] = number
        # The highest number that at least `_needed` replicas have reached.
        committed = sorted(self._synced.values(), reverse=True)[self._needed - 1]
        if committed <= self.committed:
            return False
        self.committed = committed
        return True

    def synced(self, name: StorageId) -> int:
        """Return the highest number that an engaged replica has acknowledged; 0 for none."""
        return self._synced[name]
