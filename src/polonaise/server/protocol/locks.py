"""Optimistic locks: for any lock, an estimate of the last transaction that raised it, never below the truth.

A table of fixed size in which every lock has three places; raising writes its id to all three, and the smallest of
the three is the estimate: another lock can only push it up. So a stale transaction is never let in, and a fresh one is
refused only when all three of its places were raised by others (seed 003, "Concurrency Control").
"""

from __future__ import annotations

from array import array
from typing import Final

from polonaise.terms import TransactionId

DEFAULT_ENTRIES: Final = 1 << 20
_ODD: Final = 0x9E3779B97F4A7C15
_LOW: Final = 0xFFFFFFFF


class LockTable:
    """The locks of one partition in one session.

    Every entry starts at the high-water mark of the session's start: what was raised before is unknown, so everything
    up to there counts as raised.
    """

    __slots__ = ("_entries", "_size")

    def __init__(self, start: TransactionId, entries: int = DEFAULT_ENTRIES) -> None:
        self._entries = array("q", (start,)) * entries
        self._size = entries

    def _places(self, lock: int) -> tuple[int, int, int]:
        """Three places from two independent halves of the (mixed) hash; right for any size, powers of two included.

        The third steps from both halves, multiplied once more: sums of the halves alone are not independent of them.
        """
        mixed = (lock ^ (lock >> 32)) * _ODD
        a, b = mixed & _LOW, (mixed >> 32) & _LOW
        c = ((a ^ (b >> 7)) * 0x85EBCA77 + b * 0xC2B2AE3D) >> 11 & _LOW
        size = self._size
        return a * size >> 32, b * size >> 32, c * size >> 32

    def estimate(self, lock: int) -> TransactionId:
        """The highest id that may have raised this lock."""
        entries = self._entries
        i, j, k = self._places(lock)
        return min(entries[i], entries[j], entries[k])

    def pass_write(self, lock: int, client_high_water_mark: TransactionId, transaction: TransactionId) -> TransactionId:
        """`estimate`, and at once `raise_to` unless that is above the client's mark: the common case in one step."""
        entries = self._entries
        i, j, k = self._places(lock)
        estimate = min(entries[i], entries[j], entries[k])
        if estimate <= client_high_water_mark:
            entries[i] = entries[j] = entries[k] = transaction
        return estimate

    def raise_to(self, lock: int, transaction: TransactionId) -> None:
        """`transaction` changes what is behind this lock. Ids only rise."""
        entries = self._entries
        i, j, k = self._places(lock)
        entries[i] = entries[j] = entries[k] = transaction
