"""Views: the protocols by which an application keeps state from the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from polonaise.applicationcode import ordinary, task_here
from polonaise.errors import PolonaiseError, ViewFailed, ViewUnavailable, trace_of
from polonaise.redaction import redacted_text
from polonaise.terms import PartitionId, Transaction, TransactionId

_log = logging.getLogger("polonaise.client")


_LOOK_S: Final = 2.0
"""Seconds between looks whether a view has gone back, or is away."""


class View(Protocol):
    """State kept from the log by an application: a database, a cache, a report.

    ::

        class Balances:
            def __init__(self):
                self.marks, self.accounts = {}, {}

            def high_water_mark(self, partition):
                return self.marks.get(partition, -1)

            def apply(self, tx):
                account, amount = tx.data.decode().split()
                self.accounts[account] = self.accounts.get(account, 0) + int(amount)
                self.marks[tx.partition] = tx.id

            def failed(self, partition, id, error):
                print(f"transaction {id} can't be applied: {error}")

    Methods may be plain functions or coroutine functions; the client calls them in its event loop.

    The applied high-water mark must be stored together with what was applied, in one atomic step: then each transaction
    is applied exactly once, whatever dies when.

    `high_water_mark` and `apply` may raise two errors that blame no transaction: `ViewUnavailable` (the store can't be
    reached: the client tries again until it can, and says so in `Log.trouble`) and `ViewUnfit` (the store is not what
    the view needs: the partition stops).

    A view may have two more methods. `belongs_to(log_key)`, a plain one, is called before any other, so that
    `high_water_mark` can refuse state that was kept from another log: ids alone don't tell two logs apart. `close`,
    plain or a coroutine function, is called when the client ends; another client may be given the view afterwards.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """Return the id of the last transaction of the partition that was applied; -1 for none.

        Called before the partition is first mounted, and after `apply` has failed, again and again until it answers. A
        mark below the one that was last reached has the log fed again from there.
        """

    def apply(self, tx: Transaction) -> Awaitable[None] | None:
        """Apply one transaction. Called in the order of ids, one at a time per partition, and for every transaction.

        Ids may leave some out: the library's own transactions are not given to an application's `apply`. If it is a
        coroutine function, it may run for two partitions at once. What it raises, but for `ViewUnavailable` and
        `ViewUnfit`, is reported to `failed`, and after a pause the transaction is delivered again, unless
        `high_water_mark` says by then that it was applied.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """Take note that `apply` raised `error` for this transaction. Only its partition waits until it is applied."""


class RunView(Protocol):
    """A view that applies several transactions at once, so that one atomic step of its store serves them all. The
    client never calls its `apply`, if it has one. For the rest see `View`."""

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """Return the applied high-water mark of the partition; see `View.high_water_mark`."""

    def apply_run(self, run: Sequence[Transaction]) -> TransactionId | Awaitable[TransactionId]:
        """Apply one or more transactions of one partition, in the order of ids; return the mark reached.

        A run is what has queued up, within `ClientSettings.run_count_max` and `run_bytes_max`. The returned mark may be
        below the run's last id (the rest is offered again) or above it (another process has moved the same store on).

        When it raises for several transactions, they are offered again one by one; when for one, that is reported to
        `failed` and offered again after a pause: a view need not find out which one it could not apply.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """Take note that `apply_run` raised `error` for this transaction alone; see `View.failed`."""


def takes_own(view: View | RunView) -> bool:
    """Whether the view is one of the library's that is given the library's own transactions."""
    return bool(getattr(view, "takes_own", False))


def tell_log(view: View | RunView, log_key: bytes) -> None:
    """Tell the view the key of the log or topic that it follows, if it has a `belongs_to`."""
    belongs_to = getattr(view, "belongs_to", None)
    if belongs_to is not None:
        belongs_to(log_key)


def gone_back(partition: PartitionId, before: TransactionId, mark: TransactionId) -> ViewUnavailable:
    """Return what is told of a view whose mark is below what was applied to it, as after a restore."""
    where = f"partition {partition} was applied up to {before}, and the view says {mark}"
    return ViewUnavailable(f"the view has gone back: {where}; it is brought up to date from the log")


def takes_nothing(partition: PartitionId, first: TransactionId, mark: TransactionId) -> ViewFailed:
    """Return what is told of a view that was given a run from `first` on, and has moved its mark nowhere."""
    where = f"from {first} on of partition {partition}, and stays at {mark}"
    return ViewFailed(f"the view takes nothing of the transactions {where}")


async def close_view(view: View | RunView) -> None:
    close = getattr(view, "close", None)
    if close is None:
        return
    try:
        closed = close()
        if closed is not None:
            await closed
    except Exception as error:  # noqa: BLE001 - the application's own code; logged
        _log.error("the view's `close` failed: %s", redacted_text(error, repr), exc_info=trace_of(error))


class ViewFollower(Protocol):
    def look(self, error: ViewUnavailable | ViewFailed | None) -> None:
        """Have the view asked for its mark before anything is applied: it has gone back, or has this trouble."""


async def watch_view(
    stepped_back: Callable[[], Awaitable[Collection[PartitionId]]], followers: Mapping[PartitionId, ViewFollower]
) -> None:
    """Look now and then whether the view has gone back, for all partitions together; run as a task. Without it, a
    restored database would be noticed with the next transaction of each partition only."""
    here = task_here()
    while True:
        await asyncio.sleep(_LOOK_S)
        away: ViewUnavailable | ViewFailed | None = None
        partitions: Collection[PartitionId]
        try:
            partitions = await stepped_back()
        except BaseException as raised:  # noqa: BLE001 - the view's own, whatever it is; its partitions' trouble
            error = ordinary(raised, "the view", here)
            partitions = list(followers)
            if isinstance(error, ViewUnavailable):
                away = error
            elif not isinstance(error, PolonaiseError):  # which who asks for the mark meets again, and tells what to do
                away = ViewFailed(f"the view can't say whether it has gone back: {redacted_text(error, repr)}")
                _log.debug("%s", away, exc_info=error)
        for partition in partitions:
            if partition in followers:
                followers[partition].look(away)
