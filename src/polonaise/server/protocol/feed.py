"""Who is fed what: the tail of the log in memory, and each subscription's place and credit."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from polonaise.log.batch import Batch
from polonaise.terms import BodyForm, TransactionId


class Committed(NamedTuple):
    """A committed batch as it lies in the cache."""

    first: TransactionId
    last: TransactionId
    raw: bytes


class TailCache:
    """The most recent committed batches, bounded in bytes; without gaps up to the committed high-water mark.

    Only commits enter it. What laggards read from the replicas goes past it, so that they never push out the tail
    that everybody else is fed from.
    """

    __slots__ = ("_batches", "_bytes", "_bytes_max", "_firsts", "_start")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._firsts: list[TransactionId] = []
        self._batches: list[Committed] = []
        self._start = 0

    def add(self, batch: Committed) -> None:
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self._bytes += len(batch.raw)
        start = self._start
        while self._bytes > self._bytes_max and start < len(self._batches) - 1:
            self._bytes -= len(self._batches[start].raw)
            self._batches[start] = _GONE
            start += 1
        self._start = start
        if start > 1024 and start > len(self._batches) // 2:
            del self._firsts[:start], self._batches[:start]
            self._start = 0

    def holding(self, transaction: TransactionId) -> Committed | None:
        """The batch that holds this id, if it is still here."""
        position = bisect_right(self._firsts, transaction, lo=self._start) - 1
        if position < self._start:
            return None
        batch = self._batches[position]
        return batch if batch.last >= transaction else None

    def clear(self) -> None:
        self._firsts.clear()
        self._batches.clear()
        self._bytes = self._start = 0


_GONE = Committed(-1, -1, b"")


class MountFeed:
    """One mount's feed: where it is, how much more it may be sent, in which form.

    Ids are fed strictly in order and without gaps from the client's high-water mark on.
    """

    __slots__ = ("_filter_mask", "_filter_value", "_form", "credit", "next_id")

    def __init__(
        self, client_high_water_mark: TransactionId, form: BodyForm, credit: int, filter_mask: int, filter_value: int
    ) -> None:
        self.next_id = client_high_water_mark + 1
        self.credit = credit
        self._form = form
        self._filter_mask = filter_mask
        self._filter_value = filter_value & filter_mask

    @property
    def has_credit(self) -> bool:
        return self.credit > 0

    def take(self, batch: Committed) -> bytes:
        """The bytes to send for this batch, which holds the next id; moves on behind it and pays for it."""
        payload = batch.raw if self._form is BodyForm.INLINE else self._reduced(batch)
        self.next_id = batch.last + 1
        self.credit -= len(payload)
        return payload

    def _reduced(self, batch: Committed) -> bytes:
        parsed = Batch(memoryview(batch.raw))
        if self._form is BodyForm.FILTERED:
            mask, value = self._filter_mask, self._filter_value
            if any(header & mask == value for header in parsed.headers.tolist()):
                return batch.raw
        return parsed.without_data()
