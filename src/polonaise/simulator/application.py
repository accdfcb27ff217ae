"""One application's memory: what survives the death of its process, as a database would.

The ledger is its view of the log: balances and counters per partition, applied together with the mark, so that each
transaction counts once whatever dies when.
"""

from __future__ import annotations

import asyncio
import random

from polonaise.simulator.checkers import ACCOUNT_START
from polonaise.simulator.observations import MOVE, History, Kind, ReadCheck, Try, parse_body
from polonaise.terms import PartitionId, Transaction, TransactionId

UNWANTED_HEADER = 3
"""Applications that take bodies lazily leave those of this header behind."""


class ViewTrouble(Exception):
    """The application's own failure, which the client has to live with."""


class Ledger:
    """A view. `slow_s` and `trouble_chance` make it a bad one."""

    def __init__(self, history: History, who: str, partitions: int, source: random.Random) -> None:
        self._history = history
        self._who = who
        self._random = source
        self._readings = [ReadCheck(history, f"the view of {who}", partition, -1) for partition in range(partitions)]
        self._balances: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.slow_s = 0.0
        self.trouble_chance = 0.0
        self.leaves_bodies = False
        """Whether bodies of `UNWANTED_HEADER` come empty."""

    def high_water_mark(self, partition: PartitionId) -> TransactionId:
        return self._readings[partition].last

    async def apply(self, tx: Transaction) -> None:
        if self.slow_s and self._random.random() < 0.1:
            await asyncio.sleep(self.slow_s * self._random.random())
        if self.trouble_chance and self._random.random() < self.trouble_chance:
            raise ViewTrouble
        reading = self._readings[tx.partition]
        if self.leaves_bodies and tx.header == UNWANTED_HEADER:
            reading.skip(tx)
            return
        reading.take(tx)
        body = parse_body(tx.data)
        if body is not None and body.kind is Kind.MOVE:
            source, target, amount, _, _ = MOVE.unpack_from(body.rest)
            balances = self._balances[tx.partition]
            balances[source] = self.balance(tx.partition, source) - amount
            balances[target] = self.balance(tx.partition, target) + amount

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        if not isinstance(error, ViewTrouble):
            self._history.violated("P2 agreement", f"id {id} of partition {partition} to be applied", repr(error))

    def balance(self, partition: PartitionId, account: int) -> int:
        return self._balances[partition].get(account, ACCOUNT_START)


class Application:
    """What one client machine remembers, and what it still wants to do."""

    def __init__(self, history: History, who: str, partitions: int, steps: int, source: random.Random) -> None:
        self.history = history
        self.who = who
        self.random = source
        self.partitions = partitions
        self.steps_left = steps
        self.rush_steps_left = 80
        """Steps on top of these, for the moments at which the nemesis wants many."""
        self.ledger = self.new_ledger()
        self.next_number = [0] * partitions
        """By partition: the next number of this application's producer."""
        self.producing: list[Try | None] = [None] * partitions
        """By partition: the producer's append whose fate is not known, under the number before."""
        self.following = 0
        """Receipts of undecided appends that are still waited for."""
        self.finished = False
        """All steps are done, the last append and the last reading too."""
        self.doing: dict[int, str] = {}
        """What each worker is at, for reports of schedules that hang."""

    def new_ledger(self) -> Ledger:
        return Ledger(self.history, self.who, self.partitions, self.random)

    def start_again(self, steps: int) -> None:
        """There is more to do."""
        self.steps_left = steps
        self.finished = False

    def died(self) -> None:
        """The process is gone: whatever was not kept is not known any more."""
        self.following = 0
        self.doing.clear()
        kept = [attempt for attempt in self.producing if attempt is not None]
        self.history.died(self.who, kept)
        if self.random.random() < 0.2:
            self.ledger = self.new_ledger()
