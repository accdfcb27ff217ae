"""Which syncs an event loop waits for by itself, because the way to a thread and back takes longer than it is worth.

For a process that does little else than to sync for others, a storage node: while it waits, it hears nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from polonaise.host import Buffer

SMALL_BYTES: Final = 16 * 1024
"""A larger write takes longer than a thread costs, and something else can be done meanwhile."""
ALONE_S: Final = 0.1
"""A file is the only busy one when no other was synced for so long: two are synced at the same time by threads."""
APART_S: Final = 0.0001
"""Two that follow each other sooner have left no time for a turn of the loop between them."""
SLOW_S: Final = 0.05
"""A sync that takes longer is one of a disk that can't be waited for."""
REST_RATIO: Final = 50.0
"""For so many times as long as a slow one took, all go to threads: a disk that hangs holds the loop up once."""


class SyncsInLoop:
    """Lets the loop wait for a small sync of the only file that is busy, on a disk that was quick the last time."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._file: object = None
        self._not_before_s = 0.0
        self._began_s = 0.0

    def allows(self, file: object, buffers: Sequence[Buffer]) -> bool:
        """Whether the loop may write and sync these now; `waited` then says that it has. Asked for every small sync."""
        now_s = self._began_s = self._now_s()
        if file is not self._file:
            self._file = file
            self._not_before_s = max(self._not_before_s, now_s + ALONE_S)
        return now_s >= self._not_before_s and sum(map(len, buffers)) <= SMALL_BYTES

    def waited(self) -> None:
        """The sync that was allowed has ended, well or not."""
        now_s = self._now_s()
        took_s = now_s - self._began_s
        self._not_before_s = now_s + (REST_RATIO * took_s if took_s > SLOW_S else APART_S)
