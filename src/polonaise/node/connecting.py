"""`polonaise.connect`: from an address to a log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.log import Log, Partitioner, Serializer
from polonaise.client.settings import ClientSettings
from polonaise.client.view import View
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import BadOption, NotInitialized, PolonaiseError
from polonaise.node import seat as seats
from polonaise.node.addresses import coordinator_at
from polonaise.node.embedded import (
    SCHEME,
    EmbeddedAddress,
    EmbeddedSockets,
    coordinator_of,
    is_log,
    parse_embedded,
)
from polonaise.terms import BodyForm, PartitionId

_log = logging.getLogger(__name__)

_LOCAL_RETRY_S_MAX: Final = 0.1
"""Between tries to reach an embedded log's host: cheap, and a take-over should not be waited for when it is done."""
_FIRST_HOST_S: Final = 0.02
"""Between looks whether another process has made the log."""
_PATIENCE_S: Final = 2.0


class _Place(NamedTuple):
    """Where a log is, and what a client there needs."""

    host: ApplicationHost
    coordinator: Coordinator
    settings: ClientSettings
    tell_failures: Callable[[Callable[[BaseException], None]], None] = lambda listener: None
    """Told of whatever ends this process's part in the log."""


@asynccontextmanager
async def connect(
    address: str,
    *,
    view: View | None = None,
    settings: ClientSettings | None = None,
    serializer: Serializer | None = None,
    partitioner: Partitioner | None = None,
    partitions: Collection[PartitionId] | None = None,
    bodies: BodyForm = BodyForm.INLINE,
    wants: Callable[[int], bool] | None = None,
    header_filter: tuple[int, int] | None = None,
) -> AsyncIterator[Log]:
    """Open the log at `address`: `async with polonaise.connect("embedded:./bank") as log`.

    - `embedded:PATH` is a log in a directory of a local disk, without anything to set up or start. It is made when
      there is none, with `?storage=N` copies on this disk (1 unless said) and `&partitions=N` (1). Several processes
      may have it open: the first one hosts it for all, another takes over within about a second when that one goes.
      With `?host=no` this process only attaches to a log that is there, and waits while nobody hosts it.
    - `file:PATH` is the coordinator's directory of a cluster on this machine.

    For the other options see `Log`. Raises `BadOption` for an address that cannot be meant, or that speaks of another
    log than the one that is there; `NotInitialized` when there is no cluster (no embedded log, with `host=no`);
    `NotEmbeddedLog`, `UnsupportedFormat`, `AccessDenied`, `DiskFull` and what else is wrong with the directory.
    """
    scheme = address.partition(":")[0]
    if address.startswith(SCHEME):
        place = _embedded(parse_embedded(address), settings or ClientSettings())
    elif scheme == "file":
        place = _cluster(address, settings or ClientSettings())
    else:
        raise BadOption(
            f"{address!r} is no address of a log: write embedded:PATH for a log in a directory of its own, or "
            "file:PATH, the directory of a cluster's coordinator"
        )
    async with place as at:
        log = Log(
            at.host,
            at.coordinator,
            view=view,
            settings=at.settings,
            serializer=serializer,
            partitioner=partitioner,
            partitions=partitions,
            bodies=bodies,
            wants=wants,
            header_filter=header_filter,
        )
        at.host.on_fail = log.fail
        at.tell_failures(log.fail)
        async with log:
            yield log


@asynccontextmanager
async def _cluster(address: str, settings: ClientSettings) -> AsyncIterator[_Place]:
    host = ApplicationHost()
    try:
        coordinator = coordinator_at(host, address)
        try:
            yield _Place(host, coordinator, settings)
        finally:
            await coordinator.close()
    finally:
        host.close()


@asynccontextmanager
async def _embedded(address: EmbeddedAddress, settings: ClientSettings) -> AsyncIterator[_Place]:
    host = ApplicationHost()
    host.network = EmbeddedSockets(address.directory, host)
    seat: seats.Seat | None = None
    coordinator = coordinator_of(host, address.directory)
    try:
        there = await is_log(host.disk, address.directory)
        if address.may_host:
            await host.disk.make_directory(address.directory)
            seat = seats.take(address)
            await asyncio.shield(asyncio.wrap_future(seat.settled))
        elif not there:
            raise NotInitialized(
                f"no embedded log in {address.directory}: correct the path, or leave host=no out to make one"
            )
        address.check(await _described(coordinator, address, seat))
        local = replace(settings, retry_s_max=min(settings.retry_s_max, _LOCAL_RETRY_S_MAX))
        yield _Place(host, coordinator, local, lambda listener: _listen(seat, listener))
    finally:
        await coordinator.close()
        if seat is not None:
            await asyncio.to_thread(seats.leave, seat)
        host.close()


async def _described(coordinator: Coordinator, address: EmbeddedAddress, seat: seats.Seat | None) -> ClusterDescription:
    """The description; waits while another process is about to write it."""
    loop = asyncio.get_running_loop()
    complain_s = loop.time() + _PATIENCE_S
    while True:
        try:
            return await coordinator.describe()
        except NotInitialized:
            if seat is not None and seat.failure is not None:
                raise seat.failure from None
        if loop.time() >= complain_s:
            complain_s += 5 * _PATIENCE_S
            _log.warning(
                "the embedded log in %s is not made yet, and whoever holds its lock does not make it: "
                "look for a stopped process (its id is in host.lock), and continue or end it",
                address.directory,
            )
        await asyncio.sleep(_FIRST_HOST_S)


def _listen(seat: seats.Seat | None, listener: Callable[[BaseException], None]) -> None:
    """Pass on, into this event loop, what ends the seat."""
    if seat is None:
        return
    loop = asyncio.get_running_loop()

    def tell(error: PolonaiseError) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(listener, error)

    seat.listeners.append(tell)
    if seat.failure is not None:
        tell(seat.failure)
