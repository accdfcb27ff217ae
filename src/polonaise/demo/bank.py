"""The bank's view of the log and its one transaction context."""

from __future__ import annotations

from collections.abc import Mapping

from polonaise.client.view import View
from polonaise.demo.payments import Payment
from polonaise.terms import NO_TRANSACTION, PartitionId, Transaction, TransactionId

PAYMENT = 1
"""Header of a payment's transaction."""


class Balances(View):
    """Balances in memory, fed by the log: what the payments so far make of the opening balances."""

    def __init__(self, opening: Mapping[int, int]) -> None:
        self._balances = dict(opening)
        self._marks: dict[PartitionId, TransactionId] = {}
        self.lowest = 0
        """The lowest balance that any account ever had."""

    def high_water_mark(self, partition: PartitionId) -> TransactionId:
        return self._marks.get(partition, NO_TRANSACTION)

    def apply(self, tx: Transaction) -> None:
        if tx.header == PAYMENT:
            payment = Payment.decode(tx.data)
            for account in payment.accounts:
                balance = self.of(account) + payment.change(account)
                self._balances[account] = balance
                self.lowest = min(self.lowest, balance)
        self._marks[tx.partition] = tx.id

    def failed(self, partition: PartitionId, transaction: TransactionId, error: BaseException) -> None:
        raise error

    def of(self, account: int) -> int:
        return self._balances.get(account, 0)

    def all(self) -> dict[int, int]:
        return dict(self._balances)
