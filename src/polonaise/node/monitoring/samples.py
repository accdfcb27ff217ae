"""Samples: the values of metrics at one moment, as plain data."""

from __future__ import annotations

from typing import TypeAlias

from polonaise.histogram import Histogram
from polonaise.node.monitoring.metriclist import Metric

HistogramSample: TypeAlias = tuple[tuple[float, ...], tuple[int, ...], float]
"""The bounds, the counts and the sum of a histogram."""
Value: TypeAlias = float | HistogramSample


class Samples(dict[Metric, list[tuple[tuple[str, ...], Value]]]):
    """The samples of each metric: the values of its labels, and its value.

    Taken in the node's event loop and turned into text elsewhere, so nothing in it is a part of the node's state.
    """

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        """Add a sample."""
        self.setdefault(metric, []).append((tuple(map(str, labels)), value))

    def add_histogram(self, metric: Metric, histogram: Histogram) -> None:
        """Add a copy of a histogram."""
        self.setdefault(metric, []).append(((), (histogram.bounds, tuple(histogram.counts), histogram.total)))

    def value(self, metric: Metric, *labels: object) -> Value | None:
        """Return the value of a sample; None if there is none with these labels."""
        return dict(self.get(metric, [])).get(tuple(map(str, labels)))
