"""The optimistic locks of a partition: for each lock, an estimate of the last transaction that raised it.

The estimate is never below the truth, so a stale transaction is never let in. In a table of fixed size every lock has
three places; raising it writes the transaction's id to all three, and the smallest of them is the estimate. A fresh
transaction is refused only when all three places of one of its locks were raised by others, or when its client had not
applied what was committed when the session started ("Waltz internals", section "Concurrency Control").

While few locks of a partition were raised, they are kept one by one: most of a server's thousands of partitions have
few, and a table for each would take more memory than a machine has.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from math import gcd
from operator import itemgetter
from typing import Final

from polonaise.terms import NO_TRANSACTION, LockMode, TransactionId

DEFAULT_ENTRIES: Final = 1 << 20
"""The entries of a lock table, 8 bytes each, unless set otherwise."""
_ENTRIES_PER_LOCK: Final = 32
"""A lock that is kept one by one takes at most as much memory as this many entries of the table."""
_READ: Final = int(LockMode.READ)
_ONE_WRITE: Final = bytes([LockMode.WRITE])
_APPEND: Final = int(LockMode.APPEND)


class LockTable:
    """Estimates for each lock of a partition which transaction raised it last; one table for each session.

    Every entry starts at the committed high-water mark of the session's start: which locks were raised before is
    unknown, so all of them count as raised there.
    """

    __slots__ = ("_entries", "_few", "_few_max", "_moduli", "_size", "_start")

    def __init__(self, start: TransactionId, entries: int = DEFAULT_ENTRIES) -> None:
        self._start = start
        self._size = entries
        self._few_max = entries // _ENTRIES_PER_LOCK
        self._few: dict[int, TransactionId] | None = {}
        self._entries = array("q")
        self._moduli = (1, 1, 1)
        if not self._few_max:
            self._make_table({})

    @property
    def exact(self) -> bool:
        """Whether no two locks share a place, because they are kept one by one."""
        return self._few is not None

    @property
    def size(self) -> int:
        """The number of locks that are kept one by one; of a table, the number of its entries."""
        return len(self._entries) if self._few is None else len(self._few)

    def _make_table(self, few: Mapping[int, TransactionId]) -> None:
        self._few = None
        self._entries = array("q", (self._start,)) * self._size
        self._moduli = _without_common_factors(self._size)
        for lock, transaction in sorted(few.items(), key=itemgetter(1)):  # a place keeps the highest of its ids
            self.raise_to(lock, transaction)

    def _places(self, lock: int) -> tuple[int, int, int]:
        # The hash is not mixed first: clients make it with BLAKE2, so it has no pattern. By the Chinese remainder
        # theorem, one remainder says nothing about the others while the product of the numbers is at most 2^64.
        one, two, three = self._moduli
        return lock % one, lock % two, lock % three

    def estimate(self, lock: int) -> TransactionId:
        """Return the highest id that may have raised this lock."""
        if self._few is not None:
            return self._few.get(lock, self._start)
        entries = self._entries
        i, j, k = self._places(lock)
        return min(entries[i], entries[j], entries[k])

    def estimate_of(self, locks: Sequence[int], modes: bytes) -> TransactionId:
        """Return the highest estimate among the locks that are checked; NO_TRANSACTION if none is."""
        checked = [self.estimate(lock) for lock, mode in zip(locks, modes, strict=True) if mode != _APPEND]
        return max(checked, default=NO_TRANSACTION)

    def raise_to(self, lock: int, transaction: TransactionId) -> None:
        """Raise one lock to `transaction`, which must not be below any id raised before."""
        few = self._few
        if few is not None:
            few[lock] = transaction
            if len(few) > self._few_max:
                self._make_table(few)
            return
        entries = self._entries
        i, j, k = self._places(lock)
        entries[i] = entries[j] = entries[k] = transaction

    def raise_all(self, locks: Sequence[int], modes: bytes, transaction: TransactionId) -> None:
        """Raise those of a transaction's locks that are not READ locks."""
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
        """Judge transactions one after the other; return position and estimate of each that was refused.

        `ends` has for each transaction where its locks end, and `marks` its client high-water mark. It passes if none
        of its checked locks was raised above that mark; then it takes the next id, from `first` on, and raises its
        locks.
        """
        if modes == _ONE_WRITE * len(ends) and list(ends) == list(range(1, len(ends) + 1)):
            return self._pass_writes(locks, marks, first)
        refused: list[tuple[int, TransactionId]] = []
        transaction, start = first, 0
        for position, (end, mark) in enumerate(zip(ends, marks, strict=True)):
            own, own_modes = locks[start:end], modes[start:end]
            estimate = self.estimate_of(own, own_modes)
            if estimate <= mark:
                self.raise_all(own, own_modes, transaction)
                transaction += 1
            else:
                refused.append((position, estimate))
            start = end
        return refused

    def _pass_writes(
        self, locks: Sequence[int], marks: Sequence[TransactionId], first: TransactionId
    ) -> list[tuple[int, TransactionId]]:
        """Judge transactions with one WRITE lock each, the common case, as `pass_each` does but without calls."""
        if self._few is not None:
            if len(self._few) + len(locks) <= self._few_max:
                return self._pass_few_writes(self._few, locks, marks, first)
            self._make_table(self._few)
        entries = self._entries
        one, two, three = self._moduli
        refused: list[tuple[int, TransactionId]] = []
        transaction = first
        for lock, mark in zip(locks, marks, strict=True):
            i, j, k = lock % one, lock % two, lock % three
            estimate = entries[i]
            if estimate > mark:  # else the smallest of the three is no higher, and the others need no look
                estimate = min(estimate, entries[j], entries[k])
            if estimate <= mark:
                entries[i] = entries[j] = entries[k] = transaction
                transaction += 1
            else:
                refused.append((transaction - first + len(refused), estimate))
        return refused

    def _pass_few_writes(
        self, few: dict[int, TransactionId], locks: Sequence[int], marks: Sequence[TransactionId], first: TransactionId
    ) -> list[tuple[int, TransactionId]]:
        """Do what `_pass_writes` does, while the locks are kept one by one."""
        before = self._start
        refused: list[tuple[int, TransactionId]] = []
        transaction = first
        for lock, mark in zip(locks, marks, strict=True):
            estimate = few.get(lock, before)
            if estimate <= mark:
                few[lock] = transaction
                transaction += 1
            else:
                refused.append((transaction - first + len(refused), estimate))
        return refused


def _without_common_factors(size: int) -> tuple[int, int, int]:
    """Return the three largest numbers up to `size` without common factors; for tiny sizes the last ones are 1."""
    moduli: list[int] = []
    for candidate in chain(range(size, 1, -1), (1, 1, 1)):
        if all(gcd(candidate, other) == 1 for other in moduli):
            moduli.append(candidate)
        if len(moduli) == 3:
            break
    one, two, three = moduli
    return one, two, three
