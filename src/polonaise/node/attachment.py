"""One process's part in an embedded log: a seat among those that may host it, and a way to reach whoever does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import NotInitialized, PolonaiseError
from polonaise.node import seat as seats
from polonaise.node.embedded import (
    EmbeddedAddress,
    EmbeddedSockets,
    check_fragments,
    coordinator_of,
    fragments_of,
    is_log,
    parse_embedded,
)
from polonaise.node.place import Place

_log = logging.getLogger(__name__)

_LOCAL_RETRY_S_MAX: Final = 0.1
"""Between tries to reach an embedded log's host: cheap, and a take-over should not be waited for when it is done."""
_FIRST_HOST_S: Final = 0.02
"""Between looks whether another process has made the log."""
_PATIENCE_S: Final = 2.0


@asynccontextmanager
async def attached(address_text: str, settings: ClientSettings) -> AsyncIterator[Place]:
    """A part in the log at this address, as its host or beside it, until the context ends."""
    address = parse_embedded(address_text)
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
        check_fragments(address, await fragments_of(host.disk, address.directory))
        local = replace(settings, retry_s_max=min(settings.retry_s_max, _LOCAL_RETRY_S_MAX))
        yield Place(host, coordinator, local, lambda listener: _listen(seat, listener))
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
