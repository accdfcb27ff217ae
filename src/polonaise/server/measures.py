"""What can be measured of a server as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from polonaise.coordination.values import ClusterDescription
from polonaise.histogram import Histogram
from polonaise.terms import StorageId


def add_totals(sums: Counter[str], totals: Mapping[str, int]) -> None:
    """Add the totals of a partition to sums, in a fraction of the time that `Counter.update` takes."""
    for name, count in totals.items():
        sums[name] += count


class ServerMeasures(NamedTuple):
    """What can be measured of a server as a whole. Totals are since its start, and never fall."""

    cluster: ClusterDescription | None
    """The cluster that the server belongs to; None before it has read that."""
    totals: Mapping[str, int]
    """The sums of `ServedPartition.totals` over all partitions that it owned since then."""
    latencies: Histogram
    """The time from the receipt of an append to its commit, once for each batch: that of the oldest append in it."""
    refused: Mapping[str, int]
    """How many requests of clients were refused, by the error's code."""
    connections: int
    """The connections of clients."""
    connections_bytes: int
    """The bytes that are held for them."""
    connections_cut_off: int
    """How many were cut off because all together held too much, in total."""
    requests: int
    """The reads and other requests beside appends that are not answered yet."""
    storage_connected: Mapping[StorageId, bool]
    """Whether each storage node is connected."""
    coordinator_errors: int
    """How often the coordinator could not be read or written, in total."""
    coordinator_trouble: str
    """What can't be done at the coordinator at present, and why; empty if nothing."""
    fragments_scrub: Mapping[str, Any] | None
    """The report of the scrub of the fragment store; None if there is none."""
