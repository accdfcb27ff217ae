"""`log.once`: appends what a context builds once for a key, however often it is called with that key."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from polonaise.client.appends import PartitionAppends
from polonaise.client.protocol.draft import Draft, append_own, built
from polonaise.client.protocol.oncekeys import LOCK, Once, OnceRecord, encoded_value
from polonaise.client.requests import Requests
from polonaise.client.running import Running, check_leaves_time
from polonaise.errors import AppendExpired, BadOption, DeadlineExceeded, OnceDiffers
from polonaise.terms import OwnKind, PartitionId, TransactionId

_NOT_SEEN: Final = "the view could not be asked whether the key was used before"


class OnceView(Protocol):
    """A view that keeps the records of keys, in the same atomic step as the transactions that they record."""

    def once(self, partition: PartitionId, key: str) -> Awaitable[tuple[TransactionId, OnceRecord] | None]:
        """Return the id of the first transaction and the record under this key; None if there is none."""


class _UsedBefore(Exception):
    """Ends the run of a context because the key was used before."""

    def __init__(self, id: TransactionId, record: OnceRecord) -> None:
        super().__init__(id)
        self.id = id
        self.record = record


def once_view(view: Any) -> OnceView:
    if not getattr(view, "keeps_once", False):
        raise BadOption(
            "log.once looks keys up in the client's view: connect with a SqlView whose class sets "
            "once_table = 'polonaise_once', in every process that keeps the same database"
        )
    return cast(OnceView, view)


async def run_once(
    running: Running,
    view: OnceView,
    requests: Requests,
    appends: PartitionAppends,
    key: str,
    request: str,
    context: Callable[..., Any],
    args: tuple[Any, ...],
    timeout: float | None,
) -> Once:
    """Run a context once for a key; see `Log.once`. `request` is the digest of the request.

    The view first applies everything that is committed by now, so that a key that was used before is found and nothing
    runs. Of two calls at the same time a WRITE lock on the key has the second refused; once the view has applied the
    first, its record is found. It is in one group with the context's transactions: all is committed, or nothing.
    """
    partition, loop = appends.partition, appends.loop
    # Checked here, too: catching up would spend the time, and then be blamed for it.
    check_leaves_time(timeout, partition)
    deadline_s = None if timeout is None else loop.time() + timeout
    await _catch_up(requests, appends, timeout, deadline_s)
    looking_since_s: float | None = None

    def waits_for() -> str:
        if looking_since_s is None or deadline_s is None:
            return ""
        left_s = max(0.0, round(deadline_s - looking_since_s, 2))
        return f"{_NOT_SEEN}: the view's database did not answer within the {left_s:g} s that were left"

    async def look_up() -> None:
        nonlocal looking_since_s
        looking_since_s = loop.time()
        earlier = await view.once(partition, key)
        looking_since_s = None  # not after a look-up that was given up: `waits_for` is called just then
        if earlier is not None:
            raise _UsedBefore(*earlier)

    async def guarded(tx: Draft, *args: Any) -> Any:
        tx.write_lock(LOCK, key)
        await look_up()  # after the mark was taken: a record that is applied later is a conflict of the lock
        try:
            value = context(tx, *args)
            if value is not None and hasattr(value, "__await__"):
                value = await value
        except Exception:
            await look_up()  # as below: it may have failed because of what was done under this key
            raise
        so_far = built(tx)
        if so_far.abandoned is not None:
            await look_up()  # the reason to give up may be what was done under this key since it was looked up
        if so_far.abandoned is not None or not so_far.bodies:
            return value  # no record is made of it, so JSON need not hold it
        if so_far.needs is not None:
            # A repetition would find the key used, and be a success at once: it knows nothing of what the first needed.
            raise BadOption(
                "a context of `once` takes no `need`: a repetition could not wait for the copies of the first call. "
                "Require them of the topic (polonaise topic require), or use `run`"
            )
        encoded = encoded_value(value)
        append_own(tx, OwnKind.ONCE, OnceRecord(key, request, len(so_far.bodies), encoded).pack())
        return encoded

    try:
        receipt = await running.run(appends, guarded, args, timeout, deadline_s=deadline_s, waits_for=waits_for)
    except _UsedBefore as used:
        id, record = used.id, used.record
        if request and record.request and request != record.request:
            raise OnceDiffers(
                f"key {key!r} was used before, for another request: it is transaction {id} of partition {partition}; "
                "use another key for a new request",
                id,
            ) from None
        return Once(partition, id, record.appended, json.loads(record.value), repeated=True)
    return Once(partition, receipt.id, receipt.count - 1, json.loads(receipt.value), repeated=False)


async def _catch_up(
    requests: Requests, appends: PartitionAppends, timeout: float | None, deadline_s: float | None
) -> None:
    """Wait until the view has applied all that is committed by now. Raises `AppendExpired`."""
    try:
        committed = await requests.high_water_mark(appends.partition, timeout)
        await appends.mark.wait(committed, deadline_s)
    except (DeadlineExceeded, TimeoutError) as error:
        raise AppendExpired(
            f"nothing was appended to partition {appends.partition} within {timeout or 0:g} s, and nothing will be: "
            f"{_NOT_SEEN}: {appends.lag()}"
        ) from error
