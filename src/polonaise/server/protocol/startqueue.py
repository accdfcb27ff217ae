"""Which partitions of a server may start a session now: so many at a time, those that somebody waits for first.

A server may come to own thousands of partitions at one moment. To start all their sessions at once would let each wait
for all the others, past every deadline; so they take turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

_UNWANTED_EVERY: Final = 4
"""One turn of so many is for a partition that nobody waits for: those that are wanted, and fail, may be many."""


class StartQueue:
    """The partitions that start a session, and those that wait for their turn, in the order in which they came."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        self._under_way: set[Hashable] = set()
        self._wanted: OrderedDict[Hashable, None] = OrderedDict()
        self._others: OrderedDict[Hashable, None] = OrderedDict()
        self._turns = 0

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._wanted) + len(self._others)

    def ask(self, partition: Hashable, *, wanted: bool) -> None:
        """It wants to start a session; `wanted` if somebody waits for that."""
        (self._wanted if wanted else self._others)[partition] = None

    def want(self, partition: Hashable) -> None:
        """Somebody waits for this one now; no news unless it waits for its turn."""
        if partition in self._others:
            del self._others[partition]
            self._wanted[partition] = None

    def leave(self, partition: Hashable) -> None:
        """Its turn is over, or it waits for it no more."""
        self._under_way.discard(partition)
        self._wanted.pop(partition, None)
        self._others.pop(partition, None)

    def next(self) -> Hashable | None:
        """The next one whose turn it is, if there is room for another; to be called until there is none."""
        if len(self._under_way) >= self._at_once_max or not len(self):
            return None
        self._turns += 1
        unwanted = not self._wanted or (self._others and self._turns % _UNWANTED_EVERY == 0)
        partition, _ = (self._others if unwanted else self._wanted).popitem(last=False)
        self._under_way.add(partition)
        return partition
