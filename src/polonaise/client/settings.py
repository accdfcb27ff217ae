"""The settings of a client, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polonaise.client.protocol.draft import Limits
from polonaise.link.settings import LinkSettings

PATIENCES: Final = 8.0
"""The most times `mount_s_max` or `request_s_max` for which an answer is waited for, after some that were late."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The bounds and deadlines of a client, in bytes, counts and seconds.

    ::

        polonaise.connect(address, settings=ClientSettings(name="billing", answer_s_max=5))
    """

    name: str = "client"
    """This client's name in the messages of servers."""
    link: LinkSettings = field(default_factory=LinkSettings)
    """Settings of each connection: heartbeats, deadlines, bounds."""
    limits: Limits = field(default_factory=Limits)
    """The bounds of one append. Servers have bounds of their own, and refuse what exceeds those."""
    outstanding_count_max: int = 16_384
    """Transactions of one partition with an unknown fate. At this bound `run` waits, and `append` raises
    `Overloaded`."""
    outstanding_bytes_max: int = 32 * 1024 * 1024
    """Bytes (bodies, locks, keys, values) of appends with an unknown fate, as `outstanding_count_max` counts them."""
    submissions_max: int = 16_384
    """Unfinished submissions over all partitions. At this bound `submit` raises `Overloaded`."""
    frame_count_max: int = 4_096
    """Transactions in one append frame; only a group may exceed it."""
    frame_bytes_max: int = 1024 * 1024
    """Bytes of bodies, locks, expectations and changes in one append frame, unless one append or group is larger. An
    expectation or a change counts as its key, its value and 32 bytes."""
    credit_bytes: int = 4 * 1024 * 1024
    """The credit of one partition's feed: bytes received and not yet applied. A slow view stops only its own feed."""
    run_count_max: int = 4_096
    """Transactions of one run, for a view with `apply_run`."""
    run_bytes_max: int = 1024 * 1024
    """Bytes of bodies of one run: less than `credit_bytes`, so that the feed goes on meanwhile."""
    idle_flush_s: float = 1.0
    """Seconds without news of appends that were sent, after which the client asks for their fate."""
    connect_s_max: float = 5.0
    """Seconds for one attempt to connect to a server."""
    stranger_s_max: float = 30.0
    """Seconds for which another process at the address of a partition's owner, such as a server of another cluster,
    counts as an owner that does not answer. Where addresses are used again, one may stand there before the coordinator
    has noticed that the owner is gone; one that stays is a mistake in the network or its names, and raises."""
    request_s_max: float = 10.0
    """Seconds for one attempt of a request, beside those that it lets the server wait. They double when no answer comes
    within them, up to eight times as long, and fall again with answers that come at once: disks may be slow. The
    caller's own deadline covers all attempts."""
    answer_s_max: float = 30.0
    """The default `timeout`, in seconds, of methods that wait for an answer, such as `Log.register` and `Log.read`."""
    mount_s_max: float = 15.0
    """Seconds without feed or answer after which a mount that was not answered is tried again. They double each time,
    up to eight times as long, and fall again with mounts that are answered."""
    retry_s_min: float = 0.02
    """Seconds of the first pause before what failed for a passing reason is tried again: a mount, a request, a context,
    a producer's append. Each further pause is twice as long, with jitter."""
    retry_s_max: float = 2.0
    """Seconds of the longest pause, to which `retry_s_min` doubles."""
    apply_retry_s_max: float = 2.0
    """The longest pause, in seconds, before the view is asked for its mark again, or given what it could not apply."""
    coordinator_s_max: float = 30.0
    """Seconds for which the coordinator is asked for a newer assignment; then it is asked again. For a client that asks
    servers, a third of it, and a minute at most, is the wait of each such request, and the age, two seconds at least,
    above which an assignment counts as stale, so that another server is asked."""
    read_bytes: int = 2 * 1024 * 1024
    """Bytes of batches that a reader asks for in one request."""
    reads_ahead: int = 3
    """Requests that a reader of a known range has under way at once."""
    follow_s_max: float = 10.0
    """Seconds that a request of a following reader waits at the server for more transactions."""
    fetch_bytes: int = 1024 * 1024
    """Bytes of bodies fetched with one request, where bodies do not come with the feed."""
    fetches_max: int = 4
    """Batches whose bodies are fetched at the same time, per partition."""
