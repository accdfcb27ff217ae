"""What can be measured of a storage node, and of each of its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from polonaise.histogram import Histogram
from polonaise.storage.protocol.scrubschedule import Scrubbed
from polonaise.terms import PartitionId, SessionId, TransactionId


class ReplicaMeasures(NamedTuple):
    """What can be measured of one replica."""

    partition: PartitionId
    usable: bool
    """Whether its files are open and can be used."""
    session: SessionId
    """The session that it obeys; -1 for none, or while its files are not open."""
    last: TransactionId
    """The last id that it holds, synced; -1 for none."""
    confirmed: TransactionId
    """The highest id that it knows to be committed; -1 for none."""
    segments: int
    log_bytes: int
    """The bytes of its segments."""
    queue_entries: int
    queue_bytes: int
    """The messages that wait in its queue, and the memory that they take."""


class StorageMeasures(NamedTuple):
    """What can be measured of a storage node as a whole. Totals are since its start, and never fall."""

    totals: Mapping[str, int]
    """The sums of `PartitionReplica.counts` over all partitions."""
    syncs: Histogram
    """The time to write and sync what arrived in a run, once for each sync."""
    gone: bool
    """Whether the directory is not the node's any more, so that nothing is stored."""
    partitions_known: int
    """The number of partitions of which there are files."""
    connections: int
    """The connections of servers: two for each."""
    connections_bytes: int
    """The bytes that are held for them."""
    reads: int
    """The reads that are not answered yet."""
    open_files: int
    """The files that are kept open."""
    open_files_max: int
    """The most segment files that are kept open."""
    scrub_bytes_per_s: int
    """The rate of the scrub; 0 for none."""
    scrubbed: Scrubbed
