"""Settings of a server, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from polonaise.link.connection import LinkSettings
from polonaise.server.protocol.order import INLINE_BYTES_MAX
from polonaise.server.protocol.settings import OwnerSettings


@dataclass(frozen=True, slots=True)
class ServerSettings(OwnerSettings):
    """Bounds of a server, beside those of the owners of its partitions."""

    listen: str = "127.0.0.1:0"
    link: LinkSettings = field(default_factory=LinkSettings)
    connections_bytes_max: int = 96 * 1024 * 1024
    """Unfinished frames and untaken answers of all clients together; above it the greediest are cut off."""
    inline_bytes_max: int = INLINE_BYTES_MAX
    gather_s: float = 0.2
    """How long a session start waits for more replicas than it needs."""
    session_starts_max: int = 32
    """Partitions that start a session at the same time; more would wait for each other past their deadlines."""
    session_start_turn_s: float = 2.0
    """One that takes longer goes on beside the next: what it waits for, others may not need."""
    session_start_wait_s_max: float = 30.0
    """When no partition gets its turn for so long, those that wait for theirs say so and ask again."""
    replica_s_max: float = 5.0
    """Deadline of one request to a replica."""
    farewell_s_max: float = 1.0
    """How long a server that stops waits for replicas to note up to where it has seen the log committed."""
    coordinator_s_max: float = 5.0
    retry_s_min: float = 0.05
    retry_s_max: float = 2.0
    warn_s: float = 3.0
    """A partition that is not ready for so long is warned about: longer than a session start takes."""
    warn_again_s: float = 30.0
    """And again this often, while it lasts."""
    copy_bytes: int = 1024 * 1024
    """Bytes per request when a replica is brought up to date."""
    copy_pause_ratio: float = 1.0
    """Copying in the background rests this long per time it worked, to leave the replicas to the appends."""
    readmit_transactions: int = 1_000
    """A late replica this close to the end is let back in through a new session, which copies the rest."""
    readmit_s_min: float = 1.0
    """At most one new session per this long for letting replicas back in."""
    read_bytes_max: int = 4 * 1024 * 1024
    read_wait_s_max: float = 30.0
    scrub_bytes_per_s: int = 2 * 1024 * 1024
    """Read of the fragment store in the background at most, to find rot while the log can mend it; 0 for no scrub."""
    scrub_every_s: float = 24 * 3600.0
    """Between the beginnings of two rounds at least."""
    scrub_first_s: float = 60.0
    """After the start, about."""
    scrub_again_s: float = 60.0
    """Until a store that could not be read, or a repair that may succeed later, is tried again."""
