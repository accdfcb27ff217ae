"""The values of metrics at one moment, as plain data, in the detail that a request asks for."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

from polonaise.errors import BadOption
from polonaise.histogram import Histogram
from polonaise.node.monitoring.metriclist import NODE_DEGRADED, Metric
from polonaise.node.reasons import Reason

AUTO_MAX: Final = 100
"""The most partitions, or mounts of clients, that are listed unless the request says otherwise: each series costs
Prometheus some kilobytes, and there may be thousands of partitions with a dozen series each."""


class SeriesListed(enum.Enum):
    """Whether each of many things gets series of its own; the values are the words of a request."""

    AUTO = "auto"
    """List all if there are at most `AUTO_MAX`, else none: a selection would differ from answer to answer."""
    ALL = "all"
    NONE = "none"

    def lists(self, count: int) -> bool:
        return self is SeriesListed.ALL or (self is SeriesListed.AUTO and count <= AUTO_MAX)


class Detail(NamedTuple):
    """What a request for metrics wants listed: series of partitions, and of clients."""

    partitions: SeriesListed = SeriesListed.AUTO
    clients: SeriesListed = SeriesListed.AUTO


def detail_in(query: Mapping[str, str]) -> Detail:
    """Return the detail in the query of a request; raises `BadOption`."""
    unknown = set(query) - set(Detail._fields)
    if unknown:
        raise BadOption(f"unknown parameter {sorted(unknown)[0]!r}: there are {' and '.join(Detail._fields)}")
    try:
        return Detail(**{name: SeriesListed(value) for name, value in query.items()})
    except ValueError:
        raise BadOption("invalid value: partitions and clients take auto, all or none") from None


M = TypeVar("M")
HistogramSample: TypeAlias = tuple[tuple[int, ...], float]
"""The counts and the sum of a histogram."""
Value: TypeAlias = float | HistogramSample


class Samples(dict[Metric, list[tuple[tuple[str, ...], Value]]]):
    """The samples of each metric: values of labels, and the value.

    Written in a thread, they share nothing with the node.
    """

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        self.setdefault(metric, []).append((tuple(map(str, labels)), value))

    def add_read(self, reads: Mapping[Metric, Callable[[M], float | None]], measures: M) -> None:
        """Add each metric that can be read from these measures."""
        for metric, read in reads.items():
            if (value := read(measures)) is not None:
                self.add(metric, value)

    def add_reasons(self, found: Collection[Reason], known: Iterable[Reason]) -> None:
        """Add for which of the `known` reasons the node is not well."""
        for reason in sorted(known):
            self.add(NODE_DEGRADED, int(reason in found), reason.value)

    def add_histogram(self, metric: Metric, histogram: Histogram) -> None:
        self.setdefault(metric, []).append(((), (tuple(histogram.counts), histogram.total)))

    def value(self, metric: Metric, *labels: object) -> Value | None:
        """Return the value of the metric's sample with these labels."""
        return dict(self.get(metric, [])).get(tuple(map(str, labels)))
