"""Measurements of a server as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from polonaise.coordination.values import ClusterDescription
from polonaise.histogram import Histogram
from polonaise.terms import StorageId


class ServerMeasures(NamedTuple):
    """Measurements of a server as a whole at one moment. Totals count from the server's start, and never fall."""

    cluster: ClusterDescription | None
    """The description of the server's cluster; None before the server has read it."""
    latencies: Histogram
    """The times from the receipt of an append to its commit: for each batch, that of the oldest append in it."""
    refused: Mapping[str, int]
    """The total of clients' requests that were refused, by error code."""
    connections: int
    """The number of clients' connections."""
    connections_bytes: int
    """The bytes held for clients' connections: unfinished frames and answers not taken yet."""
    connections_cut_off: int
    """The total of connections that were cut off because all of them together held too many bytes."""
    requests: int
    """The number of unanswered requests for reads, trims and health, and about the cluster: not those that an owner
    answers, such as appends, mounts and flushes."""
    storage_connected: Mapping[StorageId, bool]
    """Whether each storage node is connected."""
    coordinator_errors: int
    """The total of failed reads of the assignment and of partitions' members, and of failed renewals of the lease."""
    coordinator_trouble: str
    """What the server can't do at the coordinator at present, and why; empty if nothing."""
    fragments_scrub: Mapping[str, Any] | None
    """The report of the scrub of the fragment store; None without a store or a scrub."""
    copies: Mapping[str, Any]
    """The report of the copies to late replicas in the background: `CopyTurns.health`."""
