"""Receipts: objects that an application awaits to learn the fate of an append."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, NoReturn

from polonaise.client.condition import PartitionCondition
from polonaise.client.protocol import outcomes
from polonaise.client.protocol.outstanding import Pending
from polonaise.client.waiting import check_loop, deadline_in, until
from polonaise.errors import CopiesUnproved, DeadlineExceeded, PolonaiseError
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire.copies import Needs


class Receipt(Pending):
    """One append, or a group that commits as one, on its way or settled.

    ::

        receipt = await log.append(b"1 100", partition=0)
        print("committed as", receipt.id)
        await receipt.applied()  # this client's view has applied it

    `await receipt` returns the receipt itself once the append is committed, and raises the error that it failed with.
    Any number of tasks of the client's event loop may await it, again and again; giving up waiting changes nothing
    about the append.

    `id` is the transaction id, -1 until committed; `sequence` the number among the transactions that this client has
    appended to the partition, from 1: both of the first one if the append is a group of `count`.
    """

    __slots__ = ("_condition", "value")

    def __init__(self, condition: PartitionCondition, count: int, size: int) -> None:
        self._condition = condition
        self.count = count
        """The number of transactions of the append."""
        self.size = size
        self.sequence: int = 0
        """The append's number among this client's appends to the partition, from 1; of a group the first one."""
        self.id = -1
        self.failure = None
        self.watchers = None
        self.value: Any = None
        """What the context returned in the run that built this append; None without a context."""

    @property
    def partition(self) -> PartitionId:
        """The partition of the append."""
        return self._condition.partition

    @property
    def ids(self) -> range:
        """The ids of all transactions of the append; empty until committed."""
        return range(self.id, self.id + self.count) if self.id >= 0 else range(0)

    @property
    def last_id(self) -> TransactionId:
        """The id of the append's last transaction; -1 until committed."""
        return self.id + self.count - 1 if self.id >= 0 else -1

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: committed, failed, or unknown for good (`AppendUnknown`). With `copies` or
        `zones` it is settled by their proof, not by the commit."""
        return self.settled

    @property
    def committed(self) -> bool:
        """Whether the append is known to be committed. False also while the fate is not known."""
        return self.id >= 0

    @property
    def error(self) -> PolonaiseError | None:
        """The error that awaiting the receipt raises; None while pending, and once committed and proved."""
        if self.failure is None:
            return None
        return outcomes.error_of(self.failure, self.partition, self.sequence, self, self._condition.stopped)

    def __await__(self) -> Generator[None, None, Receipt]:
        if self.id < 0:
            if self.failure is None:
                check_loop(self._condition.loop)
                yield from self._future().__await__()
            if self.failure is not None:
                error = self.error
                assert error is not None
                raise error
        return self

    def wait(self, deadline_s: float | None) -> Awaitable[None]:
        """Wait until the receipt is settled (`done`); raise nothing for a failed append. `deadline_s` is a time of the
        loop. Raises `TimeoutError` after it."""
        return _settled() if self.settled else until(self._future(), deadline_s)

    async def applied(self, timeout: float | None = None) -> None:
        """Wait until the append is committed and this client's own view has applied it.

        Raises the error that the append failed with, the error that stopped the partition, and `DeadlineExceeded` after
        `timeout` seconds: wait again, the append goes on.
        """
        condition = self._condition
        deadline_s = deadline_in(timeout, condition.loop)
        which = f"append {self.sequence} to partition {self.partition}"
        try:
            await self.wait(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{which} is not decided after {timeout:g} s: {condition.why_it_waits()}; "
                "it may still commit, so await the receipt again"
            ) from condition.trouble
        await self
        try:
            await condition.mark.wait(self.last_id, deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{which} is committed as {self.last_id}, and this client's view has not applied it after "
                f"{timeout:g} s: {condition.lag()}; wait again, or see what holds up the view"
            ) from condition.trouble

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._condition.loop.create_future()
        if self.watchers is None:
            self.watchers = future  # nearly always the only one: a list for it would be one more object per append
        else:
            self.watchers = [watcher for watcher in _each(self.watchers) if not watcher.done()]
            self.watchers.append(future)
        return future

    def __reduce__(self) -> NoReturn:
        raise TypeError("a receipt belongs to the process that appended: send another one its id")

    def __repr__(self) -> str:
        fate = f"committed as {self.id}" if self.id >= 0 else self.failure.reason.name if self.failure else "pending"
        return f"<Receipt of append {self.sequence} to partition {self.partition}: {fate}>"


def _each(watchers: Any) -> Any:
    return watchers if type(watchers) is list else (watchers,)


async def _settled() -> None:
    """The awaitable for a receipt that is settled already."""


def tell(settled: list[Pending]) -> None:
    for receipt in settled:
        watchers, receipt.watchers = receipt.watchers, None
        for future in _each(watchers) if watchers is not None else ():
            if not future.done():
                future.set_result(None)


class CopiedReceipt(Receipt):
    """The receipt of an append that needs copies, or zones: as `Receipt`, but `done` only once these are proved.
    `committed` says whether the append is in the log. The owner is asked for the proof while somebody awaits the
    receipt; where it can be had no more, awaiting raises `CopiesUnproved`."""

    __slots__ = ("needs", "proved")

    def __init__(self, condition: PartitionCondition, count: int, size: int, needs: Needs) -> None:
        super().__init__(condition, count, size)
        self.needs = needs
        self.proved = False
        """Whether the append is proved to be on the copies and zones that it needs: only once it was awaited."""

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: proved, failed, or unknown for good (`AppendUnknown`)."""
        return self.proved or self.failure is not None

    @property
    def error(self) -> PolonaiseError | None:
        """The error that awaiting the receipt raises; None while it would go on waiting, and once proved."""
        if self.id >= 0 and not self.proved and self._condition.stopped is not None:
            return self.unproved(str(self._condition.stopped))
        return super().error

    def __await__(self) -> Generator[None, None, Receipt]:
        yield from super().__await__()
        if not self.proved:
            yield from self._prove().__await__()
        return self

    async def wait(self, deadline_s: float | None) -> None:
        async with asyncio.timeout_at(deadline_s):
            await super().wait(None)
            if self.failure is None:
                await self._prove()

    async def _prove(self) -> None:
        if self.proved:
            return
        check_loop(self._condition.loop)
        try:
            await self._condition.prove(self.last_id, self.needs)
        except PolonaiseError as error:
            raise self.unproved(str(error)) from error
        self.proved = True

    def unproved(self, why: str) -> CopiesUnproved:
        later = "await the error's receipt to wait on"
        if self._condition.stopped is not None:
            later = "this client can't wait for the proof any more, and a new one finds the append under that id"
        return CopiesUnproved(
            f"append {self.sequence} to partition {self.partition} is in the log as {self.id}, for good, and is not "
            f"proved to be on {self.needs}: {why}. Do not append it again; {later}",
            self,
        )

    async def applied(self, timeout: float | None = None) -> None:
        """Wait as `Receipt.applied` does; raises `CopiesUnproved` instead of `DeadlineExceeded` for what is committed
        and not proved."""
        try:
            await super().applied(timeout)
        except DeadlineExceeded as error:
            if self.id < 0 or self.proved:
                raise
            raise self.unproved(self.late(timeout)) from error

    def late(self, timeout: float | None) -> str:
        return f"the {timeout or 0:g} s are over{self._condition.because()}"
