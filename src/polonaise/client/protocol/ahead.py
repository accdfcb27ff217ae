"""Which parts of a range to ask for next, so that several answers are on their way and none is larger than it may."""

from __future__ import annotations

from typing import Final

from polonaise.terms import TransactionId

_FILLED: Final = 0.75
"""Of an answer: what does not fit costs one more request, in which everything after it waits."""
_GROWTH_MAX: Final = 2
"""A part holds at most so many times the ids of one that was answered: sizes may change on the way."""


class Ahead:
    """Divides the ids from `first` to `last` into parts, each of which most likely fits into one answer.

    An answer holds `answer_bytes`. How many ids that is is learnt from the answers; `ids` of them had `size` bytes in
    the first one.
    """

    def __init__(self, first: TransactionId, last: TransactionId, answer_bytes: int, ids: int, size: int) -> None:
        self._next = first
        self._last = last
        self._answer_bytes = answer_bytes
        self._ids = self._fitting(ids, size)

    def next_part(self, at: TransactionId) -> tuple[TransactionId, TransactionId] | None:
        """The next part to ask for, first and last id; None when all are asked for. `at` is what has to come next.

        Answers hold whole batches, which may reach far beyond what was asked for.
        """
        first = max(self._next, at)
        if first > self._last:
            return None
        self._next = min(first + self._ids, self._last + 1)
        return first, self._next - 1

    def answered(self, ids: int, size: int, *, whole: bool) -> None:
        """An answer brought so many ids in so many bytes; not `whole` if it left some of its part over."""
        self._ids = self._fitting(ids, size) if whole else min(self._ids, ids)

    def _fitting(self, ids: int, size: int) -> int:
        return max(min(int(_FILLED * ids * self._answer_bytes) // max(size, 1), _GROWTH_MAX * ids), 1)
