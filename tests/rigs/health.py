"""Waits for a log's health, on any kind of cluster, simulated ones included."""

from __future__ import annotations

from collections.abc import Callable

import polonaise
from polonaise.admin.logs import conditions
from polonaise.errors import PolonaiseError
from polonaise.node.reasons import Condition
from rigs.waiting import PATIENCE_S, wait_until


async def condition_when(
    log: polonaise.Log, wanted: Callable[[Condition], object], *, within_s: float = PATIENCE_S, every_s: float = 0.02
) -> Condition:
    """Wait until the condition of partition 0 is as demanded. Return it."""

    async def look() -> Condition | None:
        (told,) = await conditions(log, [0], 10.0)
        return told if wanted(told) else None

    condition = await wait_until(look, "the partition is as wanted", within_s=within_s, every_s=every_s)
    assert condition is not None
    return condition


async def until_engaged(log: polonaise.Log, count: int, *, within_s: float = PATIENCE_S) -> None:
    """Wait until so many replicas take part in the session of partition 0, which may have no owner meanwhile."""

    async def look() -> bool:
        try:
            health = await log.health(0, timeout=5)
        except PolonaiseError:
            return False
        return len(health["partitions"]["0"]["engaged"]) == count

    await wait_until(look, f"{count} engaged replicas", within_s=within_s, every_s=0.05)


async def until_waits_for(log: polonaise.Log, what: str) -> str:
    """Wait until partition 0 says that it waits for `what`; a session that has just begun waits for a quorum first."""

    async def look() -> str:
        said = str((await log.health(0))["partitions"]["0"]["waits_for"])
        return said if what in said else ""

    return await wait_until(look, f"it waits for {what!r}", every_s=0.05)
