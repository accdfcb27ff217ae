"""The window of a mount: how many bytes of appends may be undecided at the owner of the partition."""

from __future__ import annotations

from collections import deque

from polonaise.wire.appends import inbox_bytes


class AppendWindow:
    """Counts the bytes of append frames of one mount that are sent and not decided.

    The owner names the bound, for each partition of its own. So a client whose one partition stands still goes on
    sending to its others on the same connection, and no server has to leave that connection unread.
    """

    __slots__ = ("_frames", "_used", "_window_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int]] = deque()
        self._used = 0
        self._window_bytes = 0

    def open(self, window_bytes: int) -> None:
        """Begin anew for a mount that is ready, on which nothing was sent so far."""
        self._frames.clear()
        self._used = 0
        self._window_bytes = window_bytes

    def fits(self, size: int) -> bool:
        """Return whether a frame of `size` bytes may be sent now. While no frame is undecided, one of any size may."""
        return not self._used or self._used + inbox_bytes(size) <= self._window_bytes

    @property
    def has_room(self) -> bool:
        """Whether half of the window is free, so that sending more is worth a frame."""
        return 2 * self._used <= self._window_bytes

    def sent(self, last_sequence: int, size: int) -> None:
        """Count a frame that was sent. It is decided once everything up to this sequence is."""
        self._frames.append((last_sequence, inbox_bytes(size)))
        self._used += inbox_bytes(size)

    def decided_below(self, sequence: int) -> None:
        """Free the room of frames whose sequences are all below this one: they are decided."""
        while self._frames and self._frames[0][0] < sequence:
            self._used -= self._frames.popleft()[1]
