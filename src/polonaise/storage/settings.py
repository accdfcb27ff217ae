"""The settings of a storage node, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polonaise.link.settings import LinkSettings

STOP_S_MAX: Final = 5.0
"""Seconds that a storage node's process has to stop before it is ended by force: nothing rests on a clean end."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The bounds of a storage node, in bytes, counts and seconds."""

    directory: str
    """The directory with the log's files. One node, one directory."""
    listen: str = "127.0.0.1:0"
    """The address to listen on; port 0 takes a free one."""
    name: str | None = None
    """The node's name: a directory without one takes it, one with another is refused. None takes the directory's, or
    that by which the first server reaches the node."""
    cluster_key: bytes | None = None
    """The key of this node's cluster; None takes that of its directory, or of the first server that greets it."""
    link: LinkSettings = field(default_factory=LinkSettings)
    """The bounds and deadlines of each connection."""
    connections_bytes_max: int = 192 * 1024 * 1024
    """The most bytes of unhandled frames and untaken answers of all connections together; the greediest are cut off."""
    segment_bytes_max: int = 256 * 1024 * 1024
    """The size at which a segment is full, in bytes."""
    segment_batches_max: int = 262_144
    """The number of batches at which a segment is full."""
    partitions_max: int = 4_096
    """The number of partitions that the node takes: those whose ids are below this number."""
    files_max: int = 128
    """The most files of partitions that stay open at a time; more only while all of them are in use."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """The most bytes of messages of one partition that wait for the disk; above it their connections are not read."""
    reads_max: int = 32
    """The most reads of one connection that are answered at the same time."""
    read_bytes_max: int = 8 * 1024 * 1024
    """The most bytes in the answer to one read, but for a single batch that is larger."""
    scrub_bytes_per_s: int = 2 * 1024 * 1024
    """Bytes per second that the scrub reads; 0 for none. By default six days for a terabyte, and 0.5 % of a core."""
    scrub_every_s: float = 6 * 3600.0
    """The least seconds between the beginnings of two scrub rounds: a small log need not be read all the time."""
    presence_s: float = 1.0
    """The seconds between two looks whether the directory is there: what is acknowledged in removed files is lost."""
    presence_partitions_max: int = 64
    """The most partitions whose files one look checks, among those written to; with thousands, they come in turn."""
    scrub_first_s: float = 60.0
    """About how many seconds after the start the first scrub round begins."""
