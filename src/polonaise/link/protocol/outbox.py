"""The outbox of a connection: what of the sent has not left, and when a peer has left too much of it.

There are no priorities: what is sent leaves in the order in which it was sent. The transport tells only how many bytes
are unsent in all, which the shell passes on as `unsent_bytes`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from polonaise.errors import Overloaded
from polonaise.link.protocol.greeting import PeerGreeting
from polonaise.link.settings import LinkSettings

_TOGETHER_BYTES: Final = 65_536
"""Small messages are booked together: an entry for each would take more memory than they do."""


class FrameOutbox:
    """Counts what was given to the transport, and what of it is left. All times are monotonic seconds."""

    __slots__ = (
        "_given_bytes", "_greeting", "_own", "_own_bytes", "_settings", "_taken_bytes", "_taken_s", "_tight", "sent_s",
    )  # fmt: skip

    def __init__(self, greeting: PeerGreeting, settings: LinkSettings) -> None:
        """`greeting` is only read."""
        self._greeting: Final = greeting
        self._settings: Final = settings
        self._own: deque[tuple[int, int]] = deque()
        """Messages in memory for this peer alone: where each ends in the stream of sent bytes, and its size."""
        self._own_bytes = 0
        self._tight = False
        self._given_bytes = 0
        self._taken_bytes = 0
        """What had left the transport at `_taken_s`."""
        self._taken_s = 0.0
        """The last check that saw progress, or no writer waiting."""
        self.sent_s = 0.0
        """When something was sent last, or the connection was made."""

    def begin(self, now_s: float) -> None:
        self.sent_s = now_s

    def gave(self, size: int, unsent_bytes: int, now_s: float, *, own: bool) -> Overloaded | None:
        """Note a message given to the transport (`own`: kept for this peer alone); return why to cut it off."""
        self._given_bytes += size
        self.sent_s = now_s
        if not unsent_bytes:
            return None
        if own:
            self._own_bytes += size
            if self._own and self._own[-1][1] < _TOGETHER_BYTES:
                size += self._own.pop()[1]
            self._own.append((self._given_bytes, size))
        if unsent_bytes > self._settings.unsent_bytes_max:
            return Overloaded(
                f"{self._greeting.peer_name} does not read what it is sent: {unsent_bytes} bytes are unsent"
            )
        return None

    def is_unread(self, unsent_bytes: int) -> bool:
        """Whether the peer leaves so much unread that it is not to be read either."""
        return unsent_bytes > self._settings.unread_bytes_max and self._greeting.accepted

    def own_bytes(self, unsent_bytes: int) -> int:
        # What is unsent includes shared messages; but those messages that end within `taken` have left.
        taken = self._given_bytes - unsent_bytes
        while self._own and self._own[0][0] <= taken:
            self._own_bytes -= self._own.popleft()[1]
        return self._own_bytes

    def tighten(self, tight: bool) -> int | None:
        """Return the new bound above which writers wait, if it changes: it is lower while the budget is tight."""
        if tight is self._tight:
            return None
        self._tight = tight
        return self._settings.unsent_bytes_tight if tight else self._settings.unsent_bytes_high

    def stuck(self, unsent_bytes: int, now_s: float, *, writable: bool) -> Overloaded | None:
        """Return why the peer is cut off: writers wait, and it has taken nothing for too long. None if it has not."""
        taken = self._given_bytes - unsent_bytes
        if writable or taken != self._taken_bytes:
            self._taken_bytes, self._taken_s = taken, now_s
        if now_s - self._taken_s <= self._settings.unread_s_max:
            return None
        return Overloaded(
            f"{self._greeting.peer_name} has read nothing of what it is sent for {self._settings.unread_s_max:g} s"
        )

    def ping_due(self, now_s: float, heard_s: float) -> bool:
        """Whether the peer is to be pinged, of which something was heard last at `heard_s`."""
        # The older of the two: when nothing was sent the peer needs a sign of life, and when nothing was heard this
        # side needs an answer. A little less than the interval, or a timer that is early would skip every other ping.
        return now_s - min(self.sent_s, heard_s) >= self._settings.heartbeat_s * 0.9
