"""The reading half of a client."""

from __future__ import annotations

from datetime import datetime

from polonaise.client.batchreader import BatchReader, TransactionReader
from polonaise.client.connected import Connected
from polonaise.client.protocol.arguments import INT64_MAX, checked_id, wrong
from polonaise.errors import BadOption, BeyondLog, OwnTransaction
from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.wire.messages import Batches, Read


class ReadableLog(Connected):
    """The reading methods of `Log`. They need no view and mount no partition, and return only what is committed."""

    def read(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> TransactionReader:
        """Read the application's transactions with ids above `after`, in order.

        ::

            async for tx in log.read(partition=0, after=-1):
                print(tx.id, tx.data)

        Ends at id `until` (inclusive), or at the committed high-water mark of when the reading began, whichever is
        lower. With `follow` it waits for more transactions instead, and ends only at `until`, if at all. The library's
        own transactions are left out.

        With an `after` beyond the log's end the reading ends at once, or with `follow` waits until the log has grown
        past it. Code that keeps its own position compares it with `high_water_mark` when it begins: a position above
        that is of another log, or the log was restored to an earlier state. Views and worker groups do so, and raise
        `ClientAhead`.

        Raises `BatchDamaged`, `DataDamaged`, `OutOfOrder`, `LogForked` or `ProtocolError` rather than yield what is not
        the log, `HistoryTrimmed` for ids that were trimmed if the cluster reads no fragments, and `DeadlineExceeded`
        when the owner does not answer, or has nothing that it should have, for `timeout` seconds (default
        `ClientSettings.answer_s_max`), with `follow` for `ClientSettings.follow_s_max` longer; the reading can be
        continued then.
        """
        reader = self.read_batches(partition, after=after, until=until, follow=follow, timeout=timeout)
        return TransactionReader(reader, after, until)

    def read_batches(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        with_data: bool = True,
        timeout: float | None = None,
    ) -> BatchReader:
        """Read whole batches: like `read`, but much faster for code that works on a batch's columns.

        The first batch may begin at or below `after`, and the last one may end above `until`. With `with_data=False`
        they come without bodies, whose CRCs can't be checked then. They hold the library's own transactions too, whose
        generation is below 0; `Batch.transactions` leaves them out.
        """
        checked_id("after", after)
        if until is not None:
            checked_id("until", until)
        return BatchReader(
            self._requests,
            self._settings,
            self._usable(partition),
            after=after,
            until=until,
            follow=follow,
            with_data=with_data,
            timeout=self._answer_s(timeout),
        )

    def read_time(
        self,
        partition: PartitionId | None = None,
        *,
        since: int | datetime,
        follow: bool = False,
        timeout: float | None = None,
    ) -> TransactionReader:
        """Read from the first transaction with a commit time of `since` or later; otherwise like `read`. `since` is
        microseconds UTC as an integer, or a datetime with a time zone. Raises `BadOption` for anything else."""
        since_us = _microseconds(since)
        reader = BatchReader(
            self._requests,
            self._settings,
            self._usable(partition),
            follow=follow,
            since_us=since_us,
            timeout=self._answer_s(timeout),
        )
        return TransactionReader(reader, -1, None, since_us)

    async def transaction(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """Return one transaction by its id, its bytes checked.

        Raises `BadOption` for an invalid id; `BeyondLog` when it is not committed, as far as the server knows;
        `OwnTransaction` for one that the library used for itself, such as to open a producer; `HistoryTrimmed` as
        `read`; `BatchDamaged` or `DataDamaged` for bytes that do not fit their CRC; and `DeadlineExceeded` after
        `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        partition = self._usable(partition)
        checked_id("id", id, 0, "a transaction's id is an integer from 0 to 2**63 - 1")
        timeout_s = self._answer_s(timeout)
        request = Read(first=id, bytes_max=1, wait_ms=0, with_data=1, after_time_us=0)
        answer = await self._requests.ask(partition, request, Batches, timeout_s)
        batch = Batch.parse(answer.payload[0]) if answer.payload else None
        if batch is not None and batch.partition == self._requests.id_of(partition) and batch.first <= id <= batch.last:
            batch.partition = partition
            tx = next(batch.transactions(id - 1, own=True))
            if tx.own:
                raise OwnTransaction(
                    f"transaction {id} of partition {partition} is the library's own, and no application's: "
                    "log.read passes over such transactions, and `polonaise segment dump` shows them"
                )
            return tx
        raise BeyondLog(f"transaction {id} of partition {partition} is not in the log, or not committed yet")


def _microseconds(since: int | datetime) -> int:
    # At least 1: in a request, 0 stands for a reading that begins at an id.
    if isinstance(since, int) and since <= INT64_MAX:
        return max(1, since)
    if not isinstance(since, datetime):
        raise wrong("since", since, "microseconds UTC as an integer, or a datetime with a time zone")
    if since.tzinfo is None:
        raise BadOption(f"since={since} has no time zone: give it one, for example datetime.now(UTC)")
    return max(1, int(since.timestamp() * 1_000_000))
