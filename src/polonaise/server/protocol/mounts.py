"""A client's mount of a partition: its feed, and the answers that must not overtake the feed."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

from polonaise.log.batch import Batch
from polonaise.terms import BodyForm, ClientId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import Mount

FEED_TURN_BYTES: Final = 256 * 1024
"""The bytes that a mount is fed before it waits for its connection to send them, while others are fed."""


class Flow(enum.Enum):
    """The state of a mount's feed: the value says what it waits for."""

    OPEN = "nothing but commits and credit"
    FULL = "its connection to take what it was sent"
    READING = "history to be read for it"


class Committed(NamedTuple):
    """A committed batch, as it is cached and fed."""

    first: TransactionId
    last: TransactionId
    raw: bytes


class KeptAnswer(NamedTuple):
    """An answer that waits until everything up to its mark was fed."""

    mark: TransactionId
    """The committed high-water mark that the answer tells."""
    request: int
    message: Message


class ClientMount:
    """One client's subscription to one partition, on one connection, fed in order and without gaps."""

    __slots__ = ("_answers", "_filter_mask", "_filter_value", "_form", "_unpaced_bytes", "client_id", "connection",
                 "connection_sequence", "credit", "flow", "inbox_bytes", "next_id", "ready")  # fmt: skip

    def __init__(self, client_id: ClientId, connection: Hashable, message: Mount) -> None:
        self.client_id = client_id
        self.connection: Final = connection
        self.connection_sequence: Final = message.connection_sequence
        self.next_id = message.client_high_water_mark + 1
        self.credit = message.credit
        """The bytes of feed that the client still takes. `PartitionOwner.credit` raises it, `take` lowers it."""
        self._form = BodyForm(message.form)
        self._filter_mask = message.filter_mask
        self._filter_value = message.filter_value & message.filter_mask
        self.flow = Flow.OPEN
        """Written by `take`, by `Feeds` around reads of history, and by `PartitionOwner.room`."""
        self.ready = False
        """Whether its client was told that it may append. Written by `Feeds`."""
        self.inbox_bytes = 0
        """The bytes of its appends that wait in the inbox. Written by `Inbox`."""
        self._answers: deque[KeptAnswer] = deque()
        self._unpaced_bytes = 0

    @property
    def has_credit(self) -> bool:
        """Whether a batch may be sent, be it larger than the credit: else a large one never could."""
        return self.credit > 0

    @property
    def may_be_fed(self) -> bool:
        """Whether another batch may be sent now."""
        return self.flow is Flow.OPEN and self.has_credit

    @property
    def answers_waiting(self) -> int:
        return len(self._answers)

    def take(self, batch: Committed) -> bytes:
        """Return the bytes to feed for this batch, which must hold `next_id`; lower the credit, and move `next_id` on.

        After each `FEED_TURN_BYTES` the flow becomes FULL.
        """
        payload = batch.raw if self._form is BodyForm.INLINE else self._reduced(batch)
        self.next_id = batch.last + 1
        self.credit -= len(payload)
        self._unpaced_bytes += len(payload)
        if self._unpaced_bytes >= FEED_TURN_BYTES:
            self._unpaced_bytes = 0
            self.flow = Flow.FULL
        return payload

    def _reduced(self, batch: Committed) -> bytes:
        """Return the batch without bodies, or with all of them if a header matches the filter."""
        parsed = Batch(memoryview(batch.raw))
        if self._form is BodyForm.FILTERED:
            mask, value = self._filter_mask, self._filter_value
            if any(header & mask == value for header in parsed.headers.tolist()):
                return batch.raw
        return parsed.without_data()

    def answer_after(self, mark: TransactionId, request: int, message: Message) -> None:
        """Keep an answer until everything up to `mark` was fed. From call to call, marks must not fall."""
        self._answers.append(KeptAnswer(mark, request, message))

    def due_answers(self) -> list[KeptAnswer]:
        """Return the answers for which the feed has got far enough, and forget them."""
        due: list[KeptAnswer] = []
        # From the front only, as marks do not fall.
        while self._answers and self._answers[0].mark < self.next_id:
            due.append(self._answers.popleft())
        return due
