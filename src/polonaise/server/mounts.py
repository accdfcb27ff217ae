"""A client's mount of a partition: its feed, and the answers that must not overtake the feed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from polonaise.link.connection import Connection
from polonaise.server.protocol.feed import Committed, Subscription
from polonaise.terms import ClientId, PartitionId, TransactionId
from polonaise.wire.messages import Feed


class Mount:
    """One client on one connection, subscribed to one partition.

    Promises: batches go out in order, without gaps, only when they are committed; what `after_feed` was given is done
    once everything up to its mark has gone out before it.
    """

    def __init__(
        self,
        partition: PartitionId,
        client_id: ClientId,
        connection: Connection,
        connection_sequence: int,
        subscription: Subscription,
    ) -> None:
        self.partition = partition
        self.client_id = client_id
        self.connection = connection
        self.connection_sequence = connection_sequence
        self.subscription = subscription
        self.feeding = False
        """A task of its own reads on its behalf, because it is behind the cache or out of credit."""
        self._after: deque[tuple[TransactionId, Callable[[], None]]] = deque()

    @property
    def may_send(self) -> bool:
        return self.subscription.has_credit and self.connection.writable

    @property
    def waiting(self) -> int:
        """How many wait for the feed to get further."""
        return len(self._after)

    def send(self, batch: Committed, committed: TransactionId, *, cached: bool = True) -> None:
        """Feed one batch, which holds the next id; `cached` if it is in memory for everybody."""
        payload = self.subscription.take(batch)
        shared = cached and payload is batch.raw
        self.connection.send(Feed(committed, payload=[payload]), partition=self.partition, shared=shared)
        self.settle()

    def after_feed(self, mark: TransactionId, act: Callable[[], None]) -> None:
        """Do something once everything up to `mark` was sent. Marks are given in rising order."""
        self._after.append((mark, act))
        self.settle()

    def settle(self) -> None:
        while self._after and self._after[0][0] < self.subscription.next_id:
            self._after.popleft()[1]()
