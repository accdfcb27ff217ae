"""One partition's log in a fake server: appends are judged and ordered as by an owner, and committed at once."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.protocol.locktable import LockTable
from polonaise.server.protocol.order import Order, Refusal
from polonaise.terms import NO_TRANSACTION, ClientId, Generation, PartitionId, Transaction, TransactionId
from polonaise.testing.memorypartition import BEGINNING_US, STEP_US
from polonaise.wire.appends import ReceivedAppends

_SESSION: Final = 1
_LOCK_ENTRIES: Final = 1 << 16


class DecidedLog:
    """A committed log, and the decisions of its owner."""

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.batches: list[Batch] = []
        self.time_us = BEGINNING_US
        self._order = self._ordering({}, 1)

    def _ordering(self, held: dict[bytes, bytes], generation: Generation) -> Order:
        return Order(
            partition=self.partition,
            generation=generation,
            session=_SESSION,
            closing=self.mark,
            last_crc=self.batches[-1].crc if self.batches else 0,
            commit_time_us=self.time_us,
            registers=held,
            locks=LockTable(self.mark, _LOCK_ENTRIES),
            evidence=False,
        )

    @property
    def mark(self) -> TransactionId:
        """The committed high-water mark."""
        return self.batches[-1].last if self.batches else NO_TRANSACTION

    @property
    def registers(self) -> dict[bytes, bytes]:
        return self._order.registers

    def append(self, client_id: ClientId, appends: ReceivedAppends) -> list[Refusal]:
        """Judge these appends, and commit the accepted ones as one batch. Raises `ProtocolError`."""
        refusals = self._order.judge(client_id, appends, self.mark)
        if self._order.forming_count:
            self.time_us += STEP_US
            self.batches.append(Batch.parse(self._order.seal(self.time_us).raw))
        return refusals

    def commit(self, columns: Columns, generation: Generation = 1) -> Batch:
        """Commit transactions as if another owner had: what was locked before is unknown afterwards."""
        self.time_us += STEP_US
        raw = seal(
            columns,
            partition=self.partition,
            first=self.mark + 1,
            session=_SESSION,
            generation=generation,
            commit_time_us=self.time_us,
            previous_crc=self.batches[-1].crc if self.batches else 0,
        )
        batch = Batch.parse(raw)
        self.batches.append(batch)
        self._order = self._ordering(self.registers, generation)
        return batch

    def from_id(self, first: TransactionId) -> list[Batch]:
        """Return the batches from the one that holds the id `first` on."""
        return self.batches[bisect_left(self.batches, first, key=lambda batch: batch.last) :]

    def transactions(self) -> list[Transaction]:
        return [tx for batch in self.batches for tx in batch.transactions()]
