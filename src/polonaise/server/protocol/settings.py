"""Bounds of what the owner of a partition decides, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.log import registers
from polonaise.server.protocol.locks import DEFAULT_ENTRIES


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Bounds in bytes, counts and seconds. Every queue has one, every wait has one."""

    evidence: bool = False
    """Write into each batch what its transactions were judged by: a checker of serializability needs it."""
    lock_entries: int = DEFAULT_ENTRIES
    window: int = 4
    """Batches on their way to the replicas at once. More hides latency, fewer makes batches larger."""
    batch_count_max: int = 8_192
    batch_bytes_max: int = 2 * 1024 * 1024
    append_window_bytes: int = 4 * 1024 * 1024
    """Undecided appends of one mount: the client is told, and waits when it has sent so much."""
    inbox_bytes_max: int = 64 * 1024 * 1024
    """Appends of all mounts of a partition that wait for their order; above it, more are refused."""
    inbox_s_max: float = 10.0
    """How long an append may wait for a session."""
    request_s_max: float = 4.0
    """How long a request may, a mount among them: less than clients are patient, so they learn what it waits for."""
    cache_bytes_max: int = 32 * 1024 * 1024
    """Recent batches per partition from which caught-up readers are fed."""
    checkpoint_transactions: int = 250_000
    """A new session is forced after so many, so that a clean-up never has to go far back."""
    listing_count_max: int = registers.PAGE_COUNT_MAX
    """Registers in one page of a listing."""
    pulse_s: float = 60.0
    """An idle partition syncs a barrier about this often, so that a fault is found before a writer finds it. The
    partitions of a server take turns with it, eight in a second: those of a thousand are longer idle."""
    acknowledge_s_max: float = 3.0
    """A replica that is this late with an acknowledgement ends the session."""
    subscriptions_max: int = 10_000

    def asked_until_s(self, now_s: float) -> float:
        """The deadline of what is asked now."""
        return now_s + min(self.request_s_max, self.inbox_s_max)
