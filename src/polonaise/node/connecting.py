"""`polonaise.connect`: from an address to a log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.connected import Partitioner
from polonaise.client.log import Log, Serializer
from polonaise.client.options import check_options
from polonaise.client.protocol.arguments import checked_seconds, wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import (
    BadOption,
    CoordinatorUnavailable,
    DeadlineExceeded,
    DiskFailed,
    DiskFull,
    NotFound,
    NotInitialized,
    PolonaiseError,
    Retry,
    fresh,
)
from polonaise.node.addresses import coordinator_at
from polonaise.node.location import LogLocation
from polonaise.redaction import redacted
from polonaise.terms import BodyForm, PartitionId

_TRY_S = 1.0
"""The first try has so long, however short the wait."""


@asynccontextmanager
async def connect(
    address: str,
    *,
    view: View | RunView | None = None,
    settings: ClientSettings | None = None,
    serializer: Serializer | None = None,
    partitioner: Partitioner | None = None,
    partitions: Collection[PartitionId] | None = None,
    bodies: BodyForm = BodyForm.INLINE,
    wants: Callable[[int], bool] | None = None,
    header_filter: tuple[int, int] | None = None,
    wait: float | None = None,
) -> AsyncIterator[Log]:
    """Open the log at `address`: `async with polonaise.connect("embedded:./bank") as log`.

    - `embedded:PATH` is a log in a directory of a local disk, without anything to set up or start. It is made when
      there is none, with `?storage=N` copies on this disk (1 unless said) and `&partitions=N` (1). Several processes
      may have it open: the first one hosts it for all, another takes over within about a second when that one goes.
      With `?host=no` this process only attaches to a log that is there, and waits while nobody hosts it. With
      `?fragments=URL` (quoted as in any URL) it is archived to that store, from which it reads what was trimmed; the
      directory remembers it, so that no other process has to say it.
    - `file:PATH` is the coordinator's directory of a cluster on this machine.

    `wait` is for how many seconds a cluster is waited for that is not there yet, or does not answer: `DeadlineExceeded`
    then says what was the matter the last time. Without it that is raised at once. (A cluster that is there, and has no
    server yet, is connected to at once in any case: what is asked of it waits.)

    For the other options see `Log`. Raises `BadOption` for an address that cannot be meant, or that speaks of another
    log than the one that is there; `NotInitialized` when there is no cluster (no embedded log, with `host=no`);
    `NotEmbeddedLog`, `UnsupportedFormat`, `AccessDenied`, `DiskFull` and what else is wrong with the directory.
    """
    if not isinstance(address, str):
        raise wrong("address", address, "an address is text: embedded:PATH or file:PATH")
    wait_s = checked_seconds("wait", wait)
    options: dict[str, Any] = {
        "view": view, "serializer": serializer, "partitioner": partitioner, "partitions": partitions,
        "bodies": bodies, "wants": wants, "header_filter": header_filter,
    }  # fmt: skip
    check_options(settings=settings, **options)
    used = settings or ClientSettings()
    async with AsyncExitStack() as stack:
        if wait_s is None:
            log = await stack.enter_async_context(_opened(address, used, options))
        else:
            log = await _waited_for(wait_s, address, used, options, stack)
        yield log


async def _waited_for(
    wait_s: float, address: str, settings: ClientSettings, options: dict[str, Any], stack: AsyncExitStack
) -> Log:
    """The log, as soon as it can be opened."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    deadline_s = began_s + wait_s
    backoff = Backoff(settings.retry_s_min, settings.retry_s_max)
    trouble: PolonaiseError | None = None
    while True:
        limit = asyncio.timeout_at(max(deadline_s, began_s + _TRY_S))
        try:
            async with limit:
                return await stack.enter_async_context(_opened(address, settings, options))
        except TimeoutError:
            if not limit.expired():
                raise
        except PolonaiseError as error:
            if error.retry is not Retry.AGAIN and not isinstance(error, NotInitialized | NotFound):
                raise
            trouble = error
        left_s = deadline_s - loop.time()
        if left_s < settings.retry_s_min:
            why = "it did not answer" if trouble is None else str(trouble)
            where = redacted(address)
            raise DeadlineExceeded(f"no log to connect to at {where} within {wait_s:g} s: {why}") from trouble
        # Never more than half of what is left: the last try is made when hardly anything is.
        await asyncio.sleep(min(backoff.pause_s(random.random()), left_s / 2))


@asynccontextmanager
async def _opened(address: str, settings: ClientSettings, options: dict[str, Any]) -> AsyncIterator[Log]:
    scheme = address.partition(":")[0]
    if scheme == "embedded":
        from polonaise.node.attachment import attached  # loads a server: not for a client of a cluster

        location = attached(address, settings)
    elif scheme == "file":
        location = _cluster(address, settings)
    else:
        raise BadOption(
            f"{redacted(address)!r} is no address of a log: write embedded:PATH for a log in a directory of its own, "
            "or file:PATH, the directory of a cluster's coordinator"
        )
    async with AsyncExitStack() as stack:
        try:
            at = await stack.enter_async_context(location)
            log = Log(at.host, at.coordinator, settings=at.settings, **options)
            at.host.on_fail = log.fail
            at.tell_failures(log.fail)
            log.whereabouts = at.whereabouts
            await stack.enter_async_context(log)
        except (DiskFull, DiskFailed, CoordinatorUnavailable) as error:
            raise _with_a_way_to_read(error, address) from error
        yield log


def _with_a_way_to_read(error: PolonaiseError, address: str) -> PolonaiseError:
    """The fault of a disk, with how to read an embedded log that is there meanwhile: that needs no room, nor a host."""
    if not address.startswith("embedded:"):
        return error
    from polonaise.node.embedded import is_there, parse_embedded, storage_directory

    told, first = fresh(error), storage_directory(parse_embedded(address).directory, 0)
    if is_there(address):
        told.args = (
            f"{error.text}. Until that is mended the log can't be opened; what each storage directory holds can be "
            f"read without it: polonaise segment read {first} --partition 0",
        )
    return told


@asynccontextmanager
async def _cluster(address: str, settings: ClientSettings) -> AsyncIterator[LogLocation]:
    host = ApplicationHost()
    try:
        coordinator = coordinator_at(host, address)
        try:
            yield LogLocation(host, coordinator, settings)
        finally:
            await coordinator.close()
    finally:
        host.close()
