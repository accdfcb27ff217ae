"""Check who owns what, seen from the coordinator: assignments that are written, and servers that own too long."""

from __future__ import annotations

from collections.abc import Sequence

from polonaise.coordination.values import ASSIGNMENT, Assignment, PartitionValue, partition_key
from polonaise.terms import Generation, PartitionId
from polonaise_proving.record.observations import History


class OwnershipCheck:
    """Check each assignment and claim that is written and, with sessions, that no server owns on after its own.

    - An assignment gives each partition an owner. Another owner has a later generation, and
      no generation falls: it tells two owners of a partition apart.
    - No owner claims a partition that one of a later generation has claimed.
    - A server owns nothing any more when its session can have ended, counted from its last contact.
    """

    def __init__(self, history: History, partitions: int) -> None:
        self._history = history
        self._partitions = range(partitions)
        self._before = Assignment()
        self._generations: dict[PartitionId, Generation] = {}

    def written(self, key: str, _: bytes, contents: bytes) -> None:
        """Compare a new assignment at the coordinator with the one before it; other keys do not matter."""
        if key != ASSIGNMENT:
            return
        before, self._before = self._before.owners, Assignment.decode(contents)
        after = self._before.owners
        missing = sorted(set(self._partitions) - after.keys())
        if missing:
            self._history.violated("P11 availability", "an assignment of all partitions", f"one without {missing}")
        for partition, owner in before.items():
            now = after.get(partition, owner)
            if now.generation < owner.generation + (now.server != owner.server):
                self._history.violated(
                    "P11 availability",
                    f"partition {partition} to get a later generation than {owner.generation} of server {owner.server}",
                    f"generation {now.generation} of server {now.server}",
                )

    def claimed(self, partition: PartitionId, _: PartitionValue, value: PartitionValue) -> None:
        """Compare the generation of a partition's new value with the latest before it."""
        latest = self._generations.setdefault(partition, value.generation)
        if value.generation < latest:
            expected = f"owners of {partition_key(partition)} from generation {latest} on"
            self._history.violated("P13 fail-safe", expected, f"one of generation {value.generation} claims it")
        self._generations[partition] = max(latest, value.generation)

    def outlives(self, server: str, owned: Sequence[PartitionId], over_s: float) -> None:
        """Judge what a server owns `over_s` seconds after its session can have ended."""
        if owned:
            self._history.violated(
                "P13 fail-safe",
                f"{server} to own nothing when its session can have ended",
                f"it owns {owned}, {over_s:.3f} s later",
            )
