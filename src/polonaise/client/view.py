"""What an application derives from the log, as the client sees it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from polonaise.terms import PartitionId, Transaction, TransactionId

_log = logging.getLogger("polonaise.client")


class View(Protocol):
    """State kept from the log: a database, a cache, a report. Methods may be plain or coroutines.

    Its high-water mark must be stored together with what was applied, in one atomic step: then each transaction is
    applied exactly once, whatever dies when.

    Two kinds of failure are not a transaction's fault, and any method may say so: `ViewUnavailable` (the store can't be
    reached: tried again until it can, nothing is reported, `Log.trouble` tells) and `ViewUnfit` (the store is not what
    the view needs: the partition stops).

    A view that outlives its process may have a method `belongs_to(cluster_key)`, plain, which the client calls before
    any other: to refuse, in `high_water_mark`, what was kept from another log. Ids alone don't tell.

    A view that holds threads or connections may have a method `close`, plain or a coroutine, which the client calls
    when it ends. Another client may be given the same view afterwards.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """The id of the last transaction of the partition that was applied; -1 for none.

        Asked when the client mounts the partition, and again after `apply` has failed.
        """

    def apply(self, tx: Transaction) -> Awaitable[None] | None:
        """Apply one transaction. Called strictly by id, one at a time per partition; none is left out.

        Ids rise, and need not follow one another: what the library writes for itself, such as that a producer was
        opened, is in the log too and is given to nobody.

        Partitions are independent: two of them may be within `apply` at once if it is a coroutine. What it raises is
        reported to `failed`, and the same transaction is delivered again after a pause.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """`apply` raised `error` for this transaction; only this partition waits."""


class RunView(Protocol):
    """A view that takes several transactions at once, so that one atomic step of its store serves them all.

    A view is one by having `apply_run`; an `apply` that it may have is its own. Everything said of `View` holds.
    """

    def high_water_mark(self, partition: PartitionId) -> TransactionId | Awaitable[TransactionId]:
        """As `View.high_water_mark`."""

    def apply_run(self, run: Sequence[Transaction]) -> TransactionId | Awaitable[TransactionId]:
        """Apply transactions of one partition: one or more, strictly by id, none left out. The mark reached.

        What has queued up comes as one run, within `ClientSettings.run_count_max` and `run_bytes_max`; while the view
        keeps up, that is what one batch brought. The answer may be below the run's last id (the rest is offered again)
        and above it (somebody else has moved the same store on: what that covers is skipped).

        When a run of several raises, its transactions are offered again one by one; when a run of one raises, that is
        reported to `failed` and offered again after a pause. So a view need not find out which one it could not take.
        """

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """As `View.failed`."""


def takes_own(view: View | RunView) -> bool:
    """Whether it is a view of the library's that is given what the library wrote for itself, too."""
    return bool(getattr(view, "takes_own", False))


def tell_cluster(view: View | RunView, cluster_key: bytes) -> None:
    """Call the view's `belongs_to`, if it has one."""
    belongs_to = getattr(view, "belongs_to", None)
    if belongs_to is not None:
        belongs_to(cluster_key)


async def close_view(view: View | RunView) -> None:
    """Call the view's `close`, if it has one."""
    close = getattr(view, "close", None)
    if close is None:
        return
    try:
        closed = close()
        if closed is not None:
            await closed
    except Exception:  # noqa: BLE001 - the application's own code; logged
        _log.exception("the view's `close` failed")
