"""One session in which an owner writes: the pipeline to the engaged replicas, and what it has proved."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from polonaise.coordination.values import PartitionValue
from polonaise.server.protocol.commit import Acknowledgements
from polonaise.server.protocol.locks import LockTable
from polonaise.server.protocol.moment import Moment
from polonaise.server.protocol.order import Order, SealedBatch
from polonaise.server.protocol.pendingrequests import PendingRequest
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import Generation, PartitionId, StorageId, TransactionId

_NUMBERS_MAX: Final = 2**31 - 1
"""What a session sends is numbered below the request numbers of `Connection.request`."""
REQUESTS_MAX: Final = 10_000
"""Requests that wait for the next message to the replicas; more wait in the inbox."""


@dataclass(frozen=True, slots=True)
class StartedSession:
    """A session that may write: its engagement is in the coordinator."""

    value: PartitionValue
    closing: TransactionId
    last_crc: int
    commit_time_us: int
    registers: dict[bytes, bytes]
    engaged: Mapping[StorageId, Hashable]
    """The connection on which each engaged replica joined; on any other it has no part in this session."""


class InFlightBatch(NamedTuple):
    """A batch, or a barrier without one, on its way to the replicas; and the requests that it proves."""

    number: int
    batch: SealedBatch | None
    requests: Sequence[PendingRequest]


class Session:
    """Numbers everything that is sent to the replicas 1, 2, 3, … and counts their acknowledgements."""

    def __init__(
        self,
        partition: PartitionId,
        generation: Generation,
        settings: OwnerSettings,
        started: StartedSession,
        now: Moment,
    ) -> None:
        self.id = started.value.session
        self.value = started.value
        self.closing = started.closing
        """The committed high-water mark with which it began."""
        self.order = Order(
            partition=partition,
            generation=generation,
            session=started.value.session,
            closing=started.closing,
            last_crc=started.last_crc,
            commit_time_us=started.commit_time_us,
            registers=dict(started.registers),
            locks=LockTable(started.closing, settings.lock_entries),
            evidence=settings.evidence,
        )
        self.engaged: Mapping[StorageId, Hashable] = dict(started.engaged)
        self._acknowledgements = Acknowledgements(started.value.members, self.engaged)
        self._in_flight: deque[InFlightBatch] = deque()
        self._requests: list[PendingRequest] = []
        self._last_number = 0
        self._unsynced: deque[tuple[int, float]] = deque()
        self._sent_s = now.monotonic_s

    # ------------------------------------------------------------------ what is to be sent

    @property
    def in_flight(self) -> int:
        """Messages that no quorum has synced yet."""
        return len(self._in_flight)

    @property
    def requests_waiting(self) -> int:
        return len(self._requests)

    @property
    def has_something_to_send(self) -> bool:
        return bool(self.order.forming_count or self._requests)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits to be sent, or to be synced by any engaged replica, as far as `late` has looked."""
        return not (self._in_flight or self._unsynced or self.has_something_to_send)

    @property
    def has_numbers_left(self) -> bool:
        return self._last_number < _NUMBERS_MAX

    def prove(self, pending: PendingRequest) -> None:
        """Answer once everything ordered so far is decided, proved by something that is sent from now on."""
        self._requests.append(pending)

    def next_message(self, now: Moment) -> InFlightBatch:
        """Everything let in since the last time as the next message; a barrier when there are requests only."""
        batch = self.order.seal(now.wall_us) if self.order.forming_count else None
        requests, self._requests = self._requests, []
        self._last_number += 1
        self._sent_s = now.monotonic_s
        self._unsynced.append((self._last_number, self._sent_s))
        sent = InFlightBatch(self._last_number, batch, requests)
        self._in_flight.append(sent)
        return sent

    # ------------------------------------------------------------------ what the replicas say

    def is_engaged(self, name: StorageId, connection: Hashable) -> bool:
        """Whether this replica takes part, on this very connection."""
        return name in self.engaged and self.engaged[name] is connection

    def acknowledged(self, name: StorageId, number: int) -> list[InFlightBatch]:
        """An engaged replica has synced everything up to this number: what is committed by that, in its order."""
        if number > self._last_number or not self._acknowledgements.acknowledge(name, number):
            return []
        committed: list[InFlightBatch] = []
        while self._in_flight and self._in_flight[0].number <= self._acknowledgements.committed:
            committed.append(self._in_flight.popleft())
        return committed

    def late(self, now_s: float, patience_s: float) -> list[StorageId]:
        """The replicas that have not synced what was sent longer ago than `patience_s`."""
        synced = min(self._acknowledgements.synced(name) for name in self.engaged)
        while self._unsynced and self._unsynced[0][0] <= synced:
            self._unsynced.popleft()
        if not self._unsynced or now_s - self._unsynced[0][1] <= patience_s:
            return []
        return [name for name in self.engaged if self._acknowledgements.synced(name) < self._unsynced[0][0]]

    def is_idle(self, now_s: float, pulse_s: float) -> bool:
        """Whether nothing was sent for so long."""
        return now_s - self._sent_s > pulse_s

    # ------------------------------------------------------------------ the end

    def remains(self, wall_us: int) -> tuple[list[SealedBatch], list[PendingRequest]]:
        """What was let in and is not decided, and the requests that are not answered."""
        batches = [sent.batch for sent in self._in_flight if sent.batch is not None]
        if self.order.forming_count:
            batches.append(self.order.seal(wall_us))
        requests = [pending for sent in self._in_flight for pending in sent.requests] + self._requests
        return batches, requests
