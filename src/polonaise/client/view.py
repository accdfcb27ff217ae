"""What an application derives from the log, as the client sees it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from polonaise.terms import PartitionId, Transaction, TransactionId


class View(Protocol):
    """State kept from the log: a database, a cache, a report. Methods may be plain or coroutines.

    Its high-water mark must be stored together with what was applied, in one atomic step: then each transaction is
    applied exactly once, whatever dies when.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """The id of the last transaction of the partition that was applied; -1 for none.

        Asked when the client mounts the partition, and again after `apply` has failed.
        """

    def apply(self, tx: Transaction) -> Awaitable[None] | None:
        """Apply one transaction. Called strictly by id, without gaps, one at a time per partition.

        Partitions are independent: two of them may be within `apply` at once if it is a coroutine. What it raises is
        reported to `failed`, and the same transaction is delivered again after a pause.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """`apply` raised `error` for this transaction; only this partition waits."""
