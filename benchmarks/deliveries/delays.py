"""Delays of deliveries: what one run came to, and the medians of several."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from benchmarks.loads import Missing, percentile


class Delivery(NamedTuple):
    """The times of one entry at one target, in ns of the machine's monotonic clock, and its transaction's number."""

    committed_ns: int
    dispatched_ns: int
    number: int
    applied_ns: int


@dataclass(frozen=True)
class Spread:
    """Mean, median and 99th percentile of delays, in ms."""

    mean: float
    median: float
    p99: float

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> Self:
        """Return those of some delays. Raises `Missing` if there are none."""
        if not values_ms:
            raise Missing("nothing was delivered")
        return cls(statistics.fmean(values_ms), percentile(values_ms, 50), percentile(values_ms, 99))

    @classmethod
    def medians(cls, runs: Sequence[Self]) -> Self:
        """Return the median of each figure."""
        return cls(*(statistics.median(getattr(run, field.name) for run in runs) for field in fields(cls)))

    def __str__(self) -> str:
        return f"mean {self.mean:.2f}, median {self.median:.2f}, p99 {self.p99:.2f} ms"


@dataclass(frozen=True)
class Delays:
    """What became of the transactions of one run, or the medians of several."""

    player: Spread
    """Apply − dispatch: what the paper calls the LogPlayer delay."""
    apply: Spread
    """Apply − commit: what the paper calls the apply delay."""
    processor_us: float = 0.0
    """Processor time of the player, or of the sender in its place, for each transaction."""

    @classmethod
    def of(cls, deliveries: Iterable[Delivery], processor_us: float = 0.0) -> Self:
        """Return the delays of some deliveries. Raises `Missing` if there are none."""
        times = list(deliveries)
        return cls(
            Spread.of([(each.applied_ns - each.dispatched_ns) / 1e6 for each in times]),
            Spread.of([(each.applied_ns - each.committed_ns) / 1e6 for each in times]),
            processor_us,
        )

    @classmethod
    def medians(cls, runs: Sequence[Self]) -> Self:
        """Return the median of each figure over the runs."""
        return cls(
            Spread.medians([run.player for run in runs]),
            Spread.medians([run.apply for run in runs]),
            statistics.median(run.processor_us for run in runs),
        )

    def __str__(self) -> str:
        return f"LogPlayer delay {self.player}; apply delay {self.apply}; {self.processor_us:.0f} µs of the player"
