"""Settings of a storage node, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from polonaise.link.connection import LinkSettings


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Bounds in bytes and counts."""

    directory: str
    """Where the log's files are. One node, one directory."""
    listen: str = "127.0.0.1:0"
    cluster_key: bytes | None = None
    """The cluster this node belongs to; None takes that of its directory, or of the first server that greets it."""
    link: LinkSettings = field(default_factory=LinkSettings)
    connections_bytes_max: int = 192 * 1024 * 1024
    """Unfinished frames and untaken answers of all servers together; above it the greediest are cut off."""
    segment_bytes_max: int = 256 * 1024 * 1024
    segment_batches_max: int = 262_144
    partitions_max: int = 4_096
    queue_bytes_max: int = 64 * 1024 * 1024
    """Messages of one partition that wait for the disk; above it the connections that send them are not read."""
    reads_max: int = 32
    """Reads of one connection that are answered at the same time."""
    read_bytes_max: int = 8 * 1024 * 1024
