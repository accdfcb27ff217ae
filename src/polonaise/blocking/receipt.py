"""Receipts and submissions for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from polonaise.blocking.background import Background
from polonaise.client import appends as asynchronous
from polonaise.client.appends import CopiedReceipt
from polonaise.client.protocol.arguments import checked_seconds
from polonaise.client.running import OutcomeKind
from polonaise.client.running import Submission as AsynchronousSubmission
from polonaise.errors import AppendUnknown, CopiesUnproved, DeadlineExceeded, PolonaiseError
from polonaise.terms import PartitionId, TransactionId

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Receipt:
    # ---- from polonaise.client.appends by `make blocking`: change it there

    """One append, or a group that commits as one, on its way or settled.

    ::

        receipt = log.append(b"1 100", partition=0).result()
        print("committed as", receipt.id)
        receipt.applied()  # this client's view has applied it

    `result` returns the receipt itself once the append is committed, and raises the error that it failed with. Any
    number of threads may wait for it, again and again; giving up waiting changes nothing about the append.

    `id` is the transaction id, -1 until committed; `sequence` the number among the transactions that this client has
    appended to the partition, from 1: both of the first one if the append is a group of `count`.
    """

    @property
    def count(self) -> int:
        """The number of transactions of the append."""
        return self._receipt.count

    @property
    def sequence(self) -> int:
        """The append's number among this client's appends to the partition, from 1; of a group the first one."""
        return self._receipt.sequence

    @property
    def id(self) -> TransactionId:
        """The transaction's id, or the first one of a group; -1 until committed."""
        return self._receipt.id

    @property
    def value(self) -> Any:
        """What the context returned in the run that built this append; None without a context."""
        return self._receipt.value

    @property
    def partition(self) -> PartitionId:
        """The partition of the append."""
        return self._receipt.partition

    @property
    def ids(self) -> range:
        """The ids of all transactions of the append; empty until committed."""
        return self._receipt.ids

    @property
    def last_id(self) -> TransactionId:
        """The id of the append's last transaction; -1 until committed."""
        return self._receipt.last_id

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: committed, failed, or unknown for good (`AppendUnknown`). With `copies` or
        `zones` it is settled by their proof, not by the commit.
        """
        return self._receipt.done

    @property
    def committed(self) -> bool:
        """Whether the append is known to be committed. False also while the fate is not known."""
        return self._receipt.committed

    @property
    def error(self) -> PolonaiseError | None:
        """The error that `result` raises; None while pending, and once committed and proved."""
        return self._error()

    def applied(self, timeout: float | None = None) -> None:
        """Wait until the append is committed and this client's own view has applied it.

        Raises the error that the append failed with, the error that stopped the partition, and `DeadlineExceeded` after
        `timeout` seconds: wait again, the append goes on.
        """
        return self._applied(timeout)

    # ---- by hand: what differs for threads

    __slots__ = ("_background", "_receipt")

    def __init__(self, background: Background, receipt: asynchronous.Receipt) -> None:
        self._background = background
        self._receipt = receipt

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait until the append is committed; return this receipt.

        Raises the error that the append failed with, and `DeadlineExceeded` after `timeout` seconds, which changes
        nothing about the append: call again later. Once the append is committed, `CopiesUnproved` is raised instead if
        what it needs is not proved by then.
        """
        if not self.wait(timeout):
            if isinstance(self._receipt, CopiedReceipt) and self._receipt.committed:
                raise with_receipt(self._background, self._receipt.unproved(self._receipt.late(timeout)))
            raise DeadlineExceeded(f"{self!r} is not decided after {timeout:g} s: it may still commit, so ask again")
        error = self.error
        if error is not None:
            raise error
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the receipt is settled (`done`), or `timeout` seconds are over; return whether it is settled.

        It is settled as well, with `error`, when the log was closed before what the append needs was proved. Raises
        `BadOption` for an invalid timeout, and `CopiesUnproved` if the append is committed and the proof can't be had
        at present, for instance because the partition's owner is of an older version by now.
        """
        checked_seconds("timeout", timeout)
        receipt = self._receipt
        if not self._settled:
            try:
                if self._background.call(lambda: _within(lambda: receipt.wait(None), timeout)) is None:
                    return receipt.done
            except CopiesUnproved as error:
                if not self._settled:  # the log works, and another wait may bring the proof
                    with_receipt(self._background, error)
                    raise
        return True

    @property
    def _settled(self) -> bool:
        """Whether waiting can't tell more: the receipt is done, or its client has stopped before the proof."""
        return self._receipt.done or isinstance(self._receipt.error, CopiesUnproved)

    def _applied(self, timeout: float | None) -> None:
        if isinstance(error := self.error, CopiesUnproved):
            raise error  # the log was closed, and has no thread any more to wait in
        waited(self._background, lambda: self._receipt.applied(timeout))

    def _error(self) -> PolonaiseError | None:
        error = self._receipt.error
        return None if error is None else with_receipt(self._background, error)

    def __reduce__(self) -> NoReturn:
        self._receipt.__reduce__()

    def __repr__(self) -> str:
        return repr(self._receipt)


class Outcome(NamedTuple):
    """How a submission ended."""

    kind: OutcomeKind
    receipt: Receipt | None = None
    """The receipt of the append, when COMMITTED or UNKNOWN, or RAISED with `CopiesUnproved`; else None."""
    error: BaseException | None = None
    """The error that `Submission.result` raises; None when COMMITTED."""


class Submission:
    # ---- from polonaise.client.running by `make blocking`: change it there

    """A context that runs in the background thread; returned by `Log.submit`.

    ::

        submission = log.submit(withdraw, 1, 30, partition=0, timeout=10)
        receipt = submission.result()  # or, without exceptions:
        outcome = submission.outcome()

    Any number of threads may wait for it. Giving up waiting does not end it; `cancel` does.
    """

    @property
    def done(self) -> bool:
        """Whether the submission has ended, in any way."""
        return self._submission.done

    def cancel(self) -> None:
        """Cancel the context's runs. An append that was sent may commit all the same."""
        return self._background.now(self._submission.cancel)

    # ---- by hand: what differs for threads

    __slots__ = ("_background", "_submission")

    def __init__(self, background: Background, submission: AsynchronousSubmission) -> None:
        self._background = background
        self._submission = submission

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt of the committed append.

        Raises what `Log.run` raises, `asyncio.CancelledError` after `cancel`, and `DeadlineExceeded` after `timeout`
        seconds; the submission goes on all the same.
        """
        outcome = self.outcome(timeout)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.receipt is not None
        return outcome.receipt

    def outcome(self, timeout: float | None = None) -> Outcome:
        """Wait until the submission has ended; return how, as a value.

        Raises only `DeadlineExceeded` after `timeout` seconds, `BadOption` for an invalid timeout, and what every wait
        in a thread raises: `Closed`, `wrong_thread`, `Forked`.
        """
        checked_seconds("timeout", timeout)
        ended = self._background.call(lambda: _within(self._submission.outcome, timeout))
        if ended is None:
            raise DeadlineExceeded(f"the submission has not ended after {timeout:g} s: it goes on")
        kind, receipt, error = ended.result
        if error is not None:
            with_receipt(self._background, error)
        if isinstance(receipt, asynchronous.Receipt):
            return Outcome(kind, Receipt(self._background, receipt), error)
        return Outcome(kind, receipt, error)  # none, or the error's, which `with_receipt` has wrapped by now


@contextmanager
def receipts_wrapped(background: Background) -> Iterator[None]:
    """Wrap the receipt of an `AppendUnknown` or `CopiesUnproved` that is raised within, for use by threads."""
    try:
        yield
    except (AppendUnknown, CopiesUnproved) as error:
        with_receipt(background, error)
        raise


def waited(background: Background, make: Callable[[], Awaitable[T]]) -> T:
    """Await what `make` returns in the background thread. A receipt of the error that it raises is one for threads."""
    with receipts_wrapped(background):
        return background.call(make)


def with_receipt(background: Background, error: E) -> E:
    """Return the error, with the receipt of an `AppendUnknown` or `CopiesUnproved` wrapped for use by threads."""
    if isinstance(error, AppendUnknown | CopiesUnproved) and isinstance(error.receipt, asynchronous.Receipt):
        error.receipt = Receipt(background, error.receipt)
    return error


class _InTime(NamedTuple, Generic[T]):
    """What was waited for has ended in time, with this result."""

    result: T


async def _within(make: Callable[[], Awaitable[T]], timeout: float | None) -> _InTime[T] | None:
    """Await what `make` returns; return None if that takes longer than `timeout` seconds.

    A value, because a `TimeoutError` in the waiting thread is that of an application's own handler of signals.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            return _InTime(await make())
    return None
