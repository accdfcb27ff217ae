"""The cache of recent batches that the mounts of a partition are fed from, unless they lag."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from polonaise.terms import TransactionId


class Committed(NamedTuple):
    """A committed batch, as it is cached and fed."""

    first: TransactionId
    last: TransactionId
    raw: bytes


class TailCache:
    """Caches the most recent committed batches, bounded in bytes, without a gap up to the mark; what lagging mounts
    read from replicas stays out.
    """

    __slots__ = ("_batches", "_bytes_max", "_firsts", "_start", "bytes", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        """How often an id was older than all that is held."""
        self._firsts: list[TransactionId] = []
        self._batches: list[Committed] = []
        self._start = 0

    def add(self, batch: Committed) -> None:
        """Add a batch that follows on the last one; drop the oldest ones above the bound."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self.bytes += len(batch.raw)
        start = self._start
        while self.bytes > self._bytes_max and start < len(self._batches) - 1:
            self.bytes -= len(self._batches[start].raw)
            self._batches[start] = _GONE
            start += 1
        self._start = start
        # The lists are cut now and then only: cutting them at each commit would move all that is left.
        if start > 1024 and start > len(self._batches) // 2:
            del self._firsts[:start], self._batches[:start]
            self._start = 0

    def holding(self, transaction: TransactionId) -> Committed | None:
        """Return the batch that holds this id; None if the cache lacks it."""
        position = bisect_right(self._firsts, transaction, lo=self._start) - 1
        if position < self._start:
            self.misses += 1
            return None
        batch = self._batches[position]
        if batch.last < transaction:
            return None
        self.hits += 1
        return batch

    def clear(self) -> None:
        self._firsts.clear()
        self._batches.clear()
        self.bytes = self._start = 0


_GONE = Committed(-1, -1, b"")
