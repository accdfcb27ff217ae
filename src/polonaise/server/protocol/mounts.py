"""A client's mount of a partition: its feed, and the answers that must not overtake the feed."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

from polonaise.server.protocol.feed import Committed, MountFeed
from polonaise.terms import ClientId, TransactionId
from polonaise.wire.codec import Message

FEED_TURN_BYTES: Final = 256 * 1024
"""The bytes that a mount is fed before it waits for its connection to take them: then others have their turn."""


class Flow(enum.Enum):
    """The state of a mount's feed: its value says what the feed waits for."""

    OPEN = "nothing but commits and credit"
    FULL = "its connection to take what it was sent"
    READING = "history to be read for it"


class KeptAnswer(NamedTuple):
    """An answer that waits until everything up to its mark was fed."""

    mark: TransactionId
    """The high-water mark that the answer speaks for."""
    request: int
    message: Message


class ClientMount:
    """One client's subscription to one partition, on one connection."""

    __slots__ = ("_after", "_unpaced_bytes", "client_id", "connection", "connection_sequence", "flow", "inbox_bytes",
                 "ready", "subscription")  # fmt: skip

    def __init__(
        self, client_id: ClientId, connection: Hashable, connection_sequence: int, subscription: MountFeed
    ) -> None:
        self.client_id = client_id
        self.connection = connection
        self.connection_sequence = connection_sequence
        self.subscription = subscription
        self.flow = Flow.OPEN
        self.ready = False
        """Whether its client was told that it may append."""
        self.inbox_bytes = 0
        """The bytes of its appends that wait in the inbox."""
        self._after: deque[KeptAnswer] = deque()
        self._unpaced_bytes = 0

    @property
    def may_be_fed(self) -> bool:
        """Whether another batch may be sent now: there is credit, and the feed waits for nothing."""
        return self.flow is Flow.OPEN and self.subscription.has_credit

    @property
    def answers_waiting(self) -> int:
        """The number of answers that wait for the feed to get further."""
        return len(self._after)

    def take(self, batch: Committed) -> bytes:
        """Return the bytes to feed for this batch, which must hold the next id.

        After `FEED_TURN_BYTES` the flow is FULL, until the connection has taken them.
        """
        payload = self.subscription.take(batch)
        self._unpaced_bytes += len(payload)
        if self._unpaced_bytes >= FEED_TURN_BYTES:
            self._unpaced_bytes = 0
            self.flow = Flow.FULL
        return payload

    def answer_after(self, mark: TransactionId, request: int, message: Message) -> None:
        """Keep an answer until everything up to `mark` was fed. Marks must be given in rising order."""
        self._after.append(KeptAnswer(mark, request, message))

    def due_answers(self) -> list[KeptAnswer]:
        """Return the answers for which the feed has got far enough, and forget them."""
        due: list[KeptAnswer] = []
        while self._after and self._after[0].mark < self.subscription.next_id:
            due.append(self._after.popleft())
        return due
