"""What an append or a submission becomes, to be waited for by threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from polonaise.blocking.background import Background
from polonaise.client import receipt as asynchronous
from polonaise.client.running import OutcomeKind
from polonaise.client.running import Submission as AsynchronousSubmission
from polonaise.errors import AppendUnknown, DeadlineExceeded, PolonaiseError
from polonaise.terms import PartitionId, TransactionId

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Receipt:
    """One append, or a group that commits as one, on its way or settled. As `polonaise.Receipt`."""

    __slots__ = ("_background", "_receipt")

    def __init__(self, background: Background, receipt: asynchronous.Receipt) -> None:
        self._background = background
        self._receipt = receipt

    def result(self, timeout: float | None = None) -> Receipt:
        """This receipt, once the append is committed. Raises what it failed with.

        Raises `DeadlineExceeded` after `timeout` seconds, which changes nothing about the append: ask again later.
        """
        if not self.wait(timeout):
            raise DeadlineExceeded(f"{self!r} is not decided after {timeout:g} s: it may still commit, so ask again")
        error = self.error
        if error is not None:
            raise error
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the fate is known, either way; whether it is after `timeout` seconds at most."""
        receipt = self._receipt
        if not receipt.done:
            try:
                self._background.call(lambda: _within(lambda: receipt.wait(None), timeout))
            except TimeoutError:
                return receipt.done
        return True

    def applied(self, timeout: float | None = None) -> None:
        """Wait until it is committed and this client's own view has applied it.

        Raises what the append failed with, and `DeadlineExceeded` after `timeout` seconds.
        """
        waited(self._background, lambda: self._receipt.applied(timeout))

    @property
    def partition(self) -> PartitionId:
        """The partition that it was appended to."""
        return self._receipt.partition

    @property
    def sequence(self) -> int:
        """Its number among this client's appends to the partition."""
        return self._receipt.sequence

    @property
    def count(self) -> int:
        """How many transactions it is."""
        return self._receipt.count

    @property
    def id(self) -> TransactionId:
        """The (first) transaction id; -1 until committed."""
        return self._receipt.id

    @property
    def ids(self) -> range:
        """The ids of all transactions of a committed group; empty until then."""
        return self._receipt.ids

    @property
    def last_id(self) -> TransactionId:
        """The id of the last transaction of a committed group; -1 until then."""
        return self._receipt.last_id

    @property
    def value(self) -> Any:
        """What the context returned in the run that committed; None for an append without one."""
        return self._receipt.value

    @property
    def done(self) -> bool:
        """Whether the fate is known."""
        return self._receipt.done

    @property
    def committed(self) -> bool:
        """Whether it is in the log for good; False while that is not known, too."""
        return self._receipt.committed

    @property
    def error(self) -> PolonaiseError | None:
        """Why it failed; None while pending and once committed."""
        error = self._receipt.error
        return None if error is None else with_receipt(self._background, error)

    def __repr__(self) -> str:
        return repr(self._receipt)


class Outcome(NamedTuple):
    """How a submission ended."""

    kind: OutcomeKind
    receipt: Receipt | None = None
    """COMMITTED and UNKNOWN: the append's."""
    error: BaseException | None = None
    """What `Submission.result` raises; None when committed."""


class Submission:
    """A context that is being run in the background."""

    __slots__ = ("_background", "_submission")

    def __init__(self, background: Background, submission: AsynchronousSubmission) -> None:
        self._background = background
        self._submission = submission

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt, once committed. Raises what ended the submission otherwise.

        Raises `DeadlineExceeded` after `timeout` seconds; it goes on all the same.
        """
        outcome = self.outcome(timeout)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.receipt is not None
        return outcome.receipt

    def outcome(self, timeout: float | None = None) -> Outcome:
        """How it ended, as a value. Raises nothing but `DeadlineExceeded` after `timeout` seconds, and `Closed`."""
        try:
            kind, receipt, error = self._background.call(lambda: _within(self._submission.outcome, timeout))
        except TimeoutError:
            raise DeadlineExceeded(f"the submission has not ended after {timeout:g} s: it goes on") from None
        if error is not None:
            with_receipt(self._background, error)
        if isinstance(receipt, asynchronous.Receipt):
            return Outcome(kind, Receipt(self._background, receipt), error)
        return Outcome(kind, receipt, error)  # none, or that of the error, once it was asked for

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._submission.done

    def cancel(self) -> None:
        """End it. An append that was sent may commit all the same."""
        self._background.now(self._submission.cancel)


def waited(background: Background, make: Callable[[], Awaitable[T]]) -> T:
    """As `Background.call`; a receipt in what is raised is one that threads can wait for."""
    try:
        return background.call(make)
    except AppendUnknown as error:
        with_receipt(background, error)
        raise


def with_receipt(background: Background, error: E) -> E:
    """The error, with a receipt in it that threads can wait for."""
    if isinstance(error, AppendUnknown) and isinstance(error.receipt, asynchronous.Receipt):
        error.receipt = Receipt(background, error.receipt)
    return error


async def _within(make: Callable[[], Awaitable[T]], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await make()
