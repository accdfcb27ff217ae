"""What a server tells of the partitions that it has given up: why, and only as long as nobody serves them.

Which these are, `protocol.givingup` decides. Other servers are told of each for a while longer, so that none comes back
too early; people are not, once it is well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.server.coordinatortrouble import answered_within
from polonaise.terms import PartitionId, ServerId

if TYPE_CHECKING:
    from polonaise.server.servedpartition import ServedPartition


def is_served_by_another(partition: PartitionId, value: PartitionValue, assignment: Assignment, own: ServerId) -> bool:
    """Whether another server than `own` has the partition, by the assignment, and its last session has begun."""
    owner = assignment.owner_of(partition)
    if owner is None or owner.server == own or owner.generation != value.generation:
        return False
    return any(each.session == value.session for each in value.engagements.values())


class GivenUpPartitions:
    """Keeps why each partition was given up, and looks at the coordinator who serves it since."""

    def __init__(
        self, host: Host, coordinator: Coordinator, answer_s: float, served: Mapping[PartitionId, ServedPartition]
    ) -> None:
        """`served` are the partitions owned at present; the coordinator has `answer_s` seconds."""
        self._host = host
        self._coordinator = coordinator
        self._answer_s = answer_s
        self._served = served
        self._why: dict[PartitionId, str] = {}
        self._elsewhere: frozenset[PartitionId] = frozenset()
        """Served by another server, at the last look."""
        self._looking: asyncio.Task[None] | None = None

    def note(self, given_up: frozenset[PartitionId], unfit: str, own: ServerId) -> None:
        """Note, once a second, what is given up. `unfit`: why the server can serve none at all, if so."""
        why, now_s = self._why, self._host.clock.monotonic_s()
        self._why = {partition: why.get(partition, unfit) for partition in given_up}
        for partition in given_up & self._served.keys():
            owner = self._served[partition].owner
            if owner.stopped is None and (why_not := owner.readiness.trouble(now_s) or owner.readiness.waits_for):
                self._why[partition] = why_not
        others = given_up - self._served.keys()
        self._elsewhere &= others
        if others and (self._looking is None or self._looking.done()):
            self._looking = self._host.spawn(self._look(others, own), "who serves what was given up")

    async def _look(self, partitions: frozenset[PartitionId], own: ServerId) -> None:
        """Look which of these another server serves; without an answer what was seen before counts."""
        try:
            async with answered_within(self._answer_s, self._coordinator):
                assignment = (await self._coordinator.assignment()).value
            elsewhere = set()
            for partition in sorted(partitions):
                async with answered_within(self._answer_s, self._coordinator):
                    value = (await self._coordinator.partition(partition)).value
                if is_served_by_another(partition, value, assignment, own):
                    elsewhere.add(partition)
            self._elsewhere = frozenset(elsewhere)
        except PolonaiseError:
            pass

    def told(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, str]:
        """Return why each of these partitions was given up, without those that another server serves."""
        return {each: self._why.get(each, "") for each in partitions if each not in self._elsewhere}
