"""The partitions that a server owns: those that the assignment gives it, as long as it may own anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import TypeAlias

from polonaise.coordination.values import Assignment
from polonaise.errors import NotOwner
from polonaise.server.assignment import owned_by
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.servedpartition import ServedPartition
from polonaise.terms import PartitionId, ServerId

Serve: TypeAlias = Callable[[PartitionId, int], ServedPartition]
"""Makes the shell of a partition, which starts sessions at once, given its number and the generation of its owner."""


class OwnedPartitions:
    """Serves the partitions that the followed assignment gives this server, and no others."""

    def __init__(self, server: ServerId) -> None:
        self._server = server
        self.served: dict[PartitionId, ServedPartition] = {}
        """Also those that have stopped by themselves."""
        self.assigned: frozenset[PartitionId] = frozenset()
        """What the assignment that was followed last gave this server."""
        self.followed = False
        """Whether the server serves what an assignment gives it: False before it has read one, once it closes, and
        while its registration may have run out."""
        self._past: Counter[str] = Counter()

    @property
    def past_totals(self) -> Counter[str]:
        """The totals of the partitions that are not in `served` any more: a copy."""
        return Counter(self._past)

    @property
    def readers(self) -> dict[PartitionId, PartitionReader]:
        return {partition: served.reader for partition, served in self.served.items()}

    @property
    def owners(self) -> list[PartitionOwner]:
        """By the partitions' numbers."""
        return [served.owner for _, served in sorted(self.served.items())]

    def follow(self, assignment: Assignment, serve: Serve) -> None:
        """Serve the partitions that the assignment gives this server, and no others."""
        mine = owned_by(assignment, self._server)
        self.assigned = frozenset(mine)
        for partition, served in list(self.served.items()):
            # Another generation is another owner, even on the same server: it has to start a session of its own.
            if partition not in mine or mine[partition].generation != served.generation:
                self._drop(partition, f"partition {partition} has another owner now: read the assignment again")
        for partition, owned in sorted(mine.items(), key=itemgetter(0)):
            if partition not in self.served:
                self.served[partition] = serve(partition, owned.generation)
        self.followed = True

    def follow_requirement(self) -> None:
        """Have each partition act by the requirement and the zones that were just read."""
        for served in list(self.served.values()):
            served.follow_requirement()

    def stop_owning(self, reason: str) -> None:
        """Own nothing any more, because others may own it by now."""
        self.followed = False
        for partition in list(self.served):
            self._drop(partition, f"partition {partition}: {reason}")

    def _drop(self, partition: PartitionId, reason: str) -> None:
        served = self.served[partition]
        served.close(NotOwner(reason))
        del self.served[partition]
        self._past.update(served.totals())
