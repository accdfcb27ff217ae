"""Checks that batches follow one another: ids without gaps, each batch naming the CRC of the one before."""

from __future__ import annotations

from polonaise.errors import LogForked, OutOfOrder
from polonaise.log.batch import Batch
from polonaise.terms import TransactionId


class Continuity:
    """The place up to which a partition's batches have been received, whole and in order."""

    __slots__ = ("_last_crc", "_last_seen", "next_id")

    def __init__(self, next_id: TransactionId) -> None:
        self.next_id = next_id
        """The id that has to come next."""
        self._last_seen: TransactionId | None = None
        self._last_crc = 0

    def follows(self, batch: Batch) -> bool:
        """Move on past this batch; return True if it brings the next id, False if it brings nothing new. Raises
        `OutOfOrder` for a gap, and `LogForked` if the batch contradicts the last one, as its successor or its
        repetition."""
        if batch.first > self.next_id:
            raise OutOfOrder(
                f"ids {self.next_id} to {batch.first - 1} of partition {batch.partition} are missing: read again"
            )
        # Before a repetition is passed over: it may be of another log.
        if self._last_seen is not None:
            self._check_link(batch)
        if batch.last < self.next_id:
            return False
        self.next_id = batch.last + 1
        self._last_seen = batch.last
        self._last_crc = batch.crc
        return True

    def _check_link(self, batch: Batch) -> None:
        follows = batch.first - 1 == self._last_seen and batch.previous_crc != self._last_crc
        repeats = batch.last == self._last_seen and batch.crc != self._last_crc
        if follows or repeats:
            raise LogForked(
                f"partition {batch.partition}: the batch of ids {batch.first} to {batch.last} does not fit the one "
                f"received before it, which ended at {self._last_seen}: stop, and compare the replicas"
            )

    def rewind(self, next_id: TransactionId) -> None:
        """Go back to an earlier id, and check no CRC there: that of the batch before it is not kept."""
        self.next_id = next_id
        self._last_seen = None
