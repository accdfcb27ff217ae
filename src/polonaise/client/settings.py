"""The settings of a client, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polonaise.client.protocol.draft import Limits
from polonaise.link.settings import LinkSettings

PATIENCES: Final = 8.0
"""For at most how many times `mount_s_max` or `request_s_max` an answer is waited for, after others that came too late.
"""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The bounds and deadlines of a client, in bytes, counts and seconds.

    Every queue is bounded; every wait has a deadline, or ends when the client is closed. ::

        polonaise.connect(address, settings=ClientSettings(name="billing", answer_s_max=5))
    """

    name: str = "client"
    """The name of this client in the messages of servers."""
    link: LinkSettings = field(default_factory=LinkSettings)
    """The settings of each connection: heartbeats, deadlines, bounds."""
    limits: Limits = field(default_factory=Limits)
    """The bounds of one append. Servers have bounds of their own, and refuse what exceeds those."""
    outstanding_count_max: int = 16_384
    """Transactions of one partition that are appended, with an unknown fate. At this bound `run` waits, and `append`
    raises `Overloaded`."""
    outstanding_bytes_max: int = 32 * 1024 * 1024
    """The same bound in bytes: of their bodies, locks, and the keys and values that they expect and change."""
    submissions_max: int = 16_384
    """Unfinished submissions over all partitions. At this bound `submit` raises `Overloaded`."""
    frame_count_max: int = 4_096
    """Transactions in one append frame; only a group may exceed it."""
    frame_bytes_max: int = 1024 * 1024
    """Bytes of bodies, locks, expectations and changes in one append frame, unless one append or group alone is larger:
    enough to make a frame cheap for each append, few enough not to delay the frames behind it. An expectation or a
    change of a register counts as its key, its value and 32 bytes."""
    credit_bytes: int = 4 * 1024 * 1024
    """The credit of one partition's feed: bytes that may be received and not yet applied. A slow view stops only its
    own feed."""
    run_count_max: int = 4_096
    """Transactions of one run, for a view with `apply_run`: so many that each has a small share in the cost of one
    commit of the view's store."""
    run_bytes_max: int = 1024 * 1024
    """Bytes of bodies of one run: less than `credit_bytes`, so that the feed goes on while the view applies it."""
    idle_flush_s: float = 1.0
    """Seconds without news of appends that were sent, after which the client sends a flush to learn their fate."""
    connect_s_max: float = 5.0
    """Seconds for one attempt to connect to a server; further attempts follow for as long as the caller waits."""
    request_s_max: float = 10.0
    """Seconds for one attempt of a request, beside those that it lets the server wait. They double when no answer comes
    within them, up to eight times as long, and fall again with answers that come at once: what is read for a request
    may come from slow disks. The caller's own deadline covers all attempts."""
    answer_s_max: float = 30.0
    """The default `timeout`, in seconds, of methods that wait for an answer, such as `Log.register` and `Log.read`."""
    mount_s_max: float = 15.0
    """Seconds without feed or answer after which a mount that was not answered is given up and tried again. They double
    each time, up to eight times as long, and fall again with mounts that are answered: a server's disks may be slow."""
    retry_s_min: float = 0.02
    """Seconds of the first pause before an attempt that failed for a passing reason is repeated: to mount a partition,
    to get an answer, to run a context, to append with a producer. Each further pause is twice as long, with jitter."""
    retry_s_max: float = 2.0
    """Seconds of the longest pause before an attempt that failed for a passing reason is repeated."""
    apply_retry_s_max: float = 2.0
    """The longest pause, in seconds, before the view is asked again for its mark, or given again what it could not
    apply."""
    coordinator_s_max: float = 30.0
    """Seconds for which the coordinator is asked for a newer assignment; then it is asked again, without a pause. For a
    client that asks servers, a third of it, and never more than a minute, is the wait of each such request, and the age
    above which an assignment counts as stale, so that another server is asked; that age is two seconds at least."""
    read_bytes: int = 2 * 1024 * 1024
    """Bytes of batches that a reader asks for in one request."""
    reads_ahead: int = 3
    """Requests that a reader of a known range has under way at once, while one answer is consumed."""
    follow_s_max: float = 10.0
    """Seconds that a request of a following reader waits at the server for more transactions."""
    fetch_bytes: int = 1024 * 1024
    """Bytes of bodies fetched with one request, where bodies do not come with the feed."""
    fetches_max: int = 4
    """Batches whose bodies are fetched at the same time, per partition."""
