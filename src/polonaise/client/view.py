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
"""Seconds between looks whether a view has gone back, or is away, for those who may have nothing to apply."""


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

    Methods may be plain functions or coroutine functions; the client calls them in its event loop. `polonaise.SqlView`
    is a view in a database.

    The applied high-water mark must be stored together with what was applied, in one atomic step: then each transaction
    is applied exactly once, whatever dies when.

    Two errors say that no transaction is to blame; `high_water_mark` and `apply` may raise them: `ViewUnavailable` (the
    store can't be reached: the client tries again until it can, reports nothing to `failed`, and says so in
    `Log.trouble`) and `ViewUnfit` (the store is not what the view needs: the partition stops).

    A view that outlives its process may have a plain method `belongs_to(log_key)`, which the client calls before
    any other. With it the view can refuse, in `high_water_mark`, state that was kept from another log: ids alone don't
    tell two logs apart.

    A view that holds threads or connections may have a method `close`, plain or a coroutine function, which the client
    calls when it ends. Another client may be given the same view afterwards.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """Return the id of the last transaction of the partition that was applied; -1 for none.

        Called before the client first mounts the partition, again and again until it answers, and after `apply` has
        failed. A mark below the one that was last reached has the log fed again from there.
        """

    def apply(self, tx: Transaction) -> Awaitable[None] | None:
        """Apply one transaction. Called in the order of ids, one at a time per partition, and for every transaction.

        Ids rise, but may leave some out: the library's own transactions, such as one that opens a producer, have ids
        too and are not given to an application's `apply`.

        Partitions are independent: if `apply` is a coroutine function, it may run for two partitions at once. What it
        raises, but for `ViewUnavailable` and `ViewUnfit`, is reported to `failed`. After a pause the transaction is
        delivered again, unless `high_water_mark` says by then that it was applied.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """Take note that `apply` raised `error` for this transaction. Only its partition waits until it is applied."""


class RunView(Protocol):
    """A view that applies several transactions at once, so that one atomic step of its store serves them all.

    A view with a method `apply_run` is a `RunView`; the client never calls its `apply`, if it has one. For the rest see
    `View`.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """Return the applied high-water mark of the partition; see `View.high_water_mark`."""

    def apply_run(self, run: Sequence[Transaction]) -> TransactionId | Awaitable[TransactionId]:
        """Apply one or more transactions of one partition, in the order of ids; return the mark reached.

        A run is what has queued up, within `ClientSettings.run_count_max` and `run_bytes_max`; while the view keeps up,
        that is the transactions of one batch. The returned mark may be below the run's last id (the rest is offered
        again) or above it (another process has moved the same store on: what the mark covers is skipped).

        When `apply_run` raises for several transactions, they are offered again one by one. When it raises for one,
        that transaction is reported to `failed` and offered again after a pause. So a view need not find out which
        transaction it could not apply. (`ViewUnavailable` and `ViewUnfit`: see `View`.)
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """Take note that `apply_run` raised `error` for this transaction alone; see `View.failed`."""


def takes_own(view: View | RunView) -> bool:
    """Whether the view is one of the library's that is given the library's own transactions, too."""
    return bool(getattr(view, "takes_own", False))


def tell_log(view: View | RunView, log_key: bytes) -> None:
    """Tell the view, by its `belongs_to`, if it has one, the key of the log that it follows, or of the topic."""
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
    """Call the view's `close`, if it has one. Log what it raises: the client is closing in any case."""
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
    """Applies one partition to a view: a client's task, or a group's."""

    def look(self, error: ViewUnavailable | ViewFailed | None) -> None:
        """Have the view asked for its mark before anything is applied: it has gone back, or has this trouble."""


async def watch_view(
    stepped_back: Callable[[], Awaitable[Collection[PartitionId]]], followers: Mapping[PartitionId, ViewFollower]
) -> None:
    """Look now and then whether the view has gone back, for all partitions together; run as a task.

    Without it, a database that was restored would be noticed with the next transaction of each partition only.
    """
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
