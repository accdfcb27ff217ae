"""The queue in which a server's partitions wait to start a session: a few at a time, the wanted ones first.

A server may come to own thousands of partitions at one moment. Started all at once, each of their sessions would wait
for all the others, past every deadline; so they take turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

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
