"""One replica of one partition: what it has promised, and to which session.

Raising the fence shuts out every older session: a server that has lost its partition can still send, but nothing it
sends is written. Joining makes the copy part of a session; only then does it take appends, and only from the
connection on which it joined.

Each method returns what to do, in order; the order is the promise. The shell carries it out and stops at the first
action that fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from polonaise.errors import Fenced, NotJoined, OutOfOrder, PartitionUnavailable, PolonaiseError
from polonaise.log.batch import Batch
from polonaise.log.promises import Promises
from polonaise.terms import NO_SESSION, UNRESOLVED, SessionId, TransactionId


@dataclass(frozen=True, slots=True)
class Save:
    """Make these promises durable."""

    promises: Promises


@dataclass(frozen=True, slots=True)
class StoreBatches:
    """Write these batches and sync them."""

    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove everything above this id, durably."""

    last: TransactionId


@dataclass(frozen=True, slots=True)
class DropBelow:
    """Drop what lies below this id, or some of it, durably; and answer with where the log begins then."""

    before: TransactionId


class TellSession(NamedTuple):
    """Answer with everything this copy can prove, as it is now."""


class TellEnd(NamedTuple):
    """Answer with how the log ends now."""


class Acknowledge(NamedTuple):
    """Everything of this session up to this number is synced."""

    session: SessionId
    number: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer that it was not done, and why."""

    error: PolonaiseError
    detail: int = 0
    number: int = 0
    """Of the `Store` that is refused; 0 for the one message that was asked."""


Action: TypeAlias = Save | StoreBatches | Cut | DropBelow | TellSession | TellEnd | Acknowledge | Refuse


class StoreRequest(NamedTuple):
    """One message of a session's ordered conversation; without batches it is a barrier."""

    connection: Hashable
    session: SessionId
    number: int
    batches: Sequence[Batch]


class Replica:
    """The decisions. `promises`, `last` and `last_crc` are kept true by the shell, before each call."""

    __slots__ = ("_asked", "_joined_on", "last", "last_crc", "promises")

    def __init__(self, promises: Promises, last: TransactionId, last_crc: int) -> None:
        self.promises = promises
        self.last = last
        self.last_crc = last_crc
        self._joined_on: Hashable = None
        self._asked: SessionId = NO_SESSION

    # ------------------------------------------------------------------ sessions

    def last_session_info(self, session: SessionId) -> list[Action]:
        """Raise the fence, durably, before anything is told. Nothing else raises it.

        Bytes whose sync failed are no part of what is told, and never were acknowledged: they are cut like a torn
        tail. Those above a loss stay where they are until it is decided what the log is.
        """
        promises = self.promises
        if session < promises.fence or session <= NO_SESSION:
            return [self._fenced()]
        self._asked = session
        actions: list[Action] = []
        if session != promises.fence:
            actions.append(Save(replace(promises, fence=session)))
        if promises.untrusted and not promises.may_have_lost:
            actions.append(Cut(self.last))
        return [*actions, TellSession()]

    def truncate(self, session: SessionId, last: TransactionId) -> list[Action]:
        """Cut what is above `last`: a copy that is being made clean for a session it has not joined yet.

        Nothing confirmed is ever cut, but for what lies above a loss: that is copied anew in any case.
        """
        refused = self._refused(session)
        if refused:
            return refused
        promises = self.promises
        if promises.joined == session:
            return [Refuse(OutOfOrder(f"a copy that has joined session {session} is not cut in it"))]
        lost_above = promises.lost_above if promises.may_have_lost else self.last
        if last < min(promises.confirmed, self.last, lost_above):
            return [Refuse(OutOfOrder(f"ids up to {promises.confirmed} are confirmed: they are not cut at {last}"))]
        return [Cut(last), TellEnd()]

    def copy(self, session: SessionId, batches: Sequence[Batch]) -> list[Action]:
        """Take decided batches from another replica: only while this copy has not joined the session."""
        refused = self._refused(session)
        if refused:
            return refused
        if self.promises.joined == session:
            return [Refuse(OutOfOrder(f"a copy that has joined session {session} takes appends, not copies"))]
        return [StoreBatches(batches), TellEnd()]

    def join(self, connection: Hashable, session: SessionId, prepared: TransactionId, last_crc: int) -> list[Action]:
        """Become part of the session: the log ends at exactly `prepared`, so nothing is lost any more."""
        refused = self._refused(session)
        if refused:
            return refused
        promises = self.promises
        if promises.untrusted:
            return [Refuse(PartitionUnavailable(f"bytes above {self.last} are not to be believed: cut them first"))]
        if self.last != prepared or self.last_crc != last_crc:
            return [Refuse(OutOfOrder(f"this copy ends at {self.last}, CRC {self.last_crc:#010x}; not at {prepared}"))]
        self._joined_on = connection
        joined = replace(promises, joined=session, prepared=prepared, lost_above=UNRESOLVED)
        return [TellEnd()] if joined == promises else [Save(joined), TellEnd()]

    def confirm(self, session: SessionId, low_water_mark: TransactionId) -> list[Action]:
        """Ids up to there are certainly clean. The mark is never lowered, and never above what is held.

        A copy that may have lost holds these ids now: they need not be cut and copied again in the next session.
        """
        refused = self._refused(session)
        if refused:
            return refused
        if low_water_mark > self.last:
            return [Refuse(OutOfOrder(f"ids up to {low_water_mark} are not here; this copy ends at {self.last}"))]
        promises = self.promises
        confirmed = replace(promises, confirmed=max(low_water_mark, promises.confirmed))
        if promises.may_have_lost:
            confirmed = replace(confirmed, lost_above=max(low_water_mark, promises.lost_above))
        return [TellEnd()] if confirmed == promises else [Save(confirmed), TellEnd()]

    def trim(self, session: SessionId, before: TransactionId) -> list[Action]:
        """Drop ids below `before`, which the owner knows to be archived.

        What is confirmed and held is never cut, so what goes here is the log's for good. The batch with the confirmed
        mark stays: no session can be decided to begin below it. That holds, too, of a copy that takes no part yet and
        is filled with what the others have dropped.
        """
        refused = self._refused(session)
        if refused:
            return refused
        promises = self.promises
        if promises.untrusted:
            return [Refuse(NotJoined(f"bytes above {self.last} are not to be believed: this copy is not trimmed"))]
        certain = min(promises.confirmed, self.last)
        if promises.may_have_lost:
            certain = min(certain, promises.lost_above)
        if before > certain:
            return [Refuse(OutOfOrder(f"ids up to {certain} are confirmed: nothing is trimmed at {before}"))]
        return [DropBelow(before)]

    # ------------------------------------------------------------------ writing and reading

    def store(self, requests: Sequence[StoreRequest]) -> list[Action]:
        """Messages of one connection that arrived while the last sync ran: one write, one sync, one acknowledgement.

        At the first that must be refused the rest are refused too: they follow on it. It was the last of its
        connection in this session.
        """
        batches: list[Batch] = []
        last, crc = self.last, self.last_crc
        taken: StoreRequest | None = None
        refused: Refuse | None = None
        for request in requests:
            refused = self._refused_store(request)
            for batch in request.batches:
                if refused is None and (batch.first != last + 1 or batch.previous_crc != crc):
                    refused = Refuse(OutOfOrder(f"a batch from {batch.first} on does not follow {last}"))
                last, crc = batch.last, batch.crc
            if refused is not None:
                refused = replace(refused, number=request.number)
                if request.session == self.promises.fence:
                    self.store_failed(request.connection)
                break
            batches += request.batches
            taken = request
        actions: list[Action] = [StoreBatches(batches)] if batches else []
        if taken is not None:
            actions.append(Acknowledge(taken.session, taken.number))
        if refused is not None:
            actions.append(refused)
        return actions

    def _refused_store(self, request: StoreRequest) -> Refuse | None:
        """A copy that has lost something since it joined has no part in the session: not even barriers are its.

        Nor has one whose disk did not keep what it was given last.
        """
        if request.session != self.promises.fence:
            return self._fenced()
        if self.promises.may_have_lost:
            return Refuse(PartitionUnavailable(f"this copy may have lost ids above {self.promises.lost_above}"))
        if self.promises.untrusted:
            return Refuse(PartitionUnavailable(f"this copy could not sync what comes after {self.last}"))
        if self.promises.joined != request.session or self._joined_on is not request.connection:
            return Refuse(NotJoined(f"this copy has no part in session {request.session} on this connection"))
        return None

    def read(self, session: SessionId) -> Refuse | None:
        """Whether the owner in this session may read; None lets it."""
        return self._fenced() if self._is_other(session) else self._unasked()

    def store_failed(self, connection: Hashable) -> None:
        """A `Store` of this connection was not carried out: it has no part in the session any more.

        An acknowledgement speaks for all numbers before it, so none may follow on one that was refused, not even of a
        barrier or of a batch that would fit.
        """
        self.disconnected(connection)

    def disconnected(self, connection: Hashable) -> None:
        """A broken connection ends this replica's part in the session that it joined there."""
        if self._joined_on is connection:
            self._joined_on = None

    def _refused(self, session: SessionId) -> list[Action]:
        refused = self._fenced() if self._is_other(session) else self._unasked()
        return [refused] if refused else []

    def _unasked(self) -> Refuse | None:
        """A node that was restarted says nothing before it was asked what it can prove.

        Its disk may have been put back to an earlier day, with the fence of this very session on it.
        """
        if self._asked == self.promises.fence:
            return None
        return Refuse(NotJoined("this copy was not asked for its last session since it was opened: ask it first"))

    def _is_other(self, session: SessionId) -> bool:
        """Whether this is not the session that the fence stands for; before the first there is none."""
        return session != self.promises.fence or session <= NO_SESSION

    def _fenced(self) -> Refuse:
        fence = self.promises.fence
        return Refuse(Fenced(f"session {fence} is the latest here"), detail=fence)
