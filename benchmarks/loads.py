"""Loads that keep a number of transactions unanswered: the throughput, and how long each transaction waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field


class Missing(Exception):
    """A peer can't be had on this machine or does not do its work; the message is the reason, for the table."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value such that at least `percent` percent of the values do not exceed it."""
    if not values:
        raise ValueError("there is no percentile of no values")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


@dataclass(frozen=True)
class Load:
    """The figures of one load: transactions acknowledged per second, and how long they waited (median and p99)."""

    per_second: float
    p50_ms: float
    p99_ms: float
    count: int = field(default=0, compare=False)
    """Transactions acknowledged in all."""

    @classmethod
    def measured(cls, count: int, took_s: float, latencies_ms: Sequence[float]) -> Load:
        """Return the load measured. Raises `Missing` if nothing was acknowledged."""
        if not count or took_s <= 0:
            raise Missing("no transaction was acknowledged")
        return cls(count / took_s, percentile(latencies_ms, 50), percentile(latencies_ms, 99), count)

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s, median {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms"


async def keep(work: Callable[[], Awaitable[object]], outstanding: int, seconds: float) -> Load:
    """Run `outstanding` tasks, each of which repeats the work, waiting for its end each time, for `seconds`."""
    latencies_ms: list[float] = []
    began = time.perf_counter()

    async def worker() -> None:
        while (sent := time.perf_counter()) < began + seconds:
            await work()
            latencies_ms.append(1e3 * (time.perf_counter() - sent))

    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return Load.measured(len(latencies_ms), time.perf_counter() - began, latencies_ms)


def best(outstanding: int, loads: Sequence[Load]) -> Load:
    """Return the best run: by its median where one transaction is outstanding, else by its throughput."""
    if outstanding == 1:
        return min(loads, key=lambda load: load.p50_ms)
    return max(loads, key=lambda load: load.per_second)
