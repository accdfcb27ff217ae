"""Settings of a server, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from polonaise.link.connection import LinkSettings
from polonaise.server.protocol.locks import DEFAULT_ENTRIES
from polonaise.server.protocol.order import INLINE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds in bytes, counts and seconds. Every queue has one, every wait has one."""

    listen: str = "127.0.0.1:0"
    link: LinkSettings = field(default_factory=LinkSettings)
    connections_bytes_max: int = 96 * 1024 * 1024
    """Unfinished frames and untaken answers of all clients together; above it the greediest are cut off."""
    evidence: bool = False
    """Write into each batch what its transactions were judged by: a checker of serializability needs it."""
    lock_entries: int = DEFAULT_ENTRIES
    inline_bytes_max: int = INLINE_BYTES_MAX
    window: int = 4
    """Batches on their way to the replicas at once. More hides latency, fewer makes batches larger."""
    batch_count_max: int = 8_192
    batch_bytes_max: int = 2 * 1024 * 1024
    inbox_bytes_max: int = 16 * 1024 * 1024
    """Appends waiting for order, per partition; above it the connections that fill it are not read."""
    inbox_s_max: float = 10.0
    """How long an append may wait for a session."""
    question_s_max: float = 4.0
    """How long a question may, a mount among them: less than clients are patient, so they learn what it waits for."""
    cache_bytes_max: int = 32 * 1024 * 1024
    """Recent batches per partition from which caught-up readers are fed."""
    checkpoint_transactions: int = 250_000
    """A new session is forced after so many, so that a clean-up never has to go far back."""
    pulse_s: float = 60.0
    """An idle partition syncs a barrier this often, so that a fault is found before a writer finds it."""
    acknowledge_s_max: float = 3.0
    """A replica that is this late with an acknowledgement ends the session."""
    gather_s: float = 0.2
    """How long a session start waits for more replicas than it needs."""
    replica_s_max: float = 5.0
    """Deadline of one request to a replica."""
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
    subscriptions_max: int = 10_000
