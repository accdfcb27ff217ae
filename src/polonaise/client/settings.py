"""Settings of a client, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from polonaise.client.protocol.draft import Limits
from polonaise.link.connection import LinkSettings


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Bounds in bytes, counts and seconds. Every queue has one; every wait has one or ends with the client."""

    name: str = "client"
    """Shown in the servers' messages and consoles."""
    link: LinkSettings = field(default_factory=LinkSettings)
    """Of each connection: heartbeats, deadlines, bounds."""
    limits: Limits = field(default_factory=Limits)
    """Of one append; larger ones than the servers' own are refused there."""
    outstanding_count_max: int = 16_384
    """Appends of one partition whose fate is not known yet; beyond, `run` waits and `append` refuses."""
    outstanding_bytes_max: int = 32 * 1024 * 1024
    """Bytes of their bodies, their locks, and the keys and values that they expect and change."""
    submissions_max: int = 16_384
    """Contexts that `submit` has taken and not finished, over all partitions."""
    frame_count_max: int = 4_096
    """Transactions in one append frame."""
    frame_bytes_max: int = 1024 * 1024
    """Bodies in one append frame: large enough to be cheap, small enough not to hold up what comes behind."""
    credit_bytes: int = 4 * 1024 * 1024
    """Feed of one partition that was received and not applied yet. A slow view stops its own feed, nobody else's."""
    run_count_max: int = 4_096
    """Transactions that a view which takes runs is given at once: enough to make one commit of its store cheap for
    each."""
    run_bytes_max: int = 1024 * 1024
    """And bytes: a part of the credit only, so that the feed goes on meanwhile."""
    idle_flush_s: float = 1.0
    """Appends that hear nothing for this long are asked after with a flush."""
    connect_s_max: float = 5.0
    """Deadline of one try to connect to a server; it is tried again for as long as the caller waits."""
    request_s_max: float = 10.0
    """Deadline of one try of a request; the caller's own deadline covers all tries."""
    answer_s_max: float = 30.0
    """How long an answer of the log is waited for when the caller gives no timeout."""
    mount_s_max: float = 15.0
    """A mount that brings neither feed nor answer for this long is tried again."""
    retry_s_min: float = 0.02
    """The first pause before something is tried again; each further one is longer, with jitter."""
    retry_s_max: float = 2.0
    """The longest such pause."""
    apply_retry_s_max: float = 2.0
    """The longest pause before a transaction that the view could not apply is tried again."""
    coordinator_s_max: float = 30.0
    """Deadline of one wait for a newer assignment."""
    read_bytes: int = 2 * 1024 * 1024
    """Bytes per answer of a reader."""
    reads_ahead: int = 3
    """Answers that a reader of a known range has on their way at once, while one is consumed."""
    follow_s_max: float = 10.0
    """How long a server lets a reader at the end of the log wait for more."""
    fetch_bytes: int = 1024 * 1024
    """Bodies asked for at once, where they do not come with the feed."""
    fetches_max: int = 4
    """Such requests at once, per partition."""
