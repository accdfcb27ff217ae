"""Divides a range of ids into requests, so that several are under way and few answers are cut off for their size."""

from __future__ import annotations

from typing import Final

from polonaise.terms import TransactionId

_FILLED: Final = 0.75
"""The fraction of an answer that a part is planned to fill. What does not fit costs another request."""
_GROWTH_MAX: Final = 2
"""The most ids that a part may have, as a multiple of the ids in the last answer: later transactions may be larger."""


class Ahead:
    """Divides the ids from `first` to `last`, both included, into parts that most likely fit into one answer each. An
    answer holds `answer_bytes`; how many ids that is, is learnt from the answers: the first had `ids` of them in `size`
    bytes."""

    def __init__(self, first: TransactionId, last: TransactionId, answer_bytes: int, ids: int, size: int) -> None:
        self._next = first
        self._last = last
        self._answer_bytes = answer_bytes
        self._ids = self._fitting(ids, size)

    def next_part(self, due: TransactionId) -> tuple[TransactionId, TransactionId] | None:
        """Return the first and last id of the next part; None when all are requested. Answers hold whole batches and
        may reach beyond their part: `due` is the id that has to come next."""
        first = max(self._next, due)
        if first > self._last:
            return None
        self._next = min(first + self._ids, self._last + 1)
        return first, self._next - 1

    def answered(self, ids: int, size: int, *, whole: bool) -> None:
        """Learn from an answer that had `ids` ids in `size` bytes; not `whole` if it left some of its part over."""
        # An answer that was cut short says only that fewer fit.
        self._ids = self._fitting(ids, size) if whole else min(self._ids, ids)

    def _fitting(self, ids: int, size: int) -> int:
        return max(min(int(_FILLED * ids * self._answer_bytes) // max(size, 1), _GROWTH_MAX * ids), 1)
