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
"""A mount is fed so much before its connection is asked whether it takes more: others have their turn then."""


class Flow(enum.Enum):
    """What a mount's feed waits for."""

    OPEN = "nothing but commits and credit"
    FULL = "its connection to take what it was sent"
    READING = "history to be read for it"


class KeptAnswer(NamedTuple):
    """An answer that waits until everything up to its mark was fed."""

    mark: TransactionId
    request: int
    message: Message


class ClientMount:
    """One client on one connection, subscribed to one partition."""

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
        """Its client was told that it may append."""
        self.inbox_bytes = 0
        """Bytes of its appends that wait for their order."""
        self._after: deque[KeptAnswer] = deque()
        self._unpaced_bytes = 0

    @property
    def may_be_fed(self) -> bool:
        return self.flow is Flow.OPEN and self.subscription.has_credit

    @property
    def answers_waiting(self) -> int:
        """How many answers wait for the feed to get further."""
        return len(self._after)

    def take(self, batch: Committed) -> bytes:
        """The bytes to feed for this batch, which holds the next id; `flow` is FULL once a turn's worth was fed."""
        payload = self.subscription.take(batch)
        self._unpaced_bytes += len(payload)
        if self._unpaced_bytes >= FEED_TURN_BYTES:
            self._unpaced_bytes = 0
            self.flow = Flow.FULL
        return payload

    def answer_after(self, mark: TransactionId, request: int, message: Message) -> None:
        """Keep an answer until everything up to `mark` was fed. Marks are given in rising order."""
        self._after.append(KeptAnswer(mark, request, message))

    def due_answers(self) -> list[KeptAnswer]:
        """The answers for which the feed has got far enough, once."""
        due: list[KeptAnswer] = []
        while self._after and self._after[0].mark < self.subscription.next_id:
            due.append(self._after.popleft())
        return due
