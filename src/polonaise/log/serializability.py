"""A check that a log is serializable, from the log's own evidence and without trust in its writer.

Each batch may keep what its transactions were judged by: the client high-water mark and the locks. A transaction is
built on fresh state iff for each lock that it checks nobody raised that lock between its mark and its id.

Batches do not say which transactions form a group. So where one transaction of a group raises a lock that a later one
of it checks, the later one is reported, although the owner judges a group as one and lets it in.
"""

from __future__ import annotations

from typing import NamedTuple

from polonaise.log.batch import Batch
from polonaise.terms import LockMode, TransactionId


class StaleTransaction(NamedTuple):
    """A committed transaction that was built on stale locked state."""

    transaction: TransactionId
    lock: int
    """The hash of the lock."""
    client_high_water_mark: TransactionId
    raised_by: TransactionId
    """The id of the last transaction that had raised the lock: above the mark, and below `transaction`."""


class SerializabilityCheck:
    """A check that follows a partition's log batch by batch from its beginning. `stale` collects the violations."""

    def __init__(self) -> None:
        self._raised: dict[int, TransactionId] = {}
        self.stale: list[StaleTransaction] = []
        self.judged = 0
        """How many transactions had evidence."""
        self.unjudged = 0
        """How many transactions had none, because their batch kept none."""

    def follow(self, batch: Batch) -> None:
        """Check the next batch of the log."""
        evidence = batch.evidence()
        if evidence is None:
            self.unjudged += batch.count
            return
        self.judged += batch.count
        marks = evidence.client_high_water_marks
        for position in range(batch.count):
            transaction = batch.first + position
            locks = evidence.locks(position)
            # All checks before any raise: a transaction that names a lock twice is not in its own way.
            for lock, mode in locks:
                raised = self._raised.get(lock, -1)
                if mode != LockMode.APPEND and raised > marks[position]:
                    self.stale.append(StaleTransaction(transaction, lock, marks[position], raised))
            for lock, mode in locks:
                if mode != LockMode.READ:
                    self._raised[lock] = transaction
