"""What an operator sees of a cluster in the simulator, from a machine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from polonaise.admin.cluster import (
    ClusterObserver,
    ClusterStatus,
    Wellness,
)
from rigs.town import Town

T = TypeVar("T")
TIMEOUT_S = 2.0


async def observed(town: Town, do: Callable[[ClusterObserver], Awaitable[T]]) -> T:
    """Have an operator look, on a machine of its own."""
    return await town.operator(
        lambda host, coordinator: do(ClusterObserver(host, coordinator, "the coordinator", TIMEOUT_S))
    )


async def status_of(town: Town) -> ClusterStatus:
    return await observed(town, lambda observer: observer.look())


async def until(town: Town, holds: Callable[[ClusterStatus], bool]) -> ClusterStatus:
    async with asyncio.timeout(120):
        while not holds(status := await status_of(town)):
            await asyncio.sleep(0.5)
    return status


async def well(town: Town) -> ClusterStatus:
    return await until(town, lambda status: status.wellness is Wellness.WELL)
