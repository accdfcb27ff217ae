"""The settings of a partition's owner, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.log import registers
from polonaise.server.protocol.locktable import DEFAULT_ENTRIES


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """The bounds of one owner, in bytes, counts and seconds."""

    evidence: bool = False
    """Whether each batch holds what its transactions were judged by, for a checker of serializability."""
    lock_entries: int = DEFAULT_ENTRIES
    """The entries of the lock table, of 8 bytes each. More make false conflicts rarer."""
    window: int = 4
    """The most messages (batches, barriers) sent and not committed. More hides latency, fewer makes batches larger."""
    batch_count_max: int = 8_192
    """No further append frame joins a batch that has this many transactions; the last frame may bring it above."""
    batch_bytes_max: int = 2 * 1024 * 1024
    """No further append frame joins a batch that has this many bytes; the last frame may bring it above."""
    append_window_bytes: int = 4 * 1024 * 1024
    """The most bytes of undecided appends that one mount may have sent, but for a single frame that is larger; its
    client is told, and waits."""
    inbox_bytes_max: int = 64 * 1024 * 1024
    """The most bytes of appends, of all mounts of a partition, that wait to be ordered; more are refused. Mounts of
    which nothing waits yet may take them to twice this."""
    inbox_s_max: float = 10.0
    """The longest that an append may wait to be ordered."""
    request_s_max: float = 4.0
    """The longest that a request, or a mount, waits to be proved (or `inbox_s_max`, if shorter); then it is refused
    with what it waited for, unless a session is proving it. Clients wait longer, so that they learn that."""
    cache_bytes_max: int = 32 * 1024 * 1024
    """The most bytes of recent batches from which caught-up readers of a partition are fed. The last one always
    stays."""
    checkpoint_transactions: int = 250_000
    """After so many commits a session is ended and the next one started, so that making a replica clean never goes far
    back."""
    listing_count_max: int = registers.PAGE_COUNT_MAX
    """The most registers in one page of a listing."""
    pulse_s: float = 60.0
    """An idle partition sends a barrier about this often, so that a fault is found before a writer finds it. Partitions
    take turns, eight in a second, so that with thousands of them it takes longer."""
    acknowledge_s_max: float = 3.0
    """A replica that takes longer than this to acknowledge what a quorum has synced, and several times as long as the
    quorum, ends the session. While no quorum has, twenty times as long is waited: then all disks are slow."""
    subscriptions_max: int = 10_000
    """The most clients mounted on the partition at once; more are refused."""

    def asked_until_s(self, now_s: float) -> float:
        """Return the deadline of a request that arrives now, in monotonic seconds."""
        return now_s + min(self.request_s_max, self.inbox_s_max)
