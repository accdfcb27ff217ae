"""Requests to prove that a committed transaction is on so many engaged replicas, in so many zones.

A proof rests on the present session alone: on what a replica engaged in it has acknowledged, or had when it began. It
stays true unless the head is reset. When the session ends, requests are refused and clients ask again, for the next one
may engage other replicas.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, NamedTuple

from polonaise.errors import BeyondLog, Overloaded, PartitionNotReady, PolonaiseError
from polonaise.server.protocol.effects import Answer, Effect, RefuseRequest
from polonaise.server.protocol.session import Session
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire.copies import CopiesProved, Needs

PROOFS_MAX: Final = 10_000
"""The most requests that are held for one partition."""


class PendingProof(NamedTuple):
    """Asks to be told when as many engaged replicas as `needs` says, in as many zones, have synced transaction `id`."""

    until_s: float
    request: int
    connection: Hashable
    id: TransactionId
    needs: Needs


class CopyProofs:
    """Answers these requests, and holds those that are not proved yet."""

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
