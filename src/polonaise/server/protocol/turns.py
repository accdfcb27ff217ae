"""The turns of a server's many partitions: which of them get each tick, and which may start a session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
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


_UNWANTED_EVERY: Final = 4
"""One turn in so many is for a partition that no client waits for: wanted ones that fail again and again would keep the
others from ever starting."""


class StartQueue:
    """Decides which partition may start a session next, at most `at_once_max` at the same time."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        self._under_way: set[Hashable] = set()
        self._wanted: OrderedDict[Hashable, None] = OrderedDict()
        self._others: OrderedDict[Hashable, None] = OrderedDict()
        self._turns = 0

    def __len__(self) -> int:
        """Return how many partitions wait for their turn."""
        return len(self._wanted) + len(self._others)

    def ask(self, partition: Hashable, *, wanted: bool) -> None:
        (self._wanted if wanted else self._others)[partition] = None

    def want(self, partition: Hashable) -> None:
        """Note that a client waits for this partition, if it is queued."""
        if partition in self._others:
            del self._others[partition]
            self._wanted[partition] = None

    def leave(self, partition: Hashable) -> None:
        """Take a partition out, queued or under way."""
        self._under_way.discard(partition)
        self._wanted.pop(partition, None)
        self._others.pop(partition, None)

    def next(self) -> Hashable | None:
        """Return the partition whose turn begins now; None if none waits, or if `at_once_max` turns are under way."""
        if len(self._under_way) >= self._at_once_max or not len(self):
            return None
        self._turns += 1
        unwanted = not self._wanted or (self._others and self._turns % _UNWANTED_EVERY == 0)
        partition, _ = (self._others if unwanted else self._wanted).popitem(last=False)
        self._under_way.add(partition)
        return partition
