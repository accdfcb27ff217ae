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


class Samples(dict[Metric, list[tuple[tuple[str, ...], Value]]]):
    """The samples of each metric: values of labels, and the value.

    Written in a thread, they share nothing with the node.
    """

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        self.setdefault(metric, []).append((tuple(map(str, labels)), value))

    def add_reasons(self, found: Collection[Reason], known: Iterable[Reason]) -> None:
        """Add for which of the `known` reasons the node is not well."""
        for reason in sorted(known):
            self.add(NODE_DEGRADED, int(reason in found), reason.value)

    def add_histogram(self, metric: Metric, histogram: Histogram) -> None:
        self.setdefault(metric, []).append(((), (tuple(histogram.counts), histogram.total)))

    def value(self, metric: Metric, *labels: object) -> Value | None:
        """Return the value of the metric's sample with these labels."""
        return dict(self.get(metric, [])).get(tuple(map(str, labels)))
