"""Write samples as text in the formats that Prometheus reads. The only file that imports prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final, cast

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from polonaise.histogram import BOUNDS_S
from polonaise.node.monitoring.metriclist import METRICS, Metric, MetricKind
from polonaise.node.monitoring.samples import HistogramSample, Samples

_BUCKETS: Final = (*map(repr, BOUNDS_S), "+Inf")


class _Exposed(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric in self._samples:
                yield _family(metric, self._samples)


def _family(metric: Metric, samples: Samples) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in samples[metric]:
            counts, total = cast(HistogramSample, value)
            histogram.add_metric(labels, list(zip(_BUCKETS, map(float, accumulate(counts)), strict=True)), total)
        return histogram
    make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in samples[metric]:
        family.add_metric(labels, cast(float, value))
    return family


class Exposition:
    """Writes samples as text, followed by the metrics of the process. Nodes in one process share no metrics."""

    def __init__(self) -> None:
        registry = CollectorRegistry(auto_describe=False)
        self._of_the_process = (
            ProcessCollector(registry=registry),
            GCCollector(registry=registry),
            PlatformCollector(registry=registry),
        )

    def text(self, samples: Samples, accept: str) -> tuple[bytes, str]:
        """Return text and content type, in the format that the header `accept` prefers.

        Takes long: call it in a thread.
        """
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        for collector in (_Exposed(samples), *self._of_the_process):
            registry.register(collector)
        return encode(registry), content_type
