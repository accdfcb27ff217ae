"""The choice of the partitions that get each tick of a server: unused ones cost next to nothing, however many."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from polonaise.terms import PartitionId

_AT_REST_MAX: Final = 2
"""The most partitions at rest that one tick reaches, in turn; each then sees whether its pulse is due."""


class Ticks:
    """Chooses the partitions for each tick: all that have something under way, and a few of the others in turn."""

    def __init__(self) -> None:
        self._busy: dict[PartitionId, None] = {}
        self._round: Iterator[PartitionId] = iter(())

    def busy(self, partition: PartitionId) -> None:
        """Note that something begins in this partition which may have a deadline."""
        self._busy[partition] = None

    def due(self, partitions: Collection[PartitionId]) -> list[PartitionId]:
        """Return those of `partitions` that get a tick now. If one is still busy afterwards, call `busy` again."""
        busy, self._busy = self._busy, {}  # each has to be named anew, so that one at rest costs nothing
        at_rest: list[PartitionId] = []
        for _ in range(_AT_REST_MAX):
            partition = next(self._round, None)
            if partition is None:  # the round is over: the next one begins with the next tick
                self._round = iter(list(partitions))
                break
            if partition not in busy and partition in partitions:
                at_rest.append(partition)
        return [partition for partition in busy if partition in partitions] + at_rest
