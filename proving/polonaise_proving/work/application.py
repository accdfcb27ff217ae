"""One application's memory: outlives the death of its process, as a database would.

The ledger is the application's view of the log: the balances of each partition, stored in one step with the applied
high-water mark, so that each transaction counts once, whichever process dies at whichever moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from polonaise.client.log import Log
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise_proving.record.observations import ACCOUNT_START, History, Kind, ReaderRecord, Try, parse_body

UNWANTED_HEADER = 3
"""The header of the transactions whose bodies lazy applications do not fetch."""
HEADER_FILTER = (3, 1)
"""The mask and value of the headers that match a filtered feed: not all that are wanted, and none that is not, so that
bodies are fetched and left."""


class ViewTrouble(Exception):
    """A failure of the application's view, on purpose: the client must go on in spite of it."""


class Ledger:
    """The view of an application: keeps balances, and can be slow or fail on purpose."""

    def __init__(self, history: History, who: str, partitions: int, source: random.Random) -> None:
        self._history = history
        self._random = source
        self._readings = [ReaderRecord(history, f"the view of {who}", partition, -1) for partition in range(partitions)]
        self._balances: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.slow_s = 0.0
        """The most virtual seconds that one transaction in ten takes to be applied."""
        self.trouble_chance = 0.0
        """The chance that one call of `apply` raises `ViewTrouble`; the client then tries the transaction again."""
        self.leaves_bodies = False
        """Whether transactions of `UNWANTED_HEADER` may come without bodies; `apply` then ignores all of them."""

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
        if body is not None and (said := body.fields(Kind.MOVE)) is not None:
            source, target, amount, _, _ = said
            balances = self._balances[tx.partition]
            balances[source] = self.balance(tx.partition, source) - amount
            balances[target] = self.balance(tx.partition, target) + amount

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        if not isinstance(error, ViewTrouble):
            self._history.not_applied(partition, id, error)

    def balance(self, partition: PartitionId, account: int) -> int:
        return self._balances[partition].get(account, ACCOUNT_START)


class Application:
    """The memory of one client machine: the steps that it has yet to take, and its appends of unknown fate."""

    def __init__(self, history: History, who: str, partitions: int, steps: int, source: random.Random) -> None:
        self.history = history
        self.who = who
        self.random = source
        self.partitions = partitions
        self.steps_left = steps
        self.rush_steps_left = 80
        """Steps in addition to `steps_left`, for the moments at which the nemesis wants many appends."""
        self.ledger = self.new_ledger()
        self.next_number = [0] * partitions
        """By partition: the number of the next append of this application's idempotent producer."""
        self.producing: list[Try | None] = [None] * partitions
        """By partition: the producer's last append, numbered one below `next_number`; None once its fate is known."""
        self.log: Log | None = None
        """The log object that it works with, or has worked with last."""
        self.on_open: Callable[[], None] = lambda: None
        """Called when the application is about to work with another log object than before."""
        self.following = 0
        """The number of receipts that `ClientLife.follow` awaits in tasks of their own; not those that steps await."""
        self.finished = False
        """Whether all steps, the last append and the last reading of the whole log are done."""
        self.doing: dict[int, str] = {}
        """By worker: the step that it is taking, for reports of schedules that hang."""

    def new_ledger(self) -> Ledger:
        return Ledger(self.history, self.who, self.partitions, self.random)

    def open(self, log: Log) -> None:
        """Work with this log object from now on."""
        self.on_open()
        self.log = log

    def start_again(self, steps: int) -> None:
        """Give the application `steps` to do, in place of those that it has left."""
        self.steps_left = steps
        self.finished = False

    def died(self) -> None:
        """Forget what the dead process knew, and by chance the view, too.

        What else the application stores stays, such as its producer's last append.
        """
        self.following = 0
        self.doing.clear()
        # A producer learns the fate of its append by making it again, in its next life.
        kept = [attempt for attempt in self.producing if attempt is not None]
        self.history.died(self.who, kept)
        # Now and then the view is lost, too, and made again from the whole log.
        if self.random.random() < 0.2:
            self.ledger = self.new_ledger()
