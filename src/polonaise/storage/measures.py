"""Measurements of a storage node, and of each of its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from polonaise.histogram import Histogram
from polonaise.storage.protocol.scrubschedule import Scrubbed
from polonaise.terms import PartitionId, SessionId, TransactionId


class ReplicaMeasures(NamedTuple):
    """Measurements of one replica at one moment."""

    partition: PartitionId
    usable: bool
    """Whether the replica's files are open and usable. If not, only the queue is measured: ids are -1, sizes 0."""
    session: SessionId
    """The session that the replica obeys; -1 for none."""
    last: TransactionId
    """The last id that the replica holds, synced; if it holds none, the id before its first, -1 without a segment."""
    confirmed: TransactionId
    """The highest id that the replica knows to be committed; -1 for none."""
    segments: int
    """The number of segment files."""
    log_bytes: int
    """The bytes of the segments, each up to the end of its last batch."""
    queue_entries: int
    """The number of messages that wait in the queue."""
    queue_bytes: int
    """The memory that these messages take, in bytes."""


class StorageMeasures(NamedTuple):
    """Measurements of a storage node as a whole at one moment. Totals count from its start, and never fall."""

    totals: Mapping[str, int]
    """The sums of `PartitionReplica.counts` over all partitions, by the same names."""
    syncs: Histogram
    """The times to write and sync what arrived for a replica at once: one for each sync."""
    gone: bool
    """Whether the storage directory is not this node's any more, so that nothing is stored."""
    disk_waits_s: float
    """For how many seconds the oldest call to the disk has not returned; 0 if none is under way."""
    partitions_known: int
    """The number of partitions that have files in the storage directory, or are about to get them."""
    connections: int
    """The number of connections: two of each server, those of operators, and those without a hello so far."""
    connections_bytes: int
    """The bytes held for all connections: frames not handled yet, and answers not taken yet."""
    reads: int
    """The number of unanswered reads, and of unanswered requests that name the node."""
    open_files: int
    """The number of open files: those of partitions, the control file, and the lock of the directory."""
    open_files_max: int
    """The most files of partitions that stay open."""
    scrub_bytes_per_s: int
    """The rate of the scrub, in bytes per second; 0 if it is switched off."""
    scrubbed: Scrubbed
    """What the scrub has done and found."""
