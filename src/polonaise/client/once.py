"""Doing something once, however often it is asked for: for requests that bring a key of their own."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from polonaise.client.appends import PartitionAppends
from polonaise.client.protocol.draft import Draft, append_own
from polonaise.client.protocol.oncekeys import LOCK, Once, OnceRecord, encoded_value
from polonaise.client.requests import Requests
from polonaise.client.running import Running, check_leaves_time
from polonaise.errors import AppendExpired, BadOption, DeadlineExceeded, OnceDiffers
from polonaise.terms import OwnKind, PartitionId, TransactionId

_NOT_SEEN: Final = "whether the key was used before could not be seen"


class OnceView(Protocol):
    """A view that keeps what was done once, in the same atomic step as what was done."""

    def once(self, partition: PartitionId, key: str) -> Awaitable[tuple[TransactionId, OnceRecord] | None]:
        """What was done under this key, with the id of its first transaction, as far as the view has applied it."""


class _Found(Exception):
    """It was done before."""

    def __init__(self, id: TransactionId, record: OnceRecord) -> None:
        super().__init__(id)
        self.id = id
        self.record = record


def once_view(view: Any) -> OnceView:
    """The client's view, if it keeps keys. Raises `BadOption`."""
    if not getattr(view, "keeps_once", False):
        raise BadOption(
            "log.once looks keys up in the client's view: connect with a SqlView whose class says "
            "once_table = 'polonaise_once', in every process that keeps the same database"
        )
    found: OnceView = view
    return found


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
    """Run a context once for a key, as `Log.once` says.

    Everything that was done before this was asked is applied first, so that its key is found and nothing runs. The lock
    on the key makes two at the same time one after the other: the second is refused, and runs again when the view has
    applied the first, whose row it then finds. What keeps the key is in the same group.
    """
    partition, loop = appends.partition, appends.loop
    check_leaves_time(timeout, partition)
    deadline_s = None if timeout is None else loop.time() + timeout
    await _caught_up(requests, appends, timeout, deadline_s)
    looking_since_s: float | None = None

    def waits_for() -> str:
        if looking_since_s is None or deadline_s is None:
            return ""
        left_s = max(0.0, round(deadline_s - looking_since_s, 2))
        return f"{_NOT_SEEN}: the view's database did not answer within the {left_s:g} s that were left for it"

    async def look() -> None:
        nonlocal looking_since_s
        looking_since_s = loop.time()
        found = await view.once(partition, key)
        looking_since_s = None  # not where it is given up: that is when it is asked for
        if found is not None:
            raise _Found(*found)

    async def guarded(tx: Draft, *given: Any) -> str:
        tx.write_lock(LOCK, key)
        await look()
        try:
            made = context(tx, *given)
            if made is not None and hasattr(made, "__await__"):
                made = await made
        except Exception:
            await look()
            raise
        if tx.abandoned is not None:
            await look()  # what it gave up for may be what was done under this key since it was looked up
        value = encoded_value(made)
        if tx.bodies:
            append_own(tx, OwnKind.ONCE, OnceRecord(key, request, len(tx.bodies), value).pack())
        return value

    try:
        receipt = await running.run(appends, guarded, args, timeout, deadline_s=deadline_s, waits_for=waits_for)
    except _Found as found:
        id, record = found.id, found.record
        if request and record.request and request != record.request:
            raise OnceDiffers(
                f"key {key!r} was used before, for another request: it is transaction {id} of partition {partition}; "
                "what is new needs a new key",
                id,
            ) from None
        return Once(partition, id, record.appended, json.loads(record.value), repeated=True)
    return Once(partition, receipt.id, receipt.count - 1, json.loads(receipt.value), repeated=False)


async def _caught_up(
    requests: Requests, appends: PartitionAppends, timeout: float | None, deadline_s: float | None
) -> None:
    """Wait until the view has applied all that is committed by now."""
    try:
        committed = await requests.high_water_mark(appends.partition, timeout)
        await appends.mark.wait(committed, deadline_s)
    except (DeadlineExceeded, TimeoutError) as error:
        raise AppendExpired(
            f"nothing was appended to partition {appends.partition} within {timeout or 0:g} s, and nothing will be: "
            f"{_NOT_SEEN}: {appends.lag()}"
        ) from error
