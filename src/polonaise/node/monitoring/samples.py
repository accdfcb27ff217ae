"""The values of metrics at one moment, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from polonaise.histogram import Histogram
from polonaise.node.monitoring.metriclist import NODE_DEGRADED, Metric
from polonaise.node.reasons import Reason

HistogramSample: TypeAlias = tuple[tuple[int, ...], float]
"""The counts and the sum of a histogram."""
Value: TypeAlias = float | HistogramSample
"""The value of a sample: a histogram's for metrics of that kind, else a number."""


class Samples(dict[Metric, list[tuple[tuple[str, ...], Value]]]):
    """The samples of each metric, each a pair of the labels' values and the metric's value.

    They are taken in the node's event loop and written as text in another thread, so they share nothing with the node's
    state.
    """

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        """Add a sample with the values of the metric's labels, in their order."""
        self.setdefault(metric, []).append((tuple(map(str, labels)), value))

    def add_reasons(self, found: Collection[Reason], known: Iterable[Reason]) -> None:
        """Add for which reasons the node is not well, of those that are known for nodes of its kind."""
        for reason in sorted(known):
            self.add(NODE_DEGRADED, int(reason in found), reason.value)

    def add_histogram(self, metric: Metric, histogram: Histogram) -> None:
        """Add a copy of a histogram."""
        self.setdefault(metric, []).append(((), (tuple(histogram.counts), histogram.total)))

    def value(self, metric: Metric, *labels: object) -> Value | None:
        """Return the value of the metric's sample with these labels; None if there is no such sample."""
        return dict(self.get(metric, [])).get(tuple(map(str, labels)))
