"""A check that a log is serializable, from the log's own evidence and without trust in its writer.

A transaction is built on fresh state iff for each lock that it checks nobody raised that lock between its client
high-water mark and its id. The owner judges a group as one, and batches say only which transactions may form one: those
of one client with successive sequences and the same mark. So of separate appends that follow each other in this way,
one that is stale only by another of them is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction} was built on state up to {self.client_high_water_mark}, and "
            f"{self.raised_by} had raised its lock {self.lock:#x}"
        )


class SerializabilityCheck:
    """A check that follows a partition's log batch by batch from its beginning. `stale` collects the violations."""

    def __init__(self, groups_of: Callable[[Batch], Iterator[range]] | None = None) -> None:
        """`groups_of` returns the places of each group in a batch; by default, what may have been one."""
        self._groups_of = groups_of or _possible_groups
        self._raised: dict[int, TransactionId] = {}
        self.stale: list[StaleTransaction] = []
        self.judged = 0
        """How many transactions had evidence."""
        self.unjudged = 0
        """How many transactions had no evidence, because their batch kept none."""

    def follow(self, batch: Batch) -> None:
        """Check the next batch of the log."""
        evidence = batch.evidence()
        if evidence is None:
            self.unjudged += batch.count
            return
        self.judged += batch.count
        marks = evidence.client_high_water_marks
        for run in self._groups_of(batch):
            mark = min(marks[run.start : run.stop])  # a group is judged by the oldest state that it was built on
            # All checks before any raise: neither a group nor a transaction that names a lock twice is in its own way.
            for position in run:
                for lock, mode in evidence.locks(position):
                    raised = self._raised.get(lock, -1)
                    if mode != LockMode.APPEND and raised > mark:
                        self.stale.append(StaleTransaction(batch.first + position, lock, mark, raised))
            for position in run:
                for lock, mode in evidence.locks(position):
                    if mode != LockMode.READ:
                        self._raised[lock] = batch.first + position


def _possible_groups(batch: Batch) -> Iterator[range]:
    """Yield the batch's positions, divided wherever one group can't go on."""
    client_ids, sequences = batch.client_ids, batch.sequences
    evidence = batch.evidence()
    assert evidence is not None
    marks = evidence.client_high_water_marks
    start = 0
    for position in range(1, batch.count):
        before = position - 1
        if (client_ids[position], sequences[position], marks[position]) != (
            client_ids[before],
            sequences[before] + 1,
            marks[before],
        ):
            yield range(start, position)
            start = position
    yield range(start, batch.count)
