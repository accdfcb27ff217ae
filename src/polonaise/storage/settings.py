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
    files_max: int = 128
    """Segments open at a time. One that is needed again is opened again, which takes a fraction of a sync."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """Messages of one partition that wait for the disk; above it the connections that send them are not read."""
    reads_max: int = 32
    """Reads of one connection that are answered at the same time."""
    read_bytes_max: int = 8 * 1024 * 1024
    scrub_bytes_per_s: int = 2 * 1024 * 1024
    """Read in the background at most, to find rot before somebody needs the bytes; 0 for no scrub. A terabyte takes
    about six days so, and 0.5 % of a core."""
    scrub_every_s: float = 6 * 3600.0
    """Between the beginnings of two rounds at least: a small log need not be read all the time."""
    presence_s: float = 1.0
    """Between two looks whether the directory is still there. Removed files can be written on, and nobody would find
    what is acknowledged meanwhile."""
    presence_partitions_max: int = 64
    """The most partitions whose files one look asks for, among those written to: with thousands, they come in turn."""
    scrub_first_s: float = 60.0
    """After the start, about: whoever starts a node has other work for its disk."""
