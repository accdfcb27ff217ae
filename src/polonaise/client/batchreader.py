"""Reading a partition from a given id, without a view: one answer is consumed while the next are on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from polonaise.client.protocol.ahead import Ahead
from polonaise.client.protocol.continuity import Continuity
from polonaise.client.requests import Requests
from polonaise.client.settings import ClientSettings
from polonaise.client.waiting import retrieve
from polonaise.errors import DataDamaged, DeadlineExceeded, PolonaiseError, ProtocolError, fresh
from polonaise.log.batch import Batch, split
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.wire.messages import WHOLE, Batches, Read

if TYPE_CHECKING:
    from typing import Self


class _PartRequest(NamedTuple):
    """A part of the range whose answer is on its way."""

    first: TransactionId
    last: TransactionId
    """The part: batches that begin in it are wanted; the answer may hold fewer. `WHOLE` while there are no parts."""
    coming: asyncio.Task[Batches]


class BatchReader:
    """Batches of one partition, whole and verified, in order: `async for batch in reader`.

    Promises: ids without gaps, each batch the successor of the one before (by its CRC), its bytes as they were
    written. Raises `BatchDamaged`, `OutOfOrder` or `LogForked` rather than yield anything else, and the same again
    to whoever asks again. A wait may be given up (`asyncio.wait_for(anext(reader), 1)`): the next one goes on from
    there, and so it does after `DeadlineExceeded`. For one task at a time. Close it with `aclose` if it is left before
    its end, or leave it to the garbage collector.
    """

    def __init__(
        self,
        requests: Requests,
        settings: ClientSettings,
        partition: PartitionId,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        with_data: bool = True,
        since_us: int = 0,
        timeout: float,
    ) -> None:
        self._requests = requests
        self._settings = settings
        self._partition = partition
        self._until = until
        self._follow = follow
        self._with_data = with_data
        self._since_us = since_us
        self._timeout = timeout
        self._first = after + 1
        self._continuity: Continuity | None = None if since_us else Continuity(after + 1)
        self._end: TransactionId | None = until
        """The last id that is wanted, once that is known."""
        self._end_known = False
        self._fruitless_s: float | None = None
        """Since when answers bring nothing, although there is something."""
        self._ahead: Ahead | None = None
        """What to ask for while answers are on their way; None while only one can be, for its end is not known."""
        self._batches: deque[Batch] = deque()
        self._asked: deque[_PartRequest] = deque()
        self._done = False
        self._broken: PolonaiseError | None = None
        """Why it can't go on; None at its end, and while it can."""
        self._waited_for = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while not self._batches:
            if self._broken is not None:
                raise fresh(self._broken)
            if self._done:
                raise StopAsyncIteration
            if self._waited_for:
                raise RuntimeError("another task waits for what this reading brings next: one at a time")
            self._waited_for = True
            try:
                await self._take_answer()
            finally:
                self._waited_for = False
        return self._batches.popleft()

    async def aclose(self) -> None:
        """Stop: what is on its way is not waited for."""
        self._done = True
        self._broken = None
        self._batches.clear()
        self._drop_asked()

    def __del__(self) -> None:
        """Left before its end: nobody takes what is on its way. In whatever thread the garbage collector runs."""
        for asked in getattr(self, "_asked", ()):
            if not asked.coming.done():
                with suppress(RuntimeError):  # the loop is closed
                    asked.coming.get_loop().call_soon_threadsafe(asked.coming.cancel)

    async def _take_answer(self) -> None:
        if not self._follow and not self._end_known:
            await self._find_end()
            if self._done:
                return
        self._ask()
        asked = self._asked[0]
        if not asked.coming.done():
            await asyncio.wait((asked.coming,))  # whoever no longer waits leaves it on its way, for the next who does
        if self._done:
            return  # closed meanwhile
        try:
            answer = asked.coming.result()
        except BaseException:
            self._drop_asked()  # begin anew from here
            raise
        self._asked.popleft()
        batches = self._checked(answer)
        if batches:
            self._advance(asked, batches)
        elif not self._follow:
            # By time there may be nothing; by id there is, and whoever answered does not know it (yet).
            self._done = self._since_us > 0 and self._end is not None and answer.committed >= self._end
            if not self._done:
                if asked.first == self._first:  # a batch begins here; in a part that reaches from here on perhaps none
                    await self._pause()
                self._ask_rest_of(asked)
        if self._end is not None and self._first > self._end:
            self._done = True
        if self._done:
            self._drop_asked()
        else:
            self._ask()
        # An answer is as long as it is, whatever is wanted of it.
        self._batches.extend(batch for batch in batches if self._end is None or batch.first <= self._end)

    def _advance(self, asked: _PartRequest, batches: list[Batch]) -> None:
        """Behind what an answer brought; how much the next ones will bring is known better now."""
        ids, size = batches[-1].last + 1 - self._first, sum(batch.length for batch in batches)
        self._first = batches[-1].last + 1
        self._since_us = 0
        self._fruitless_s = None
        if self._ahead is not None:
            self._ahead.answered(ids, size, whole=self._first > asked.last)
            self._ask_rest_of(asked)
        elif self._end_known and self._end is not None:
            self._ahead = Ahead(self._first, self._end, self._settings.read_bytes, ids, size)

    def _ask_rest_of(self, asked: _PartRequest) -> None:
        """What its answer left over of a part comes first; parts in which no batch can begin are not needed."""
        if self._ahead is not None and self._first <= asked.last:
            self._asked.appendleft(self._ask_for(self._first, asked.last))
        while self._ahead is not None and self._asked and self._asked[0].last < self._first:
            self._asked.popleft().coming.cancel()

    def _drop_asked(self) -> None:
        self._ahead = None
        while self._asked:
            self._asked.pop().coming.cancel()

    async def _find_end(self) -> None:
        """End at what is committed now. Proved, for whoever answers may have been replaced, or have just begun."""
        mark = await self._requests.high_water_mark(self._partition, self._timeout)
        self._end = mark if self._until is None else min(mark, self._until)
        self._end_known = True
        self._done = self._done or self._first > self._end

    async def _pause(self) -> None:
        """Before something is asked for again. Whoever does not wait for that may go on later, anew from here."""
        try:
            await self._rest()
        except BaseException:
            self._fruitless_s = None
            self._drop_asked()
            raise

    async def _rest(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._fruitless_s is None:
            self._fruitless_s = now
        if now - self._fruitless_s > self._timeout:
            raise DeadlineExceeded(
                f"partition {self._partition} was asked for {self._first} to {self._end} and sent nothing "
                f"for {self._timeout:g} s"
            )
        await asyncio.sleep(self._settings.retry_s_min)

    def _checked(self, answer: Batches) -> list[Batch]:
        """The batches of an answer, verified, each the successor of the one before.

        In this order: what was damaged on the way must not look like a log that has forked.
        """
        try:
            batches = split(answer.payload[0] if answer.payload else b"")
            return [batch for batch in batches if self._is_new(batch)]
        except PolonaiseError as error:
            self._broken = fresh(error)
            self._drop_asked()
            raise

    def _is_new(self, batch: Batch) -> bool:
        """Whether it goes on from the one before; a batch that reaches from one part into the next comes twice."""
        if batch.partition != self._partition:
            raise ProtocolError(f"asked for partition {self._partition} and got {batch.partition}")
        if self._continuity is None:
            if batch.first > self._first:
                self._continuity = Continuity(batch.first)
            else:
                self._continuity = Continuity(self._first)
        return self._continuity.follows(batch)

    def _ask(self) -> None:
        """Have as many answers on their way as can be of use."""
        if self._ahead is None:
            if not self._asked:
                self._asked.append(self._ask_for(self._first, WHOLE))
            return
        while len(self._asked) < self._settings.reads_ahead:
            part = self._ahead.next_part(self._first)
            if part is None:
                return
            self._asked.append(self._ask_for(*part))

    def _ask_for(self, first: TransactionId, last: TransactionId) -> _PartRequest:
        wait_s = self._settings.follow_s_max if self._follow else 0.0
        request = Read(
            first=first,
            bytes_max=self._settings.read_bytes,
            wait_ms=int(wait_s * 1000),
            with_data=int(self._with_data),
            after_time_us=self._since_us,
            part_last=last,
        )
        coming = asyncio.get_running_loop().create_task(
            self._requests.ask(self._partition, request, Batches, self._timeout + wait_s, wait_s=wait_s)
        )
        coming.add_done_callback(retrieve)
        return _PartRequest(first, last, coming)


def first_batch(answer: Batches) -> Batch | None:
    """The first batch of an answer, verified; None if there is none. Raises `BatchDamaged`."""
    return Batch.parse(answer.payload[0]) if answer.payload else None


class TransactionReader:
    """Transactions of one partition, each body checked against its CRC, in order: `async for tx in log.read(0)`.

    It ends where the reading ends, and nowhere else. A wait may be given up (`asyncio.wait_for(anext(reader), 1)`):
    the next one goes on from there, and so it does after an error that may pass, such as `DeadlineExceeded`; any other
    is raised again to whoever asks again. For one task at a time. Close it with `aclose` if it is left before its end,
    or leave it to the garbage collector.
    """

    # No asynchronous generator: what is raised in one, were it only that its caller waits no longer, ends it for good.

    def __init__(
        self, batches: BatchReader, after: TransactionId, until: TransactionId | None, since_us: int = 0
    ) -> None:
        self._batches = batches
        self._after = after
        self._until = until
        self._since_us = since_us
        self._held: Iterator[Transaction] = iter(())
        """What is left of the batch at hand."""
        self._broken: DataDamaged | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transaction:
        while True:
            try:
                for tx in self._held:  # the next one: it is taken in the very step in which it is handed over
                    return tx
            except DataDamaged as error:
                self._broken = fresh(error)
                await self._batches.aclose()
                raise
            if self._broken is not None:
                raise fresh(self._broken)
            self._held = self._wanted(await self._batches.__anext__())

    async def aclose(self) -> None:
        """Stop: what is on its way is not waited for."""
        self._held = iter(())
        self._broken = None
        await self._batches.aclose()

    def _wanted(self, batch: Batch) -> Iterator[Transaction]:
        """The transactions of a batch that lie in the range."""
        if batch.commit_time_us < self._since_us:
            return iter(())
        found, until = batch.transactions(self._after), self._until
        return found if until is None or batch.last <= until else takewhile(lambda tx: tx.id <= until, found)
