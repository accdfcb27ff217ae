"""The parts of a client that all its partitions, leases, producers and worker groups share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polonaise.client.discovery import Discovery
from polonaise.client.links import Links
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.requests import Requests
from polonaise.client.routes import Routes
from polonaise.client.settings import ClientSettings
from polonaise.errors import AccessDenied, Closed, CoordinatorUnavailable, PolonaiseError, fresh
from polonaise.host import Host
from polonaise.terms import ClientId


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What each partition that a client uses is given, and all else that the client makes once it has started."""

    host: Host
    settings: ClientSettings
    encode: Callable[[Any], bytes] | None
    """The serializer's; None without one."""
    loop: asyncio.AbstractEventLoop
    """The event loop in which alone the client may be used."""
    life: Lifetime
    cluster_key: bytes
    log_key: bytes
    """The key of the log or topic, as `Log.log_key`."""
    identity: Identity
    routes: Routes
    links: Links
    requests: Requests


class Lifetime:
    """The end of a client: whether it has come, why, and which tasks end then."""

    def __init__(self) -> None:
        self.closed = False
        self.failure: PolonaiseError | None = None
        """Why the client can't be trusted any more; None if it can."""
        self.tasks: list[asyncio.Task[None]] = []
        self.lease_keepers: set[asyncio.Task[None]] = set()
        """The tasks that renew leases."""

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this client was closed: connect a new one")


class Identity:
    """A client's id. Only what appends, leases and views need it: without one a client can read."""

    def __init__(self, host: Host, discovery: Discovery, settings: ClientSettings) -> None:
        self._host = host
        self._discovery = discovery
        self._settings = settings
        self._leases = 0
        self.client_id: ClientId = 0
        """The id, unique in the cluster; 0 while its coordinator has given none."""
        self.numbered_above = 0
        """What this client's appends and leases are numbered above, for others: the time at which it got its id. A
        coordinator that was put back to an older state gives an id out again. Without this, an append or a lease of the
        other client with it would be taken for one of this client."""
        self.without: PolonaiseError | None = None
        """Why there is no id; None if there is one."""
        self.given: Callable[[], None] = lambda: None
        """Called when the id is there; set by `UsedPartitions`."""
        self.identified: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self) -> None:
        try:
            self._take(await self._discovery.unique_id())
        except (AccessDenied, CoordinatorUnavailable) as error:
            # To be given one is a write at the coordinator, whose disk may be full. Whoever only reads needs none.
            self.without = error

    async def keep_asking(self) -> None:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while self.without is not None:
            await asyncio.sleep(backoff.pause_s(self._host.random.random()))
            try:
                self._take(await self._discovery.unique_id())
            except Closed:
                return
            except PolonaiseError as error:
                self.without = error

    def _take(self, client_id: ClientId) -> None:
        self.client_id, self.without = client_id, None
        self.numbered_above = self._host.clock.wall_us()
        self.given()
        self.identified.set_result(None)

    def own_id(self) -> ClientId:
        if self.without is not None:
            raise fresh(self.without)
        return self.client_id

    def next_holder(self) -> int:
        """Return a number by which owners know one who holds leases, which no other one has."""
        client_id = self.own_id()
        self._leases += 1
        return client_id << 32 | (self.numbered_above + self._leases) % 2**32
