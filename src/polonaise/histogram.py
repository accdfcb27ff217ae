"""A histogram of durations: plain counts, which any part of a node may keep, and which are read on request."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper bounds of the buckets, inclusive, in seconds: from a quick disk's sync to the deadline of an append.

One more bucket takes what is above the last."""


class Histogram:
    """Counts of durations by bucket, and their sum. Each costs a search among few bounds and two additions."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """The number of durations in each bucket alone: those of lower buckets are not included."""
        self.total = 0.0
        """The sum of all durations, in seconds."""

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds
