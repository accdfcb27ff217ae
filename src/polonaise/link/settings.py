"""The bounds and deadlines of a connection."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.wire.codec import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The bounds and deadlines of a connection, in bytes and seconds."""

    heartbeat_s: float = 1.0
    """The interval of checks, and of pings while nothing is sent or heard."""
    silence_s_max: float = 5.0
    """A peer that is read, and from which no byte comes for this long, is taken for dead."""
    clock_s: float = 2.0
    """How often the side that has connected asks the other for its time; 0 for never."""
    hello_s_max: float = 5.0
    """The longest that a peer may take to say hello."""
    frame_s_max: float = 30.0
    """The longest that one frame may take to arrive once it has begun."""
    unread_s_max: float = 60.0
    """A peer that keeps writers waiting and takes no byte for this long is cut off."""
    linger_s_max: float = 5.0
    """The longest that a closed connection may take to send what was written before it was closed."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """The largest frame that is accepted once the peer has said hello, in bytes."""
    unsent_bytes_high: int = 4 * 1024 * 1024
    """Writers are asked to wait once more than this is unsent, until most of it has left."""
    unsent_bytes_tight: int = 128 * 1024
    """In place of `unsent_bytes_high` while all connections hold more than half of their budget."""
    unread_bytes_max: int = 8 * 1024 * 1024
    """An accepted peer that leaves more than this unread is not read either: its requests can't pile up as answers."""
    unsent_bytes_max: int = 256 * 1024 * 1024
    """A peer that lets more than this pile up is cut off."""
