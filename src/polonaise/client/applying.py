"""Giving the feed to the application's view: strictly by id, again after a failure, never faster than it can."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from polonaise.client.asking import Questions
from polonaise.client.bodies import Bodies, Wanted
from polonaise.client.mounting import Form
from polonaise.client.partition import PartitionAppends
from polonaise.client.protocol.arguments import wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.settings import ClientSettings
from polonaise.client.view import View
from polonaise.client.waiting import AppliedMark
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.terms import NO_TRANSACTION, BodyForm, PartitionId, Transaction, TransactionId

if TYPE_CHECKING:
    from polonaise.client.mounting import Mounting

_log = logging.getLogger("polonaise.client")


class MarkOnly:
    """Takes a feed of which only the ids matter: for a client without a view, which still learns its fates."""

    form = Form(BodyForm.LAZY)
    begins_by = ""

    def __init__(self, appends: PartitionAppends, questions: Questions) -> None:
        self._appends = appends
        self._mark = appends.mark
        self._questions = questions
        self.mounting: Mounting

    async def begin(self) -> TransactionId:
        """From the end of the log as it is now."""
        mark = await self._questions.high_water_mark(self._appends.partition, None, self._report)
        self._mark.reach(mark)
        return mark

    def _report(self, error: PolonaiseError) -> None:
        self._appends.trouble = error

    def offer(self, batch: Batch) -> None:
        self._mark.reach(batch.last)
        self.mounting.taken(batch.length)


class Applier:
    """Applies one partition's feed to the view, one transaction at a time."""

    begins_by = "the view to tell its high-water mark"

    def __init__(
        self,
        host: Host,
        view: View,
        partition: PartitionId,
        mark: AppliedMark,
        bodies: Bodies,
        form: Form,
        settings: ClientSettings,
    ) -> None:
        self._host = host
        self._view = view
        self._partition = partition
        self._mark = mark
        self._bodies = bodies
        self._backoff = Backoff(settings.retry_s_min, settings.retry_s_max)
        self._queue: deque[tuple[Batch, Wanted | None]] = deque()
        self._arrived = asyncio.Event()
        self.form = form
        self.mounting: Mounting

    async def begin(self) -> TransactionId:
        """From the view's own mark."""
        mark = await self._views_mark()
        self._mark.reach(mark)
        return mark

    def offer(self, batch: Batch) -> None:
        wanted = None if batch.has_data else self._bodies.want(batch, self._mark.value)
        self._queue.append((batch, wanted))
        self._arrived.set()

    async def apply_all(self) -> None:
        """Apply what arrives, for ever; a task of its own."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                batch, wanted = self._queue[0]
                try:
                    done = await self._apply(batch, wanted)
                except PolonaiseError as error:
                    self.mounting.stop(error)
                    return
                if done and self._queue and self._queue[0][0] is batch:
                    self._queue.popleft()
                    self.mounting.taken(batch.length)
                await asyncio.sleep(0)

    async def _apply(self, batch: Batch, wanted: Wanted | None) -> bool:
        """Whether the batch is done with; False to begin with it again, or with what came in its place."""
        if batch.last <= self._mark.value:
            return True
        bodies = None if wanted is None else await wanted.bodies()
        apply, reach = self._view.apply, self._mark.reach
        for tx in self._transactions(batch, bodies):
            try:
                applied = apply(tx)
                if applied is not None:
                    await applied
            except Exception as error:  # noqa: BLE001 - the application's own code; told to the application
                await self._failed(tx.id, error)
                return False
            reach(tx.id)
        self._backoff.reset()
        return True

    def _transactions(self, batch: Batch, bodies: dict[TransactionId, bytes] | None) -> Iterator[Transaction]:
        if bodies is None:
            return batch.transactions(self._mark.value)
        return _with_bodies(batch, bodies, self._mark.value)

    async def _failed(self, transaction: TransactionId, error: Exception) -> None:
        """Report, rest, and ask the view how far it is: that may have changed under it."""
        _log.warning("the view failed on %d of partition %d: %r", transaction, self._partition, error)
        try:
            told = self._view.failed(self._partition, transaction, error)
            if told is not None:
                await told
        except Exception:  # noqa: BLE001 - the application's own code; logged
            _log.exception("the view's `failed` itself failed, on %d of partition %d", transaction, self._partition)
        await self._rest()
        mark = await self._views_mark()
        if mark > self._mark.value:
            self._mark.reach(mark)
        elif mark < self._mark.value:
            self._go_back(mark)

    def _go_back(self, mark: TransactionId) -> None:
        """The view lost what it had applied (its database was restored): it needs everything from there again."""
        self._mark.value = mark
        dropped, self._queue = self._queue, deque()
        for batch, _ in dropped:
            self.mounting.taken(batch.length)
        self.mounting.rewind(mark)

    async def _views_mark(self) -> TransactionId:
        """What the view says, however often it has to be asked. Raises `BadOption` for what is no mark."""
        while True:
            try:
                asked: Any = self._view.high_water_mark(self._partition)
                mark = await asked if hasattr(asked, "__await__") else asked
            except Exception:  # noqa: BLE001 - the application's own code; asked until it answers
                _log.exception("the view's high-water mark of partition %d can't be had", self._partition)
            else:
                if not isinstance(mark, int) or mark < NO_TRANSACTION:
                    wanted = "the id of the last transaction that was applied, -1 for none"
                    raise wrong(f"the view's high_water_mark({self._partition})", mark, wanted)
                return mark
            await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(self._backoff.pause_s(self._host.random.random()))


def _with_bodies(batch: Batch, bodies: dict[TransactionId, bytes], after: TransactionId) -> Iterator[Transaction]:
    """The transactions of a batch that came without data; those that nobody wanted have an empty body."""
    clients, generations, sequences = batch.client_ids, batch.generations, batch.sequences
    headers, first = batch.headers, batch.first
    for place in range(max(0, after + 1 - first), batch.count):
        transaction = first + place
        yield Transaction(
            batch.partition,
            transaction,
            headers[place],
            bodies.get(transaction, b""),
            batch.commit_time_us,
            clients[place],
            generations[place],
            sequences[place],
        )
