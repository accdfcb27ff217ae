"""Which partitions of a server are told the time: what nobody uses costs nothing, however many there are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from polonaise.terms import PartitionId

_AT_REST_MAX: Final = 2
"""Partitions at rest that are told the time at once: each has its turn, in which it may see that its pulse is due."""


class Ticks:
    """Those with something under way are told the time whenever it is told; the others a few at a time, in turn."""

    def __init__(self) -> None:
        self._busy: dict[PartitionId, None] = {}
        self._round: Iterator[PartitionId] = iter(())

    def busy(self, partition: PartitionId) -> None:
        """Something begins there that may have a deadline."""
        self._busy[partition] = None

    def due(self, partitions: Collection[PartitionId]) -> list[PartitionId]:
        """The partitions among these that get a tick now; one with something still under way says `busy` again."""
        busy, self._busy = self._busy, {}
        at_rest: list[PartitionId] = []
        for _ in range(_AT_REST_MAX):
            partition = next(self._round, None)
            if partition is None:  # the round is over: the next one begins with the next tick
                self._round = iter(list(partitions))
                break
            if partition not in busy and partition in partitions:
                at_rest.append(partition)
        return [partition for partition in busy if partition in partitions] + at_rest
