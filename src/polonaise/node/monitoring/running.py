"""Serve a node's metrics and health over HTTP while the node runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.node.monitoring.exposition import Exposition
from polonaise.node.monitoring.face import HttpFace, ObservedNode
from polonaise.node.monitoring.httplistener import HttpListener

_LOOK_S: Final = 1.0


@asynccontextmanager
async def serving_http(host: Host, address: str, node: ObservedNode) -> AsyncIterator[str]:
    """Serve HTTP at `address` during the `async with` block, which gets the address with its port."""
    delays = Histogram()
    listener = HttpListener(
        host, HttpFace(node, host.clock, Exposition().text, delays, version("polonaise"), host.network).answer
    )
    listens_at = await listener.open(address)
    watch = host.spawn(_watch_loop(host, delays), "event loop's delay")
    try:
        yield listens_at
    finally:
        watch.cancel()
        await listener.close()


async def _watch_loop(host: Host, delays: Histogram) -> None:
    """Measure how much later than it should a timer goes off."""
    while True:
        began_s = host.clock.monotonic_s()
        await asyncio.sleep(_LOOK_S)
        delays.observe(max(0.0, host.clock.monotonic_s() - began_s - _LOOK_S))
