"""One session in which an owner writes: the messages to the engaged replicas, and what their acknowledgements prove.

Besides commits that is, on request, that a committed transaction is on so many engaged replicas, in so many zones. Such
a proof rests on the present session alone: on what a replica engaged in it has acknowledged, or had when it began. It
stays true unless the head is reset. When the session ends, requests are refused and clients ask again, for the next one
may engage other replicas.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from polonaise.coordination.values import PartitionValue, Requirement
from polonaise.errors import BeyondLog, Overloaded, PartitionNotReady, PolonaiseError
from polonaise.server.protocol.commit import Acknowledgements
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.effects import Answer, Effect, RefuseRequest
from polonaise.server.protocol.inbox import PendingRequest, WaitingAppends
from polonaise.server.protocol.locktable import LockTable
from polonaise.server.protocol.order import Order, Refusal, SealedBatch
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import NO_TRANSACTION, Generation, PartitionId, StorageId, TransactionId
from polonaise.wire.copies import CopiesProved, Needs

_NUMBERS_MAX: Final = 2**31 - 1  # the request numbers of `Connection.request` begin above it
_ALL_SLOW: Final = 20.0
"""For how many times its patience a session waits for replicas while not even a quorum has synced."""
_SLOWER: Final = 4.0
"""How many times as long as a quorum a replica may take for a sync."""
_QUORUM_EASES: Final = 0.9
_RESTS: Final = 5.0
"""For how many times as long as a quorum took to join a session lasts before a replica is let back in: nothing is
committed while sessions start, which takes longest where disks are slow."""
REQUESTS_MAX: Final = 10_000
"""The most requests that wait for the next message to the replicas; more wait in the inbox."""


@dataclass(frozen=True, slots=True)
class StartedSession:
    """A session whose engagement is in the coordinator, so that it may write, and the log it starts from."""

    value: PartitionValue
    """The partition's value as the engagement was written."""
    closing: TransactionId
    last_crc: int
    """CRC of the batch that ends at `closing`; 0 for an empty log."""
    commit_time_us: int
    """Commit time of the batch that ends at `closing`, in microseconds UTC; 0 for an empty log."""
    registers: dict[bytes, bytes]
    engaged: Mapping[StorageId, Hashable]
    """The connection on which each engaged replica joined; on any other it has no part in this session."""
    zones: Mapping[StorageId, str] = field(default_factory=dict)
    """The zones of the storage nodes that have one, as read when the session started."""
    pace_s: float = 0.0
    """How many seconds a quorum of replicas took to join, which takes syncs."""
    first: bool = False
    """Whether it is certain that the partition had no session before."""


class InFlightBatch(NamedTuple):
    """A message on its way to the replicas, and the requests that its commit answers."""

    number: int
    batch: SealedBatch | None
    """None for a barrier, which stores nothing."""
    requests: Sequence[PendingRequest]


class Remains(NamedTuple):
    """What a session that has ended leaves open."""

    batches: list[SealedBatch]
    """Sent: the start of the next session decides their fate."""
    requests: list[PendingRequest]
    """Not proved: the start of the next session proves them."""
    never_sent: list[WaitingAppends | PendingRequest]
    """Judged and sent to no replica, so certainly not in the log: to be judged anew."""


class Session:
    """Numbers the messages to the replicas 1, 2, 3, … and counts the acknowledgements of the engaged ones.

    Batches and barriers share the numbers, in one order that is the same for all replicas: a barrier that a quorum has
    acknowledged proves all batches before it.
    """

    def __init__(
        self,
        partition: PartitionId,
        generation: Generation,
        settings: OwnerSettings,
        started: StartedSession,
        now: Moment,
    ) -> None:
        self.id: Final = started.value.session
        self.value = started.value
        """The partition's value at the coordinator. `PartitionOwner.change_pending` writes a change into it."""
        self.closing: Final = started.closing
        # Locks and registers start from `closing` in each session, also under the same owner: appends of the last
        # session may have raised locks and changed registers, and then not be in the log.
        self.order: Final = Order(
            partition=partition,
            generation=generation,
            session=started.value.session,
            closing=started.closing,
            last_crc=started.last_crc,
            commit_time_us=started.commit_time_us,
            registers=dict(started.registers),
            locks=LockTable(started.closing, settings.lock_entries),
            evidence=settings.evidence,
            can_have=self.can_have,
        )
        self.engaged: Final[Mapping[StorageId, Hashable]] = dict(started.engaged)
        self.zones: Final = started.zones
        """The zone of each storage node that has one; an append's need of zones is checked against it."""
        self._acknowledgements = Acknowledgements(started.value.members, self.engaged, started.value.required)
        self._in_flight: deque[InFlightBatch] = deque()
        self._requests: list[PendingRequest] = []
        self._unsent: list[tuple[WaitingAppends, list[Refusal]]] = []
        """The append frames that were judged since the last message, in their order, with what was refused of each."""
        self._last_number = 0
        self._unsynced: deque[tuple[int, float, TransactionId]] = deque()
        """The messages that some engaged replica had not synced when `late` looked last: number, monotonic time, and
        the id that followed on all that was sent before."""
        self._quorum_s = started.pace_s
        """How long a quorum takes to sync a batch: the longest of late, less with each quicker one."""
        self._sent_next = started.closing + 1
        self._sent_s = now.monotonic_s
        self.pace_s: Final = started.pace_s
        self.rests_until_s: Final = now.monotonic_s + _RESTS * started.pace_s
        """Until when the session is not ended only to let a replica back in, in monotonic seconds."""

    # ------------------------------------------------------------------ what is to be sent

    @property
    def in_flight(self) -> int:
        """The number of messages sent that are not committed yet."""
        return len(self._in_flight)

    @property
    def requests_waiting(self) -> int:
        return len(self._requests)

    @property
    def has_something_to_send(self) -> bool:
        return bool(self.order.forming_count or self._requests)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits to be sent, or to be synced by an engaged replica, as `late` saw it last."""
        return not (self._in_flight or self._unsynced or self.has_something_to_send)

    def waiting_since_s(self, now_s: float) -> float | None:
        """Return since when this session waits for a commit; None if it does not.

        Barriers and requests alone, once a message was committed, are no wait: they need no room on a disk, and so
        prove nothing for appends.
        """
        if not (self._in_flight or self.has_something_to_send):
            return None
        appends = self.order.forming_count or any(sent.batch is not None for sent in self._in_flight)
        if self._acknowledgements.committed and not appends:
            return None
        if not self._in_flight:
            return now_s
        # It is among these: what no quorum has synced, some engaged replica has not.
        first = self._in_flight[0].number
        return next(sent_s for number, sent_s, _ in self._unsynced if number == first)

    @property
    def has_numbers_left(self) -> bool:
        return self._last_number < _NUMBERS_MAX

    def prove(self, pending: PendingRequest) -> None:
        """Have the next message prove a request: it is sent after the request came, with or after everything ordered so
        far.
        """
        self._requests.append(pending)

    def judged(self, entry: WaitingAppends, refusals: list[Refusal]) -> None:
        """Note that a frame was judged, of which something waits for the next message, or rests on what does."""
        if any(refusal.rests_on > self.sent for refusal in refusals) or len(refusals) < entry.appends.count:
            self._unsent.append((entry, refusals))

    def next_message(self, now: Moment) -> InFlightBatch:
        """Make everything let in since the last call the next message; a barrier if there are requests only."""
        self._unsent = []
        batch = self.order.seal(now.wall_us) if self.order.forming_count else None
        requests, self._requests = self._requests, []
        self._last_number += 1
        self._sent_s = now.monotonic_s
        self._unsynced.append((self._last_number, self._sent_s, self._sent_next))
        self._sent_next = self.order.next_id
        sent = InFlightBatch(self._last_number, batch, requests)
        self._in_flight.append(sent)
        return sent

    # ------------------------------------------------------------------ what the replicas say

    def is_engaged(self, name: StorageId, connection: Hashable) -> bool:
        return name in self.engaged and self.engaged[name] is connection

    def acknowledged(self, name: StorageId, number: int, now_s: float) -> list[InFlightBatch]:
        """Count an acknowledgement of everything up to `number`; return the messages that it commits, in order."""
        # A number that was never sent is no acknowledgement: counted, it would commit what is sent under it later.
        if number > self._last_number or not self._acknowledgements.acknowledge(name, number):
            return []
        committed: list[InFlightBatch] = []
        while self._in_flight and self._in_flight[0].number <= self._acknowledgements.committed:
            committed.append(self._in_flight.popleft())
        if committed:
            sent_s = next(sent_s for number, sent_s, _ in self._unsynced if number == committed[0].number)
            # A barrier is not synced: that it was quick says nothing about disks.
            eases = _QUORUM_EASES if any(sent.batch is not None for sent in committed) else 1.0
            self._quorum_s = max(now_s - sent_s, eases * self._quorum_s)
        return committed

    def late(self, now_s: float, patience_s: float) -> list[StorageId]:
        """Return the engaged replicas that lack the oldest message not synced by all, and so are to be left behind.

        One is late if it takes longer than `patience_s`, and several times as long as a quorum has taken. While no
        quorum has synced the message, all are slow, and another session would be as slow: then none is late until
        `_ALL_SLOW` times as long.
        """
        lacking = self._lacking_oldest(now_s, patience_s)
        if not lacking:
            return []
        number, sent_s, _ = self._unsynced[0]
        patience_s = max(patience_s, _SLOWER * self._quorum_s)
        if number > self._acknowledgements.committed:
            patience_s *= _ALL_SLOW
        return lacking if now_s - sent_s > patience_s else []

    def slow(self, now_s: float, patience_s: float) -> list[StorageId]:
        """Return the replicas for whose sync a commit has waited for longer than `patience_s`."""
        lacking = self._lacking_oldest(now_s, patience_s)
        return lacking if lacking and self._unsynced[0][0] > self._acknowledgements.committed else []

    def _lacking_oldest(self, now_s: float, patience_s: float) -> list[StorageId]:
        """Return the engaged replicas that lack the oldest message not synced by all, if older than `patience_s`."""
        # Messages that even the slowest replica has synced are nobody's delay. The oldest of the others decides, since
        # acknowledgements are cumulative.
        synced = min(self._acknowledgements.synced(name) for name in self.engaged)
        while self._unsynced and self._unsynced[0][0] <= synced:
            self._unsynced.popleft()
        if not self._unsynced or now_s - self._unsynced[0][1] <= patience_s:
            return []
        return [name for name in self.engaged if self._acknowledgements.synced(name) < self._unsynced[0][0]]

    @property
    def sent(self) -> TransactionId:
        """The last id that was sent to the replicas, or was there when the session began."""
        return self._sent_next - 1

    def reached(self, name: StorageId) -> TransactionId:
        """Return the last id that an engaged replica has acknowledged, or had when the session began."""
        synced = self._acknowledgements.synced(name)
        return next((next_id for number, _, next_id in self._unsynced if number > synced), self._sent_next) - 1

    def proved(self, needs: Needs) -> TransactionId:
        """Return the last id that the replicas needed have synced; `NO_TRANSACTION` if even all are not enough."""
        reached = {name: self.reached(name) for name in self.engaged}
        for id in sorted({*reached.values()}, reverse=True):
            if not self.lack_of(needs, [name for name in reached if reached[name] >= id]):
                return id
        return NO_TRANSACTION

    def lack_of(self, needs: Needs, names: Collection[StorageId]) -> str:
        """Return what these replicas lack of what one append needs, for operators; empty if nothing."""
        return Requirement(0, needs.copies, needs.zones, self.zones).lack_of(names)

    def can_have(self, needs: Needs) -> bool:
        """Whether the engaged replicas can be what one append needs, once all have synced it."""
        return not self.lack_of(needs, self.engaged)

    def is_idle(self, now_s: float, pulse_s: float) -> bool:
        return now_s - self._sent_s > pulse_s

    # ------------------------------------------------------------------ the end

    def remains(self) -> Remains:
        batches = [sent.batch for sent in self._in_flight if sent.batch is not None]
        requests = [pending for sent in self._in_flight for pending in sent.requests]
        never_sent: list[WaitingAppends | PendingRequest] = []
        for entry, refusals in self._unsent:
            # These are told, or will be with the fate of what they rest on.
            told = {refusal.sequence for refusal in refusals if refusal.rests_on <= self.sent}
            left = entry.appends.without(told) if told else entry.appends
            if left is not None:
                never_sent.append(entry._replace(appends=left))
        # A request has to be proved behind the appends that came before it, so it waits with those. Behind all of them,
        # some of which came later: that is no mistake.
        if never_sent:
            never_sent += self._requests
        else:
            requests += self._requests
        return Remains(batches, requests, never_sent)


PROOFS_MAX: Final = 10_000
"""The most requests that are held for one partition."""


class PendingProof(NamedTuple):
    """A client's request that waits until transaction `id` is on `needs.copies` engaged replicas in `needs.zones`
    zones."""

    until_s: float
    request: int
    connection: Hashable
    id: TransactionId
    needs: Needs


class CopyProofs:
    """Answers the requests of clients that need their appends on several copies, and holds those that are not proved
    yet."""

    __slots__ = ("_asked", "_held", "_partition")

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        # A replica acknowledges many times a second. How far each kind of needs is proved is then worked out once, and
        # of its requests only those are touched that are proved: those with the lowest ids.
        self._held: dict[Needs, list[tuple[TransactionId, int, PendingProof]]] = {}
        """For what is needed, a heap of the requests that need it: by id, then in the order in which they came."""
        self._asked = 0

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def ask(self, pending: PendingProof, session: Session | None, committed: TransactionId) -> list[Effect]:
        """Answer a request, hold it until its replicas have synced, or refuse what can't be proved in this session."""
        refused: PolonaiseError
        if session is None:
            refused = PartitionNotReady(f"partition {self._partition} is between two sessions")
        elif pending.id > committed:
            refused = BeyondLog(f"{pending.id} is not committed; the log is committed up to {committed}")
        elif lack := session.lack_of(pending.needs, session.engaged):
            refused = PartitionNotReady(f"partition {self._partition}: {lack}")
        elif pending.id <= (proved := session.proved(pending.needs)):
            # To the committed mark at most: above that the log may change.
            return [_answer(pending, min(proved, committed))]
        elif len(self) >= PROOFS_MAX:
            refused = Overloaded(f"partition {self._partition} has {PROOFS_MAX} requests for copies")
        else:
            self._asked += 1
            heapq.heappush(self._held.setdefault(pending.needs, []), (pending.id, self._asked, pending))
            return []
        return [_refuse(pending, refused)]

    def look(self, session: Session, committed: TransactionId) -> list[Effect]:
        """Answer what is proved by now, after an acknowledgement."""
        effects: list[Effect] = []
        for needs, held in list(self._held.items()):
            proved = session.proved(needs)
            while held and held[0][0] <= proved:
                effects.append(_answer(heapq.heappop(held)[-1], min(proved, committed)))
            if not held:
                del self._held[needs]
        return effects

    def expire(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for needs, held in list(self._held.items()):
            late = [pending for *_, pending in held if pending.until_s < now_s]
            if late:
                held[:] = [entry for entry in held if entry[-1].until_s >= now_s]
                heapq.heapify(held)
            if not held:
                del self._held[needs]
            for pending in late:
                effects.append(_refuse(pending, PartitionNotReady(f"{pending.id} is not on {pending.needs} yet")))
        return effects

    def end(self, error: PolonaiseError) -> list[Effect]:
        all_held, self._held = self._held, {}
        return [_refuse(pending, error) for held in all_held.values() for *_, pending in sorted(held)]


def _answer(pending: PendingProof, proved: TransactionId) -> Effect:
    return Answer(pending.connection, pending.request, CopiesProved(max(proved, pending.id)))


def _refuse(pending: PendingProof, error: PolonaiseError) -> Effect:
    return RefuseRequest(pending.connection, pending.request, error)
