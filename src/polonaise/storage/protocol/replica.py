"""The decisions of one replica of one partition: what it has promised, and to which session.

Raising the fence shuts out every older session: a server that has lost its partition can still send, but nothing it
sends is written. A copy takes appends only once it has joined the session, and only from the connection on which it
joined.

Each message's method returns actions; their order is the promise. The shell carries them out in that order, and stops
at the first one that fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from polonaise.errors import Fenced, NotJoined, OutOfOrder, PolonaiseError, fault
from polonaise.log.batch import Batch
from polonaise.log.control import Promises
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED, SessionId, TransactionId


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
    """Remove all above this id, durably; of a batch that goes on above it, all stays if an id in it is confirmed."""

    last: TransactionId


@dataclass(frozen=True, slots=True)
class DropBelow:
    """Drop the oldest segment, durably, if below this id; then answer with the first id left, and if there are more."""

    before: TransactionId


class TellSession(NamedTuple):
    """Answer with everything that this copy can prove, as it stands once the earlier actions are carried out."""


class TellEnd(NamedTuple):
    """Answer with the log's last id and the CRC of its last batch, once the earlier actions are carried out."""


class TellEmptied(NamedTuple):
    """Answer how many bytes emptying the copy has freed, once the actions before this one are carried out."""

    bytes: int
    """The size of the log's segments before it was emptied."""


class Acknowledge(NamedTuple):
    """Tell the owner that all of this session's messages up to the one with this number are synced."""

    session: SessionId
    number: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer that a message was not carried out, and why."""

    error: PolonaiseError
    detail: int = 0
    """For `Fenced`, the session that the replica obeys; else 0."""
    number: int = 0
    """The number of the refused `Store` in a run; 0 for the message that the replica was called with."""


Action: TypeAlias = Save | StoreBatches | Cut | DropBelow | TellSession | TellEnd | TellEmptied | Acknowledge | Refuse


class TellLoss(NamedTuple):
    """Tell the owner on this connection, unasked, that this copy has no part in its session any more."""

    connection: Hashable
    error: PolonaiseError
    """What was found, and where."""


class StoreRequest(NamedTuple):
    """A `Store`, the numbered message of a session; without batches it is a barrier."""

    connection: Hashable
    session: SessionId
    number: int
    batches: Sequence[Batch]


class Replica:
    """Decides what to do about each message in the replica's queue.

    `promises`, `last` and `last_crc` are what is durable: `PartitionReplica` writes them after each action, after one
    that failed, and after a loss. No decision changes them in advance, so that nothing has to be taken back if carrying
    it out fails.
    """

    __slots__ = ("_asked", "_joined_on", "last", "last_crc", "promises")

    def __init__(self, promises: Promises, last: TransactionId, last_crc: int) -> None:
        self.promises = promises
        self.last = last
        self.last_crc = last_crc
        self._joined_on: Hashable = None
        """The connection from which appends are taken; None for none. `join` sets it; `lost` and `disconnected`
        clear it."""
        self._asked: SessionId = NO_SESSION
        """The session whose `LastSessionInfo` was obeyed last since this copy was opened. Only `fence` sets it."""

    # ------------------------------------------------------------------ sessions

    def fence(self, session: SessionId) -> list[Action]:
        """Raise the fence to `session`, then tell what this copy can prove. Refused if the fence is higher already.

        Bytes whose sync failed were never acknowledged: they are cut, like a torn tail. Bytes above a loss stay until
        it is decided what the log is.
        """
        promises = self.promises
        # The same session may ask again: its answer may have been lost on the way.
        if session < promises.fence or session <= NO_SESSION:
            return [self._fenced()]
        # In memory only: after a restart the disk may be an older one, and the owner has to ask again.
        self._asked = session
        actions: list[Action] = []
        # On disk before the answer: were the fence lost in a crash, an older session's owner could go on to commit what
        # the asker has decided does not exist.
        if session != promises.fence:
            actions.append(Save(replace(promises, fence=session)))
        # Before the answer too: from now on the copy ends where it says that it ends. After a loss the bytes may have
        # been acknowledged, and may be the last trace of a commit.
        if promises.untrusted and not promises.may_have_lost:
            actions.append(Cut(self.last))
        return [*actions, TellSession()]

    def truncate(self, session: SessionId, last: TransactionId) -> list[Action]:
        """Cut everything above `last` on a copy that is being made clean, for a session that it has not joined yet.

        Nothing confirmed is cut, except above a loss: that part is copied anew in any case.
        """
        if refusal := self.refusal(session):
            return [refusal]
        promises = self.promises
        # Once joined, what it holds counts for the session. A cut that arrives now is a late one of the same attempt.
        if promises.joined == session:
            return [Refuse(OutOfOrder(f"this copy has joined session {session}, in which it is not cut"))]
        # A second line of defence: an owner that asks for less has decided wrongly, and confirmed ids are committed.
        lost_above = promises.lost_above if promises.may_have_lost else self.last
        if last < min(promises.confirmed, self.last, lost_above):
            return [Refuse(OutOfOrder(f"ids up to {promises.confirmed} are confirmed: the log can't be cut at {last}"))]
        return [Cut(last), TellEnd()]

    def cut_for_reset(self, session: SessionId, last: TransactionId, since: SessionId) -> list[Action]:
        """Cut everything above `last`, confirmed or not, because an operator has reset the log's head.

        With `since`, the earlier session that carried out the reset, the copy notes that it was cut for it: what is
        copied to it and confirmed from then on is of the log after the reset.
        """
        # The marks before the cut: after a crash in between, the tail above them is a dirty one, and is cut next time.
        lowered = self._lowered(session, last, since)
        return [lowered] if isinstance(lowered, Refuse) else [lowered, Cut(last), TellEnd()]

    def lower_marks(self, session: SessionId, last: TransactionId, since: SessionId) -> list[Action]:
        """Forget that ids above `last` are certainly the log's, and keep them.

        An earlier reset, of the session `since`, has given them up. An operator takes them for the log again, which is
        certain only once a session is engaged with them.
        """
        lowered = self._lowered(session, last, since)
        return [lowered] if isinstance(lowered, Refuse) else [lowered, TellEnd()]

    def _lowered(self, session: SessionId, last: TransactionId, since: SessionId) -> Save | Refuse:
        if refusal := self.refusal(session):
            return refusal
        promises = self.promises
        # Both become promises, which later sessions are decided by: no id is below -1, and no copy has taken part in a
        # session that has not begun.
        if last < NO_TRANSACTION or since > session:
            return Refuse(OutOfOrder(f"the log can't be cut at {last} in session {session} for one of {since}"))
        if promises.joined == session:
            return Refuse(OutOfOrder(f"this copy has joined session {session}, in which it is not cut"))
        lowered = replace(
            promises,
            confirmed=min(promises.confirmed, last),
            prepared=min(promises.prepared, last),
            joined=max(promises.joined, since),
        )
        return Save(lowered)

    def copy(self, session: SessionId, batches: Sequence[Batch]) -> list[Action]:
        """Store decided batches, read from another replica or the archive, until this copy has joined the session.

        What may have been lost stays noted: a copy that is repaired in part must not look whole after a crash.
        """
        if refusal := self.refusal(session):
            return [refusal]
        # After the join batches come as appends, in the session's order. A copy that arrives now is a late one.
        if self.promises.joined == session:
            return [
                Refuse(OutOfOrder(f"this copy has joined session {session}, in which it takes appends, not copies"))
            ]
        return [StoreBatches(batches), TellEnd()]

    def join(self, connection: Hashable, session: SessionId, prepared: TransactionId, last_crc: int) -> list[Action]:
        """Become part of the session, if the log ends at exactly `prepared` with this CRC; that clears every loss."""
        if refusal := self.refusal(session):
            return [refusal]
        promises = self.promises
        # Bytes that are not believed lie behind the end: appends would be written over or after them.
        if promises.untrusted:
            return [Refuse(fault("partition_unavailable", f"bytes above {self.last} are not trusted: cut them first"))]
        if self.last != prepared or self.last_crc != last_crc:
            return [
                Refuse(
                    OutOfOrder(
                        f"this copy ends at {self.last}, CRC {self.last_crc:#010x}; to join session {session} it has "
                        f"to end at {prepared}, CRC {last_crc:#010x}"
                    )
                )
            ]
        # The connection counts from now on, the promise from the save: the messages behind this one are looked at only
        # after it was carried out, and where it fails, `promises.joined` refuses them.
        self._joined_on = connection
        # The loss is cleared only here and in `empty`. `prepared` is the end of the log by decision, and equal CRCs
        # there are equal logs, so whatever was lost is back.
        joined = replace(promises, joined=session, prepared=prepared, lost_above=UNRESOLVED)
        return [TellEnd()] if joined == promises else [Save(joined), TellEnd()]

    def confirm(self, session: SessionId, low_water_mark: TransactionId) -> list[Action]:
        """Note that ids up to `low_water_mark` are certainly the log's; one above this copy's end is refused.

        A noted loss moves up as well: the confirmed ids are held again, and need not be copied once more.
        """
        if refusal := self.refusal(session):
            return [refusal]
        if low_water_mark > self.last:
            return [Refuse(OutOfOrder(f"ids up to {low_water_mark} can't be confirmed: this copy ends at {self.last}"))]
        promises = self.promises
        confirmed = replace(promises, confirmed=max(low_water_mark, promises.confirmed))
        if promises.may_have_lost:
            confirmed = replace(confirmed, lost_above=max(low_water_mark, promises.lost_above))
        return [TellEnd()] if confirmed == promises else [Save(confirmed), TellEnd()]

    def trim(self, session: SessionId, before: TransactionId) -> list[Action]:
        """Drop ids below `before`, which the owner knows to be archived; also on a copy that is only being filled.

        Only confirmed ids may go, which are the log's for good. The batch with the confirmed mark stays, because no
        session can be decided to begin below it.
        """
        if refusal := self.refusal(session):
            return [refusal]
        promises = self.promises
        if promises.untrusted:
            return [Refuse(NotJoined(f"bytes above {self.last} are not trusted: cut them before this copy is trimmed"))]
        certain = min(promises.confirmed, self.last)
        if promises.may_have_lost:
            certain = min(certain, promises.lost_above)
        if before > certain:
            return [Refuse(OutOfOrder(f"only ids up to {certain} are confirmed: the log can't be trimmed at {before}"))]
        return [DropBelow(before)]

    def empty(self, session: SessionId, size: int) -> list[Action]:
        """Drop every batch of a copy that is needed no more: by `session` it is no member, and is not to become one.

        `size` is the bytes of its segments. Refused if the copy obeys a later session, which may have made it a member
        since the operator looked.
        """
        if session < self.promises.fence or session <= NO_SESSION:
            return [self._fenced()]
        # The fence stays, and rises: sessions in which the copy was a member may still have an owner somewhere. Two
        # copies that had forgotten them would be a quorum for it.
        # But for that it is as a copy that never joined, which proves nothing to the session that makes it a member
        # again. That is on the disk before the first batch goes: after a crash in between, what is left is a tail that
        # no session has confirmed.
        return [
            Save(Promises(fence=session, untrusted_above=self.promises.untrusted_above)),
            Cut(NO_TRANSACTION),
            TellEmptied(size),
        ]

    # ------------------------------------------------------------------ writing and reading

    def store(self, requests: Sequence[StoreRequest]) -> list[Action]:
        """Store the messages of one connection that arrived during the last sync: one write, sync and acknowledgement.

        The first message that must be refused is refused, and those behind it, which follow on it, are dropped. The
        connection then has no part in the present session any more, unless that message was of another session.
        """
        batches: list[Batch] = []
        last, crc = self.last, self.last_crc
        last_taken: StoreRequest | None = None
        refused: Refuse | None = None
        for request in requests:
            refused = self._refused_store(request)
            # The next id and the predecessor's CRC: ids without gaps do not prove that it is the same log before them.
            for batch in request.batches:
                if refused is None and (batch.first != last + 1 or batch.previous_crc != crc):
                    refused = Refuse(OutOfOrder(f"a batch from {batch.first} on does not follow {last}"))
                last, crc = batch.last, batch.crc
            if refused is not None:
                refused = replace(refused, number=request.number)
                # A message of an older session, still on its way when the fence rose, says nothing about this one.
                if request.session == self.promises.fence:
                    self.store_failed(request.connection)
                break
            batches += request.batches
            last_taken = request
        # Written and synced, then acknowledged, then refused: if the write fails, nothing is acknowledged. One
        # acknowledgement, of the last number, is enough: it covers all before it.
        actions: list[Action] = [StoreBatches(batches)] if batches else []
        if last_taken is not None:
            actions.append(Acknowledge(last_taken.session, last_taken.number))
        if refused is not None:
            actions.append(refused)
        return actions

    def _refused_store(self, request: StoreRequest) -> Refuse | None:
        """Return why this copy may not take a message of the session, or None if it may.

        After a loss or a failed sync not even a barrier: its acknowledgement says that everything before is here.
        """
        # The fence before everything else: a deposed owner has to learn that it is deposed, not of a trouble here.
        if request.session != self.promises.fence:
            return self._fenced()
        if self.promises.may_have_lost:
            return Refuse(
                fault("partition_unavailable", f"this copy may have lost ids above {self.promises.lost_above}")
            )
        if self.promises.untrusted:
            return Refuse(fault("partition_unavailable", f"this copy could not sync what comes after {self.last}"))
        if self.promises.joined != request.session or self._joined_on is not request.connection:
            return Refuse(NotJoined(f"this copy has not joined session {request.session} on this connection"))
        return None

    def refusal(self, session: SessionId) -> Refuse | None:
        """Return why this copy refuses the owner of this session, reads included; None if it obeys."""
        return self._fenced() if self._is_other(session) else self._unasked()

    def store_failed(self, connection: Hashable) -> None:
        """End a connection's part in the session: a `Store` failed, and an acknowledgement covers all before it."""
        self.disconnected(connection)

    def lost(self, error: PolonaiseError) -> TellLoss | None:
        """End this replica's part in its session, because damage was found in its log, and tell the owner.

        The owner of an idle partition sends nothing that could be refused, and would count this copy until its next
        pulse.
        """
        connection, self._joined_on = self._joined_on, None
        return None if connection is None else TellLoss(connection, error)

    def disconnected(self, connection: Hashable) -> None:
        """End this replica's part in the session that it joined on this connection: what was sent there may be lost."""
        if self._joined_on is connection:
            self._joined_on = None

    def _unasked(self) -> Refuse | None:
        """Return the refusal for a copy that was opened and not yet asked what it can prove, else None.

        Its disk may have been put back to an earlier day, with the fence of this very session on it.
        """
        if self._asked == self.promises.fence:
            return None
        return Refuse(
            NotJoined("this copy was not asked for its last session since it was opened: send LastSessionInfo first")
        )

    def _is_other(self, session: SessionId) -> bool:
        """Whether this is another session than the fence's, larger or smaller; before the first one, any session."""
        return session != self.promises.fence or session <= NO_SESSION

    def _fenced(self) -> Refuse:
        fence = self.promises.fence
        return Refuse(
            Fenced(f"the latest session that this replica was told of is {fence}, and it obeys no other"), detail=fence
        )
