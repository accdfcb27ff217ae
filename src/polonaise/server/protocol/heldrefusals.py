"""The refusals that can't be told yet, because they rest on appends that are not decided."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from polonaise.server.protocol.order import Refusal
from polonaise.terms import TransactionId

_COUNT_MAX: Final = 100_000
"""With so many held, no further append is judged until some were told. The last frame judged may bring more."""
_ALL: Final = 2**63


class HeldRefusals:
    """Keeps refusals by the id that each rests on; those of one id stay in the order they were made."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[TransactionId, int, Refusal]] = []
        self._added = 0

    @property
    def is_full(self) -> bool:
        return len(self._heap) >= _COUNT_MAX

    def add(self, refusal: Refusal) -> None:
        self._added += 1
        heappush(self._heap, (refusal.rests_on, self._added, refusal))

    def drop_above(self, sent: TransactionId) -> None:
        """Forget the refusals that rest on ids above `sent`: their appends are judged anew."""
        self._heap = [held for held in self._heap if held[0] <= sent]
        heapify(self._heap)

    def take(self, decided: TransactionId = _ALL) -> Iterator[Refusal]:
        """Yield and forget the refusals that rest on ids up to `decided`; without an id, all of them."""
        while self._heap and self._heap[0][0] <= decided:
            yield heappop(self._heap)[2]
