"""The choice of syncs that an event loop waits for itself, because a thread's round trip would take longer.

For a storage node, which does little else than sync for others: while it waits, it hears nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from polonaise.host import Buffer

SMALL_BYTES: Final = 16 * 1024
"""The largest write for which the loop waits: a larger one takes longer than the trip to a thread."""
ALONE_S: Final = 0.1
"""So long a file must have been the only one synced: threads sync several at the same time."""
APART_S: Final = 0.0001
"""The least time between two syncs in the loop, for the others' turn."""
SLOW_S: Final = 0.05
"""A sync that takes longer is slow: the loop must not wait for such a disk."""
REST_RATIO: Final = 50.0
"""A slow sync sends all to threads for this many times its duration: a disk that hangs holds the loop up once."""


class SyncsInLoop:
    """Lets the loop wait for a small sync of the only busy file, unless one in the loop was slow not long ago."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._file: object = None
        self._not_before_s = 0.0
        self._began_s = 0.0

    def allows(self, file: object, buffers: Sequence[Buffer]) -> bool:
        """Whether the loop may write and sync these buffers now; if it does, call `waited` afterwards.

        Call this before every write with a sync: the calls tell which files are busy.
        """
        now_s = self._began_s = self._now_s()
        if file is not self._file:
            self._file = file
            self._not_before_s = max(self._not_before_s, now_s + ALONE_S)
        return now_s >= self._not_before_s and sum(map(len, buffers)) <= SMALL_BYTES

    def waited(self) -> None:
        now_s = self._now_s()
        took_s = now_s - self._began_s
        self._not_before_s = now_s + (REST_RATIO * took_s if took_s > SLOW_S else APART_S)
