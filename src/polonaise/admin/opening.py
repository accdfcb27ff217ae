"""Open a cluster's coordinator for operators: what is changed through it is refused while servers don't believe it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from polonaise.admin.cluster import ClusterObserver
from polonaise.coordination import Coordinator
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.host.real import RealHost
from polonaise.host.tls import CLIENT, tls_identity
from polonaise.node.addresses import coordinator_at

_CLOSE_S: Final = 5.0
_ASK_S: Final = 2.0
"""Seconds that each node gets to say whether it believes the coordinator, besides what changes themselves get: with
less, whoever is in a hurry would change an older copy. A silent node is asked only once."""
_HOLDS_S: Final = 5.0
"""Seconds for which the nodes' answers count: servers need as long to notice that a coordinator was put back."""


@asynccontextmanager
async def opened_coordinator(address: str, role: str = CLIENT) -> AsyncGenerator[tuple[Host, Coordinator]]:
    """Open the coordinator with this address and a host to reach it and nodes by; close both at the end.

    With TLS, this process's certificate has to be for `role`. A change of its values raises `CoordinatorOutdated` while
    nodes don't believe what it holds, and why nodes that are there could not be asked, such as `CertificateRefused`.
    Raises `BadOption` for an invalid address, `ExtraMissing` if its library is missing, and `CertificateUnusable`.
    """
    identity = tls_identity(role)
    host = RealHost(tls=identity)
    try:
        coordinator = coordinator_at(host, address, identity)
        belief = _Belief(host, coordinator, address)
        coordinator.ask_before_changes(belief.check)
        try:
            yield host, coordinator
        finally:
            await belief.close()
            await _close(coordinator)
    finally:
        host.close()


@asynccontextmanager
async def observer_of(address: str, timeout_s: float, servers: Sequence[str] = ()) -> AsyncGenerator[ClusterObserver]:
    """Yield an observer of the cluster whose coordinator has this address, and close its connections at the end.

    `servers` are addresses of servers, which are asked for what can't be read from the coordinator. Raises what
    `opened_coordinator` does.
    """
    async with opened_coordinator(address) as (host, coordinator):
        yield ClusterObserver(host, coordinator, address, timeout_s, servers)


class _Belief:
    """Asks the cluster's nodes whether they believe what the coordinator holds: whoever reads it only now can't tell.

    What would be changed in an older copy is lost with it, and gives ids a second time.
    """

    def __init__(self, host: Host, coordinator: Coordinator, address: str) -> None:
        self._host = host
        self._coordinator = coordinator
        self._address = address
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")

    async def check(self) -> None:
        """Raise `CoordinatorOutdated` if a node does not believe the coordinator, or why that is not known.

        A caller whose time is over while nodes are asked asks again, and finds the same answers under way.
        """
        now_s = self._host.clock.monotonic_s()
        if self._asking is None or (self._asking.done() and now_s - self._asked_s >= _HOLDS_S):
            self._asking = asyncio.create_task(self._ask(), name="ask whether the coordinator is believed")
        try:
            await asyncio.shield(self._asking)
        except PolonaiseError:
            self._asking = None
            raise
        except asyncio.CancelledError as cancelled:  # or the coordinator alone would be said not to answer
            cancelled.add_note("the cluster's nodes have not all answered whether it holds the latest state")
            raise

    async def _ask(self) -> None:
        status = await ClusterObserver(self._host, self._coordinator, self._address, _ASK_S).look()
        if status.coordinator_error is not None:
            raise status.coordinator_error
        not_done = "The change that was asked for was not made"
        status.belief.refuse(self._coordinator, not_done, ": it would be lost with this state")
        self._asked_s = self._host.clock.monotonic_s()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


async def _close(coordinator: Coordinator) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await coordinator.close()
    except (TimeoutError, PolonaiseError):
        pass  # every request has been answered or has failed by now, so nothing depends on a clean end
