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
    """How long each batch took, from the receipt of its oldest append to the commit."""
    refused: Mapping[str, int]
    """Clients' messages that were refused, by error code; not what owners refuse by their effects: appends that are not
    ordered, and requests that wait in vain or find no room."""
    connections: int
    """Those on which a client has said hello."""
    connections_bytes: int
    """Held for them: frames not handled yet, and unsent messages that clients don't share."""
    connections_cut_off: int
    """Those cut off because all of them together held too many bytes."""
    requests: int
    """Unanswered, without those that an owner answers, such as appends, mounts and flushes."""
    storage_connected: Mapping[StorageId, bool]
    storage_resent: Mapping[StorageId, float | None]
    """The share of what was sent lately that had to be sent again; None if it is not known."""
    coordinator_errors: int
    """Failed attempts to follow the assignment, to read members and to renew the lease."""
    coordinator_trouble: str
    """What can't be read or renewed there, and why; empty if all can."""
    missing_servers: int | None
    """Servers that are to be there and were not registered; None before the first look."""
    given_up: int
    """Partitions that this server can't serve, and has given up for others to take over."""
    coordinator_servers: Mapping[str, bool]
    """Whether each served at the last look, by its address; none for a directory."""
    fragments_scrub: Mapping[str, Any] | None
    """`FragmentScrubbing.health`; None without a store."""
    store_trouble: str | None
    """Why the fragment store can't be used; empty if it can, None without a store, and before the first look."""
    archive: ArchiveLag | None
    """None without a store, and before the first look."""
    copies: Mapping[str, Any]
    """`CopyTurns.health`."""
    clock: Mapping[str, Any]
    """`ServerClock.health`."""
