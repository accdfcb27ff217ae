"""The decision since when an archiver should have written what no fragment holds yet."""

from __future__ import annotations

from polonaise.terms import TransactionId


class Backlog:
    """How much of one partition is in no fragment, from its first such id until it fills a fragment: what does not is
    left for a later run.
    """

    def __init__(self, first: TransactionId, fragment_bytes: int) -> None:
        """With 0 for `fragment_bytes`, one batch is a backlog."""
        self.first = first
        self.next = first
        """The first id that was not measured yet."""
        self.due_us: int | None = None
        """When the batch was committed that fills a fragment, in µs UTC; None while none is full."""
        self._room_bytes = fragment_bytes

    def brought(self, last: TransactionId, size: int, commit_time_us: int) -> None:
        """Measure the next batch, of `size` bytes, which ends with the id `last`."""
        self.next = last + 1
        self._room_bytes -= size
        if self._room_bytes <= 0 and self.due_us is None:
            self.due_us = commit_time_us
