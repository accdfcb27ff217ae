"""Readers of one partition, in batches or transactions: while an answer is consumed, several requests are under way."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final, NamedTuple, Self

from polonaise.client.protocol.subscription import Continuity
from polonaise.client.requests import Requests
from polonaise.client.settings import ClientSettings
from polonaise.client.waiting import result_of
from polonaise.errors import DataDamaged, DeadlineExceeded, PolonaiseError, ProtocolError, fresh
from polonaise.host.unawaited import retrieve
from polonaise.log.batch import Batch, split
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.wire.messages import WHOLE, Batches, Read

_FILLED: Final = 0.75
"""The fraction of an answer that a part is planned to fill. What does not fit costs another request."""
_GROWTH_MAX: Final = 2
"""The most ids that a part may have, as a multiple of the ids in the last answer: later transactions may be larger."""


class Ahead:
    """Divides the ids from `first` to `last`, both included, into parts that most likely fit into one answer each.

    Learns from each answer how many ids fit into the next one, which holds `answer_bytes`: the first had `ids` of them
    in `size` bytes.
    """

    def __init__(self, first: TransactionId, last: TransactionId, answer_bytes: int, ids: int, size: int) -> None:
        self._next = first
        self._last = last
        self._answer_bytes = answer_bytes
        self._ids = self._fitting(ids, size)

    def next_part(self, due: TransactionId) -> tuple[TransactionId, TransactionId] | None:
        """Return the first and last id of the next part; None when all are requested. Answers hold whole batches and
        may reach beyond their part: `due` is the id that has to come next."""
        first = max(self._next, due)
        if first > self._last:
            return None
        self._next = min(first + self._ids, self._last + 1)
        return first, self._next - 1

    def answered(self, ids: int, size: int, *, whole: bool) -> None:
        """Learn from an answer that had `ids` ids in `size` bytes; not `whole` if it left some of its part over."""
        # An answer that was cut short says only that fewer fit.
        self._ids = self._fitting(ids, size) if whole else min(self._ids, ids)

    def _fitting(self, ids: int, size: int) -> int:
        return max(min(int(_FILLED * ids * self._answer_bytes) // max(size, 1), _GROWTH_MAX * ids), 1)


_log = logging.getLogger(__name__)
_FUTURE_US: Final = 10_000_000
"""By how many microseconds a commit time is later than now if it is told to be of the future: clocks may differ."""


class _PartRequest(NamedTuple):
    first: TransactionId
    last: TransactionId
    """Batches that begin up to this id are wanted; `WHOLE` for no bound (one request at a time)."""
    answer: asyncio.Task[Batches]


class BatchReader:
    """Yields the batches of one partition, whole and verified, in order; returned by `Log.read_batches`.

    ::

        async for batch in log.read_batches(partition=0):
            print(batch.first, batch.last, sum(batch.headers))

    Ids without gaps, each batch the successor of the one before (by its CRC), its bytes as they were written (with
    `with_data=False`, those of its columns). Raises `BatchDamaged`, `OutOfOrder`, `LogForked` or `ProtocolError` rather
    than yield anything else, and the same error again if it is used further. A wait may be given up
    (`asyncio.wait_for(anext(reader), 1)`): the next one goes on from there, as it does after `DeadlineExceeded`. For
    one task at a time. To leave it before its end, call `aclose`.
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
        self._id = requests.id_of(partition)
        self._until = until
        self._follow = follow
        self._with_data = with_data
        self._since_us = since_us
        self._timeout = timeout
        self._first = after + 1
        self._continuity: Continuity | None = None if since_us else Continuity(after + 1)
        self._end: TransactionId | None = until
        """The last id that is wanted; None while not known, or without end."""
        self._end_known = False
        self._fruitless_s: float | None = None
        """The loop's time since which answers have been empty although the range is not; None if they are not."""
        self._ahead: Ahead | None = None
        """Divides the rest of the range into parts; None while only one request at a time can be made."""
        self._batches: deque[Batch] = deque()
        self._under_way: deque[_PartRequest] = deque()
        self._done = False
        self._broken: PolonaiseError | None = None
        """The error that ended the reading."""
        self._has_waiter = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while not self._batches:
            if self._broken is not None:
                raise fresh(self._broken)
            if self._done:
                raise StopAsyncIteration
            if self._has_waiter:
                raise RuntimeError("another task waits for the next item of this reader: use it in one task at a time")
            self._has_waiter = True
            try:
                await self._take_answer()
            finally:
                self._has_waiter = False
        return self._batches.popleft()

    async def aclose(self) -> None:
        """Stop reading; cancel the requests under way."""
        self._done = True
        self._broken = None
        self._batches.clear()
        self._cancel_requests()

    def __del__(self) -> None:
        for request in getattr(self, "_under_way", ()):
            if not request.answer.done():
                # From whatever thread the garbage collector runs in. `RuntimeError`: the loop is closed.
                with suppress(RuntimeError):
                    request.answer.get_loop().call_soon_threadsafe(request.answer.cancel)

    async def _take_answer(self) -> None:
        if not self._follow and not self._end_known:
            await self._find_end()
            if self._done:
                return
        self._send_requests()
        request = self._under_way[0]
        if not request.answer.done():
            await asyncio.wait((request.answer,))  # a cancelled wait leaves the request under way, for the next wait
        if self._done:
            return  # closed meanwhile
        try:
            answer = result_of(request.answer)
        except BaseException:
            self._cancel_requests()  # the next call begins anew from here
            raise
        self._under_way.popleft()
        batches = self._checked(answer)
        if batches:
            self._advance(request, batches)
        elif not self._follow:
            # An empty answer. A reading by time ends here if the server knew everything up to the end: nothing was
            # committed since that time. Otherwise the range has committed ids (the owner proved its end), and a server
            # that sends none does not know of them yet, so the request is repeated.
            self._done = self._since_us > 0 and self._end is not None and answer.committed >= self._end
            if not self._done:
                # At the next id there must be a batch: a server without it needs time. A later part may well be empty,
                # because a batch of the part before it may cover all its ids: no pause for that.
                if request.first == self._first:
                    await self._pause()
                self._request_rest_of(request)
        if self._end is not None and self._first > self._end:
            self._done = True
        # An answer may reach beyond the end that is wanted.
        self._batches.extend(batch for batch in batches if self._end is None or batch.first <= self._end)
        if self._done:
            self._cancel_requests()
        else:
            self._send_requests()
            # The requests are tasks: they are sent before the caller goes to work on this answer, which may take long.
            await asyncio.sleep(0)

    def _advance(self, request: _PartRequest, batches: list[Batch]) -> None:
        """Move on past the batches of an answer, and learn how large the next parts may be."""
        ids, size = batches[-1].last + 1 - self._first, sum(batch.length for batch in batches)
        self._first = batches[-1].last + 1
        if self._since_us:
            self._tell_future(batches[0])
        self._since_us = 0
        self._fruitless_s = None
        if self._ahead is not None:
            self._ahead.answered(ids, size, whole=self._first > request.last)
            self._request_rest_of(request)
        elif self._end_known and self._end is not None:
            self._ahead = Ahead(self._first, self._end, self._settings.read_bytes, ids, size)

    def _tell_future(self, batch: Batch) -> None:
        """Warn if a reading by time begins where commit times stand still, because a clock was ahead."""
        if text := future_times(self._partition, batch.first, batch.commit_time_us, self._requests.wall_us()):
            _log.warning("%s", text)

    def _request_rest_of(self, request: _PartRequest) -> None:
        """Request what an answer left out of its part; drop the parts in which no batch can begin."""
        if self._ahead is not None and self._first <= request.last:
            self._under_way.appendleft(self._request_part(self._first, request.last))
        while self._ahead is not None and self._under_way and self._under_way[0].last < self._first:
            self._under_way.popleft().answer.cancel()

    def _cancel_requests(self) -> None:
        self._ahead = None
        while self._under_way:
            self._under_way.pop().answer.cancel()

    async def _find_end(self) -> None:
        """Set the end of the reading: the committed high-water mark, or `until` if that is lower. The owner proves it;
        an answer to a read may come from a server that has been replaced."""
        mark = await self._requests.high_water_mark(self._partition, self._timeout)
        self._end = mark if self._until is None else min(mark, self._until)
        self._end_known = True
        self._done = self._done or self._first > self._end

    async def _pause(self) -> None:
        """Pause before a request is repeated. Raises `DeadlineExceeded` after `timeout` seconds of empty answers."""
        now = asyncio.get_running_loop().time()
        if self._fruitless_s is None:
            self._fruitless_s = now
        try:
            if now - self._fruitless_s > self._timeout:
                raise DeadlineExceeded(
                    f"the owner of partition {self._partition} sent nothing of ids {self._first} to {self._end}, which "
                    f"are committed, for {self._timeout:g} s: try again, or with a longer timeout"
                )
            await asyncio.sleep(self._settings.retry_s_min)
        except BaseException:
            self._fruitless_s = None
            self._cancel_requests()
            raise

    def _checked(self, answer: Batches) -> list[Batch]:
        """Return the batches of an answer, verified. An error ends the reading. Bytes are verified before successors: a
        batch damaged on its way must not look like a forked log."""
        try:
            batches = split(answer.payload[0] if answer.payload else b"")
            return [batch for batch in batches if self._is_new(batch)]
        except PolonaiseError as error:
            self._broken = fresh(error)
            self._cancel_requests()
            raise

    def _is_new(self, batch: Batch) -> bool:
        if batch.partition != self._id:
            raise ProtocolError(f"a batch of partition {batch.partition} answers a request for partition {self._id}")
        batch.partition = self._partition
        if self._continuity is None:
            # Read by time: the first batch says where the reading begins.
            self._continuity = Continuity(max(batch.first, self._first))
        return self._continuity.follows(batch)

    def _send_requests(self) -> None:
        if self._ahead is None:
            if not self._under_way:
                self._under_way.append(self._request_part(self._first, WHOLE))
            return
        while len(self._under_way) < self._settings.reads_ahead:
            part = self._ahead.next_part(self._first)
            if part is None:
                return
            self._under_way.append(self._request_part(*part))

    def _request_part(self, first: TransactionId, last: TransactionId) -> _PartRequest:
        wait_s = self._settings.follow_s_max if self._follow else 0.0
        request = Read(
            first=first,
            bytes_max=self._settings.read_bytes,
            wait_ms=int(wait_s * 1000),
            with_data=int(self._with_data),
            after_time_us=self._since_us,
            part_last=last,
        )
        answer = asyncio.get_running_loop().create_task(
            self._requests.ask(self._partition, request, Batches, self._timeout + wait_s, wait_s=wait_s)
        )
        answer.add_done_callback(retrieve)
        return _PartRequest(first, last, answer)


class TransactionReader:
    """Yields the transactions of one partition in order, each body checked against its CRC; returned by `Log.read` and
    `Log.read_time`.

    ::

        async for tx in log.read(partition=0, after=-1):
            print(tx.id, tx.data)

    The iteration ends at the end of the range, and never because of an error. A wait may be given up
    (`asyncio.wait_for(anext(reader), 1)`): the next one goes on from there, as it does after an error that may pass,
    such as `DeadlineExceeded`. Any other error is raised again if the reader is used further. For one task at a time.
    To leave it before its end, call `aclose`.
    """

    # Not an asynchronous generator: any exception raised within one, even its caller's cancellation, ends it for good.

    def __init__(
        self, batches: BatchReader, after: TransactionId, until: TransactionId | None, since_us: int = 0
    ) -> None:
        self._batches = batches
        self._after = after
        self._until = until
        self._since_us = since_us
        self._unread: Iterator[Transaction] = iter(())
        self._broken: DataDamaged | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transaction:
        while True:
            try:
                # Only the next one: it is taken and returned in one step, so that a cancelled wait loses none.
                for tx in self._unread:
                    return tx
            except DataDamaged as error:
                self._broken = fresh(error)
                await self._batches.aclose()
                raise
            if self._broken is not None:
                raise fresh(self._broken)
            self._unread = self._wanted(await self._batches.__anext__())

    async def aclose(self) -> None:
        """Stop reading; cancel the requests under way."""
        self._unread = iter(())
        self._broken = None
        await self._batches.aclose()

    def _wanted(self, batch: Batch) -> Iterator[Transaction]:
        """Return the transactions of a batch that are in the range, and not older than `since_us`."""
        if batch.commit_time_us < self._since_us:
            return iter(())
        transactions, until = batch.transactions(self._after), self._until
        if until is None or batch.last <= until:
            return transactions
        return takewhile(lambda tx: tx.id <= until, transactions)


def future_times(partition: PartitionId, id: TransactionId, commit_time_us: int, now_us: int) -> str:
    """Return what is told of a commit time of the future by which a transaction was chosen; else empty."""
    if commit_time_us <= now_us + _FUTURE_US:
        return ""
    until = datetime.fromtimestamp(commit_time_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"partition {partition}: commit times stand still at {until}, which is in the future, from id {id} on or "
        "earlier: a clock was ahead there (or this machine's is behind). Choose transactions of this partition by ids"
    )
