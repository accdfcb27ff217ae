"""How much a client may have undecided at the owner of a partition, as that has told it."""

from __future__ import annotations

from collections import deque

from polonaise.wire.appends import inbox_bytes


class AppendWindow:
    """Counts the append frames of one mount that are sent and not decided, in bytes.

    The bound is the partition's: a client whose partition stands still goes on sending to its others, on the same
    connection, and nobody has to leave that unread.
    """

    __slots__ = ("_frames", "_used", "_window_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int]] = deque()
        self._used = 0
        self._window_bytes = 0

    def open(self, window_bytes: int) -> None:
        """A mount is ready: nothing of it was sent so far."""
        self._frames.clear()
        self._used = 0
        self._window_bytes = window_bytes

    def fits(self, size: int) -> bool:
        """Whether a frame of `size` bytes may be sent now; while nothing is undecided, any may."""
        return not self._used or self._used + inbox_bytes(size) <= self._window_bytes

    @property
    def has_room(self) -> bool:
        """Whether it is worth trying to send more: half of it is free."""
        return 2 * self._used <= self._window_bytes

    def sent(self, last_sequence: int, size: int) -> None:
        """A frame was sent; it is decided once everything up to this sequence is."""
        self._frames.append((last_sequence, inbox_bytes(size)))
        self._used += inbox_bytes(size)

    def decided_below(self, sequence: int) -> None:
        """Everything before this sequence is decided."""
        while self._frames and self._frames[0][0] < sequence:
            self._used -= self._frames.popleft()[1]
