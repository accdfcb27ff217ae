"""The start of a session, decided: claim, doubt, decide, clean, engage.

Pure functions over the coordinator's value and what the replicas answered. `docs/replication.md` has the argument why
they are safe; `make model` explores them exhaustively by calling these very functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.terms import NO_SESSION, NO_TRANSACTION, Generation, SessionId, StorageId, TransactionId


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """What one replica could prove when it was fenced: the answer to last-session-info."""

    joined: SessionId
    prepared: TransactionId
    confirmed: TransactionId
    max_synced: TransactionId
    last_crc: int
    lost_above: TransactionId | None
    """It may have lost ids above this one; None when it has not."""

    @property
    def is_empty(self) -> bool:
        """Whether it knows of no session and holds nothing: it is new, or was wiped."""
        return self.joined == NO_SESSION and self.max_synced == NO_TRANSACTION

    @property
    def doubt(self) -> str:
        """For people: why a replica that answers so can't be believed, and what to look at."""
        if self.is_empty:
            return "is there, and empty: give it the directory that it had"
        if self.lost_above is None:
            return (
                "is there, and holds an old copy, older than the last session: give it the directory that it had since"
            )
        lost = "everything" if self.lost_above == NO_TRANSACTION else f"what was above {self.lost_above}"
        return f"is there, and says that it may have lost {lost}: see `polonaise segment verify` on its directory"


@dataclass(frozen=True, slots=True)
class Undecided:
    """Too many replicas of the last session are in doubt: wait for them. Copying cannot help."""

    doubted: tuple[StorageId, ...]
    needed: int
    """How many of them must come back with what they held."""

    def waits_for(self, answers: Mapping[StorageId, ReplicaAnswer]) -> str:
        """For people: an alarm only where those that have yet to answer are too few to end the doubt."""
        silent = [name for name in self.doubted if name not in answers]
        doubts = "; ".join(f"{name} {answers[name].doubt}" for name in self.doubted if name in answers)
        if len(silent) >= self.needed:
            told = f"an answer of {self.needed} of {', '.join(silent)}, which took part in the last session"
            return f"{told}. {doubts}" if doubts else told
        away = f"; no answer from {', '.join(silent)}" if silent else ""
        if len(self.doubted) == 1:
            held = f"{self.doubted[0]}, with what it held: it may hold"
        else:
            held = f"{self.needed} of {', '.join(self.doubted)}, with what they held: they may hold"
        return f"{held} committed transactions that nobody else has. {doubts}{away}"


@dataclass(frozen=True, slots=True)
class Decided:
    """The closing high-water mark of everything before this session, frozen for this attempt."""

    closing: TransactionId
    last_crc: int
    """CRC of the batch that ends at `closing`; 0 for an empty log."""
    sources: tuple[StorageId, ...]
    """Replicas that hold the log up to `closing`."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What was promised cannot be true. The partition stops; only an operator may go on."""

    what: str


class Known(NamedTuple):
    """What an owner has itself seen committed, in earlier sessions."""

    committed: TransactionId
    last_crc: int
    """CRC of the batch that ends there."""


NOTHING_KNOWN: Final = Known(NO_TRANSACTION, 0)


def quorum(members: Collection[StorageId]) -> int:
    return len(members) // 2 + 1


def claim(value: PartitionValue, generation: Generation) -> PartitionValue | None:
    """The value that makes the next session ours; None when a later generation owns the partition."""
    if value.generation > generation:
        return None
    return replace(value, generation=generation, session=value.session + 1)


def participants(value: PartitionValue) -> tuple[StorageId, ...]:
    """Everyone a session has to fence: the members, and those that a pending change adds."""
    return value.members + tuple(name for name in value.next or () if name not in value.members)


def is_stale(engagement: Engagement, answer: ReplicaAnswer) -> bool:
    """Whether this copy has not seen the session that the coordinator knows it took part in: wiped, or an old disk.

    Compared is the session *joined*, never the fence: a restored snapshot that is fenced once would look current.
    """
    return answer.joined < engagement.session


def decide(
    value: PartitionValue, answers: Mapping[StorageId, ReplicaAnswer], known: Known = NOTHING_KNOWN
) -> Decided | Undecided | Contradiction:
    """What is the log's end before this session? `known` is what whoever asks has seen committed.

    Every id that was ever committed is on a quorum of the replicas engaged in the last session. With fewer than a
    quorum of those in doubt, at least one that can be believed holds it, so the highest id among these is no smaller.
    """
    for name, told in answers.items():
        if told.joined > value.session:
            return Contradiction(
                f"{name} took part in session {told.joined}; the coordinator has given out none after {value.session}"
            )
    engaged = [name for name, engagement in value.engagements.items() if engagement.unresolved]
    if not engaged:
        return _decide_first(answers)
    doubted: list[StorageId] = []
    closing, last_crc = NO_TRANSACTION, 0
    sources: list[StorageId] = []
    for name in engaged:
        held = answers.get(name)
        if held is None or is_stale(value.engagements[name], held):
            doubted.append(name)
            continue
        if held.lost_above is not None:
            doubted.append(name)
        if held.max_synced > closing:
            closing, last_crc, sources = held.max_synced, held.last_crc, [name]
        elif held.max_synced == closing:
            if closing != NO_TRANSACTION and held.last_crc != last_crc:
                return Contradiction(f"{name} and {sources[0]} hold different transactions at {closing}")
            sources.append(name)
    needed = len(doubted) - quorum(value.members) + 1
    if needed > 0:
        return Undecided(tuple(doubted), needed)
    for name, answer in answers.items():
        if answer.confirmed > closing:
            return Contradiction(
                f"{name} knows transactions up to {answer.confirmed} to be committed, "
                f"but the replicas of the last session hold no more than {closing}"
            )
    if closing < known.committed:
        silent = tuple(name for name in engaged if name not in answers)
        return Undecided(silent, 1) if silent else Contradiction(_forgotten(known, closing))
    if closing == known.committed != NO_TRANSACTION and last_crc != known.last_crc:
        return Contradiction(f"the batch that ends at {closing} is not the one that was committed there")
    return Decided(closing, last_crc, tuple(sources))


def _forgotten(known: Known, closing: TransactionId) -> str:
    return (
        f"this server has seen transactions committed up to {known.committed}, but the replicas of the last session "
        f"hold no more than {closing}: old copies of storage directories, perhaps. Restore newer ones before a server "
        "is started anew, for that one would not miss what they lack"
    )


def _decide_first(answers: Mapping[StorageId, ReplicaAnswer]) -> Decided | Contradiction:
    """No session was ever engaged, so nothing was ever written; a replica that held something disproves it.

    One that may have lost, but never joined at anything above nothing, lost nothing: its first file went bad.
    """
    for name, answer in answers.items():
        held = max(answer.max_synced, answer.confirmed, answer.prepared)
        if held != NO_TRANSACTION:
            return Contradiction(f"the coordinator knows of no session, but {name} held transactions up to {held}")
    return Decided(NO_TRANSACTION, 0, tuple(answers))


def clean_to(value: PartitionValue, name: StorageId, answer: ReplicaAnswer, closing: TransactionId) -> TransactionId:
    """Up to which id this replica's copy is surely that of the log; what is above must be cut, then copied.

    Only asked once `closing` is decided: before, even a dirty tail may be the last trace of a commit.
    """
    engagement = value.engagements.get(name)
    if engagement is None or is_stale(engagement, answer):
        clean = answer.confirmed
    elif engagement.unresolved:
        clean = closing
    else:
        clean = max(engagement.closing, answer.confirmed)
    if answer.lost_above is not None:
        clean = min(clean, answer.lost_above)
    return min(clean, answer.max_synced)


def may_engage(value: PartitionValue, clean: Collection[StorageId]) -> bool:
    """Whether these clean replicas are a quorum of the members, and of the members to be."""
    memberships = [value.members] if value.next is None else [value.members, value.next]
    return all(sum(name in clean for name in members) >= quorum(members) for members in memberships)


def engage(value: PartitionValue, clean: Iterable[StorageId], closing: TransactionId) -> PartitionValue:
    """The value that starts the session: written before a single append of it is sent."""
    members = value.members if value.next is None else value.next
    clean = set(clean)
    engagements: dict[StorageId, Engagement] = {}
    for name in members:
        before = value.engagements.get(name)
        if name in clean:
            engagements[name] = Engagement(value.session)
        elif before is not None:
            engagements[name] = replace(before, closing=closing) if before.unresolved else before
    return replace(value, members=members, next=None, engagements=engagements)
