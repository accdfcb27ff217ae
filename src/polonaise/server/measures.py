"""Measurements of a server as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from polonaise.coordination.values import ClusterDescription
from polonaise.histogram import Histogram
from polonaise.server.archivewatch import ArchiveLag
from polonaise.terms import StorageId


class ServerMeasures(NamedTuple):
    """Measurements of a server as a whole at one moment. Totals count from the server's start, and never fall."""

    cluster: ClusterDescription | None
    """The description of the server's cluster; None before the server has read it."""
    latencies: Histogram
    """The times from the receipt of an append to its commit: for each batch, that of the oldest append in it."""
    refused: Mapping[str, int]
    """The total of clients' messages that were refused, by error code. Not counted is what owners refuse by their
    effects: appends that are not ordered, and requests that wait in vain or find no room."""
    connections: int
    """The number of connections on which a client has said hello."""
    connections_bytes: int
    """The bytes held for clients' connections: frames not handled yet, and unsent messages that clients don't share."""
    connections_cut_off: int
    """The total of connections that were cut off because all of them together held too many bytes."""
    requests: int
    """The number of unanswered requests for reads, bodies, trims and health, and about the cluster: not those that an
    owner answers, such as appends, mounts and flushes."""
    storage_connected: Mapping[StorageId, bool]
    """Whether each storage node is connected."""
    storage_resent: Mapping[StorageId, float | None]
    """The share of what was sent to each storage node lately that had to be sent again; None if it is not known."""
    coordinator_errors: int
    """The total of failed attempts to follow the assignment, to read partitions' members and to renew the lease."""
    coordinator_trouble: str
    """Which of the assignment, partitions' members and the lease can't be read or renewed, and why; empty if none."""
    missing_servers: int | None
    """The number of servers that the cluster is to have, and that were not registered at the last look; None before
    it."""
    given_up: int
    """The number of partitions that this server can't serve, and has given up for others to take over."""
    coordinator_servers: Mapping[str, bool]
    """Whether each server of the coordinator served at the last look, by its address; none for a directory."""
    fragments_scrub: Mapping[str, Any] | None
    """The report of the scrub of the fragment store; None without a store."""
    store_trouble: str | None
    """Why the fragment store can't be used; empty if it can, None without a store, and before the first look."""
    archive: ArchiveLag | None
    """How far the archive was behind at the last look; None without a store, and before the first look."""
    copies: Mapping[str, Any]
    """The report of the copies to late replicas in the background: `CopyTurns.health`."""
    clock: Mapping[str, Any]
    """What is known of the clocks of the server and its storage nodes: `ServerClock.health`."""
