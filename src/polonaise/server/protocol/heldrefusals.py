"""Refusals that rest on appends that are not decided yet."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from polonaise.server.protocol.order import Refusal
from polonaise.terms import TransactionId

_COUNT_MAX: Final = 100_000
_ALL: Final = 2**63


class HeldRefusals:
    """Refusals by the id that each rests on; those that rest on the same one stay in the order they were made in."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[TransactionId, int, Refusal]] = []
        self._added = 0

    @property
    def is_full(self) -> bool:
        """Whether so many wait that nothing is to be judged until some of them are told."""
        return len(self._heap) >= _COUNT_MAX

    def add(self, refusal: Refusal) -> None:
        self._added += 1
        heappush(self._heap, (refusal.rests_on, self._added, refusal))

    def take(self, decided: TransactionId = _ALL) -> Iterator[Refusal]:
        """The refusals that rest on this id or one before it; without one, all. What is taken is held no more."""
        while self._heap and self._heap[0][0] <= decided:
            yield heappop(self._heap)[2]
