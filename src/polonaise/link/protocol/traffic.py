"""The traffic of a connection: what comes in, in which order, what has not left yet, and when a peer is given up.

1. Frames are handled in the order in which they came: behind one that is held, all are.
2. Nothing is handed out while there is a reason to pause, nor after the end.
3. What is held came with one read: the shell does not read while anything is held.
4. Silence, and a frame that does not end, are held against the peer only for the time for which this side read it.
5. What is sent leaves in the order in which it was sent: there are no priorities. The transport tells only how many
   bytes are unsent in all, which the shell passes on as `unsent_bytes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from polonaise.errors import ConnectionLost, Overloaded
from polonaise.link.protocol.greeting import PeerGreeting
from polonaise.link.settings import LinkSettings
from polonaise.wire.codec import Frame, Frames

OWN_REQUESTS: Final = 0x8000_0000
"""From here on request numbers are those of `Connection.request`."""
_TURN_FRAMES_MAX: Final = 8
"""The most frames of one accepted connection that are handled in one turn of the loop."""
_LATE_BEATS: Final = 2.5
"""After so many heartbeats without a byte of the peer it is late: each of them asks for an answer."""

Waiting = TypeVar("Waiting")


class FrameInbox:
    """Cuts frames from what has come, hands them out, and holds those that wait for a turn or a pause's end.

    Monotonic seconds.
    """

    __slots__ = (
        "_ended", "_frame_began_s", "_frames", "_greeting", "_held", "_held_bytes", "_pauses", "_settings", "heard_s",
    )  # fmt: skip

    def __init__(self, greeting: PeerGreeting, settings: LinkSettings) -> None:
        """`greeting` is only read."""
        self._greeting: Final = greeting
        self._settings: Final = settings
        self._frames = Frames()
        self._held: deque[Frame] = deque()
        self._held_bytes = 0
        self._pauses: set[str] = set()
        self._frame_began_s: float | None = None
        """When the first frame that is not whole began, if there is one; before the hello, when the connection was
        made, so that single bytes, sent slowly, buy no time."""
        self._ended = False
        self.heard_s = 0.0
        """When the last byte came, or this side began to read again after it had not for a while."""

    # ------------------------------------------------------------------ frames

    def begin(self, now_s: float) -> None:
        """The connection is made: from now on the peer may take so long to say hello."""
        self.heard_s = self._frame_began_s = now_s

    def greeted(self) -> None:
        """The peer was admitted. Strangers get room for a hello only; from here on frames may be large."""
        self._frames.bytes_max = self._settings.frame_bytes_max
        self._frame_began_s = None

    def end(self) -> None:
        self._ended = True
        self._held.clear()
        self._held_bytes = 0
        # Connection and transport refer to each other until garbage is collected; an unfinished frame may be large.
        self._frames = Frames()

    def take(self, data: bytes, now_s: float) -> Iterator[Frame]:
        """Yield the frames that these bytes complete, for as long as they may be handled at once; hold the others.

        Raises `ProtocolError` for what is no frame; the connection is useless then.
        """
        # Any byte is a sign of life, whatever it turns out to be.
        self.heard_s = now_s
        # Only accepted peers have turns. The others are nodes that this side has chosen, and what they send is
        # bounded by what they were asked.
        turn_left = _TURN_FRAMES_MAX if self._greeting.accepted else -1
        received = frames = self._frames.feed(data)
        while frames:
            for frame in frames:
                # Looked at before each frame: the one before may have closed this connection, or paused it.
                if self._ended:
                    return
                # Behind held frames everything is held, or it would overtake them.
                if self._pauses or self._held or turn_left == 0:
                    self._held.append(frame)
                    self._held_bytes += len(frame.head) + len(frame.payload)
                else:
                    turn_left -= 1
                    yield frame
            # A hello raises the limit of a frame's size, so what followed it in the same bytes is looked at again.
            frames = self._frames.feed(b"") if self._frames.kept_bytes else []
        if self._greeting.peer is not None:
            if not self._frames.kept_bytes:
                self._frame_began_s = None
            elif received or self._frame_began_s is None:
                self._frame_began_s = now_s

    def take_turn(self) -> Iterator[Frame]:
        for _ in range(_TURN_FRAMES_MAX):
            if not self.has_turn:
                return
            frame = self._held.popleft()
            self._held_bytes -= len(frame.head) + len(frame.payload)
            yield frame

    @property
    def kept_bytes(self) -> int:
        return self._frames.kept_bytes + self._held_bytes

    # ------------------------------------------------------------------ pauses

    @property
    def has_turn(self) -> bool:
        """Whether held frames may be handled now."""
        return bool(self._held) and not self._pauses

    @property
    def reads(self) -> bool:
        """Whether more may be read."""
        return not self._pauses and not self._held

    def pause(self, reason: str) -> None:
        self._pauses.add(reason)

    def resume(self, reason: str, now_s: float) -> bool:
        """End one reason to pause; return whether it was the last one."""
        if reason not in self._pauses:
            return False
        self._pauses.remove(reason)
        if self._pauses:
            return False
        # Both deadlines start anew: that nothing was heard, and no frame finished, was this side's doing.
        self.heard_s = now_s
        if self._frame_began_s is not None:
            self._frame_began_s = now_s
        return True

    def reads_on(self, now_s: float) -> None:
        self.heard_s = now_s

    # ------------------------------------------------------------------ silence

    def silent_s(self, now_s: float) -> float:
        """For how many seconds nothing was heard of the peer, which should have answered; 0 if it is not late."""
        if self._greeting.peer is None or self._ended or not self.reads:
            return 0.0
        silent_s = now_s - self.heard_s
        return silent_s if silent_s > _LATE_BEATS * self._settings.heartbeat_s else 0.0

    def overdue(self, now_s: float, late_s: float) -> ConnectionLost | None:
        """Return why the peer is taken for dead, if it is. This look at it is `late_s` seconds late."""
        settings, began_s = self._settings, self._frame_began_s
        if self._greeting.peer is None:
            if now_s - self.heard_s > settings.hello_s_max or now_s - (began_s or now_s) > settings.hello_s_max:
                return ConnectionLost("the peer did not say hello")
        # While this side does not read, because of a pause or of held frames, silence is no fault of the peer's.
        elif not self._pauses and began_s is not None and now_s - began_s > settings.frame_s_max:
            return ConnectionLost(f"{self._greeting.peer_name} did not finish a frame in {settings.frame_s_max:g} s")
        elif self.reads and now_s - self.heard_s > settings.silence_s_max:
            return ConnectionLost(self._silence(now_s, late_s))
        return None

    def _silence(self, now_s: float, late_s: float) -> str:
        """Return why no sign of the peer was heard: this process itself may have stood still."""
        # Each look is a little late, and that is no standing still.
        if late_s < self._settings.heartbeat_s or now_s - self.heard_s - late_s > self._settings.silence_s_max:
            return f"{self._greeting.peer_name} was silent for {self._settings.silence_s_max:g} s"
        return (
            f"this process, or its machine, itself stood still for {late_s:.1f} s, in which it heard nothing of "
            f"{self._greeting.peer_name}"
        )


class AwaitedAnswers(Generic[Waiting]):
    """The requests of this side that wait for their answers, by number."""

    __slots__ = ("_last", "waiting")

    def __init__(self) -> None:
        self._last = 0
        self.waiting: dict[int, Waiting] = {}
        """Who waits for the answer to each request. An answer that comes after its deadline finds nobody here, and is
        delivered like any other message."""

    def begin(self, waiting: Waiting) -> int:
        """Return the number of a new request."""
        # From the upper half: a session numbers its messages itself, in the lower.
        self._last = (self._last + 1) & 0x7FFF_FFFF
        self.waiting[OWN_REQUESTS | self._last] = waiting
        return OWN_REQUESTS | self._last

    def end(self, number: int) -> None:
        self.waiting.pop(number, None)

    def end_all(self) -> list[Waiting]:
        waiting, self.waiting = list(self.waiting.values()), {}
        return waiting


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
