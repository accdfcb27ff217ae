"""Optimistic locks: for any lock, an estimate of the last transaction that raised it, never below the truth.

A table of fixed size in which every lock has three places; raising writes its id to all three, and the smallest of
the three is the estimate: another lock can only push it up. So a stale transaction is never let in, and a fresh one is
refused only when all three of its places were raised by others (seed 003, "Concurrency Control").
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from math import gcd
from typing import Final

from polonaise.terms import NO_TRANSACTION, LockMode, TransactionId

DEFAULT_ENTRIES: Final = 1 << 20
_ODD: Final = 0x9E3779B97F4A7C15
_64_BITS: Final = (1 << 64) - 1
_READ: Final = int(LockMode.READ)
_WRITE: Final = int(LockMode.WRITE)
_APPEND: Final = int(LockMode.APPEND)


class LockTable:
    """The locks of one partition in one session.

    Every entry starts at the high-water mark of the session's start: what was raised before is unknown, so everything
    up to there counts as raised.
    """

    __slots__ = ("_entries", "_moduli")

    def __init__(self, start: TransactionId, entries: int = DEFAULT_ENTRIES) -> None:
        self._entries = array("q", (start,)) * entries
        self._moduli = _without_common_factors(entries)

    def _places(self, lock: int) -> tuple[int, int, int]:
        """Three places: the remainders of the (mixed) hash by numbers without common factors.

        By the Chinese remainder theorem one remainder says nothing about the others, as long as the numbers' product
        is not above 2^64. Mixed, so that hashes with a pattern make no pattern in the table.
        """
        one, two, three = self._moduli
        mixed = lock * _ODD & _64_BITS
        mixed ^= mixed >> 32
        return mixed % one, mixed % two, mixed % three

    def estimate(self, lock: int) -> TransactionId:
        """The highest id that may have raised this lock."""
        entries = self._entries
        i, j, k = self._places(lock)
        return min(entries[i], entries[j], entries[k])

    def estimate_of(self, locks: Sequence[int], modes: bytes) -> TransactionId:
        """The highest estimate among the locks that are checked; that of an empty log if none is."""
        checked = [self.estimate(lock) for lock, mode in zip(locks, modes, strict=True) if mode != _APPEND]
        return max(checked, default=NO_TRANSACTION)

    def raise_to(self, lock: int, transaction: TransactionId) -> None:
        """`transaction` changes what is behind this lock. Ids only rise."""
        entries = self._entries
        i, j, k = self._places(lock)
        entries[i] = entries[j] = entries[k] = transaction

    def raise_all(self, locks: Sequence[int], modes: bytes, transaction: TransactionId) -> None:
        """`transaction` changes what is behind those of its locks that are not for reading."""
        for lock, mode in zip(locks, modes, strict=True):
            if mode != _READ:
                self.raise_to(lock, transaction)

    def pass_each(
        self,
        locks: Sequence[int],
        modes: bytes,
        ends: Sequence[int],
        marks: Sequence[TransactionId],
        first: TransactionId,
    ) -> list[tuple[int, TransactionId]]:
        """Let transactions in, one after the other; the place and the estimate of each that was refused.

        The locks of each end at its place in `ends`. It passes, takes the next id from `first` on and raises its locks
        if none that is checked was raised above its client high-water mark.
        """
        entries = self._entries
        one, two, three = self._moduli
        refused: list[tuple[int, TransactionId]] = []
        transaction, start = first, 0
        for place, (end, mark) in enumerate(zip(ends, marks, strict=True)):
            if end - start == 1 and modes[start] == _WRITE:
                # The common case in one step: `estimate`, then `raise_to`, without a call.
                mixed = locks[start] * _ODD & _64_BITS
                mixed ^= mixed >> 32
                i, j, k = mixed % one, mixed % two, mixed % three
                estimate = entries[i]
                if estimate > mark:
                    estimate = min(estimate, entries[j], entries[k])
                if estimate <= mark:
                    entries[i] = entries[j] = entries[k] = transaction
            else:
                own, own_modes = locks[start:end], modes[start:end]
                estimate = self.estimate_of(own, own_modes)
                if estimate <= mark:
                    self.raise_all(own, own_modes, transaction)
            if estimate <= mark:
                transaction += 1
            else:
                refused.append((place, estimate))
            start = end
        return refused


def _without_common_factors(size: int) -> tuple[int, int, int]:
    """The three largest numbers up to `size` of which no two have a common factor; for tiny sizes the last are 1."""
    found: list[int] = []
    for candidate in chain(range(size, 1, -1), (1, 1, 1)):
        if all(gcd(candidate, other) == 1 for other in found):
            found.append(candidate)
        if len(found) == 3:
            break
    one, two, three = found
    return one, two, three
