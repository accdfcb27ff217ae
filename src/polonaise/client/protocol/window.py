"""The append frames of one partition that are sent and not decided, within the window of the mount."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from polonaise.wire.appends import AppendColumns, inbox_bytes

SENDS_MAX: Final = 8
"""On how many mounts a frame is sent at most: one that itself ends its mount, or the owner, must not do so for ever."""


@dataclass(slots=True, eq=False)
class SentFrame:
    """An append frame that is sent, or is to be sent again."""

    columns: AppendColumns
    size: int
    """The bytes of its columns and bodies; `inbox_bytes` of that counts against the window."""
    sends: int = 0
    """On how many mounts it was sent; `AppendWindow` counts."""

    @property
    def first(self) -> int:
        return self.columns.sequences[0]

    @property
    def last(self) -> int:
        return self.columns.sequences[-1]


class AppendWindow:
    """Keeps the append frames of one mount that are sent and not decided, and counts their bytes. The owner names the
    bound, one for each partition, so that one that stands still holds up no other on the same connection."""

    __slots__ = ("_frames", "_used", "_window_bytes")

    def __init__(self) -> None:
        self._frames: deque[SentFrame] = deque()
        self._used = 0
        self._window_bytes = 0

    def open(self, window_bytes: int) -> list[SentFrame]:
        """Begin anew for a mount that is ready; return the undecided frames of earlier mounts, in their order."""
        undecided = list(self._frames)
        self.clear()
        self._window_bytes = window_bytes
        return undecided

    def clear(self) -> None:
        self._frames.clear()
        self._used = 0

    def fits(self, size: int) -> bool:
        """Return whether a frame of `size` bytes may be sent now. While no frame is undecided, one of any size may."""
        return not self._used or self._used + inbox_bytes(size) <= self._window_bytes

    @property
    def has_room(self) -> bool:
        return 2 * self._used <= self._window_bytes

    def sent(self, frame: SentFrame) -> None:
        frame.sends += 1
        self._frames.append(frame)
        self._used += inbox_bytes(frame.size)

    def decided_below(self, sequence: int) -> None:
        """Free the room of frames whose sequences are all below this one."""
        frames = self._frames
        while frames and frames[0].columns.sequences[-1] < sequence:
            self._used -= inbox_bytes(frames.popleft().size)
