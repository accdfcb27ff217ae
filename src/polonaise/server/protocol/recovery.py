"""The decisions of a session's start: claim, doubt, decide, clean, engage.

Pure functions of the coordinator's value and the replicas' answers. `docs/replication.md` argues why they are safe, and
`make model` explores them exhaustively.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import ConsistencyLost
from polonaise.recoverycommand import RECOVER
from polonaise.terms import NO_SESSION, NO_TRANSACTION, Generation, SessionId, StorageId, TransactionId


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """What one replica proved when it was fenced."""

    joined: SessionId
    """The last session that the replica was made clean for, or a later one whose reset of the head it was cut for; or
    NO_SESSION."""
    prepared: TransactionId
    """The id with which its log ended when it joined, less what was cut for a reset since; NO_TRANSACTION if it joined
    none."""
    confirmed: TransactionId
    """The id up to which its copy is certainly the log, but for what it may have lost."""
    max_synced: TransactionId
    """The last id that it holds, synced; NO_TRANSACTION if it is empty."""
    last_crc: int
    """CRC of the batch that ends at `max_synced`; 0 if it is empty."""
    lost_above: TransactionId | None
    """The id above which it may have lost transactions; None if it knows of no loss."""

    @property
    def is_empty(self) -> bool:
        """Whether it joined no session and holds nothing: it is new, or was wiped or emptied."""
        return self.joined == NO_SESSION and self.max_synced == NO_TRANSACTION

    @property
    def doubt(self) -> str:
        """Text for operators: why this replica can't be believed, and what to look at."""
        if self.is_empty:
            return "answers, but is empty: give it the directory that it had"
        if self.lost_above is None:
            return "answers, but its copy is older than the last session: give it the directory that it had since"
        lost = "everything" if self.lost_above == NO_TRANSACTION else f"what was above {self.lost_above}"
        return f"answers, but may have lost {lost}: see `polonaise segment verify` on its directory"


@dataclass(frozen=True, slots=True)
class Undecided:
    """The outcome that the end of the log can't be told yet: wait for replicas. Copying cannot help."""

    doubted: tuple[StorageId, ...]
    """The replicas of the last session in doubt; or, if those that answered lack what this owner has seen committed,
    the silent ones, which may hold it; or the source of a pending reset of the head."""
    needed: int
    """The number of doubted replicas that must come back with what they held."""
    of_reset: bool = False

    def waits_for(self, answers: Mapping[StorageId, ReplicaAnswer]) -> str:
        """Return text for operators: what is waited for, and what is wrong with the doubted replicas that answered."""
        if self.of_reset:
            (source,) = self.doubted
            return f"an answer from {source}, whose copy is taken for the log by the reset of its head that is pending"
        doubted = sorted(self.doubted)
        silent = [name for name in doubted if name not in answers]
        doubts = "; ".join(f"{name} {answers[name].doubt}" for name in doubted if name in answers)
        # As long as the silent ones are enough to end the doubt, they may merely be starting: no alarm yet. After that
        # somebody has to bring back what a replica held.
        if len(silent) >= self.needed:
            answers_needed = f"an answer from {self.needed} of {', '.join(silent)}, which took part in the last session"
            return f"{answers_needed}. {doubts}" if doubts else answers_needed
        away = f"; no answer from {', '.join(silent)}" if silent else ""
        if len(doubted) == 1:
            replicas_needed = f"{doubted[0]}, with what it held: it may hold"
        else:
            replicas_needed = f"{self.needed} of {', '.join(doubted)}, with what they held: they may hold"
        return f"{replicas_needed} committed transactions that nobody else has. {doubts}{away}"


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome that the end of the log before this session is known."""

    closing: TransactionId
    """The id with which the log ends."""
    last_crc: int
    """CRC of the batch that ends at `closing`; 0 for an empty log."""
    sources: tuple[StorageId, ...]
    """Replicas that hold the log up to `closing`."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The outcome that the answers break a promise. The partition stops until an operator has acted."""

    what: str
    """For operators: which facts exclude each other."""
    outdated: SessionId = NO_SESSION
    """A session that proves the coordinator to be of an older state; NO_SESSION for another contradiction."""


RESTORE_LATEST: Final = (
    "It would give out session numbers a second time. If the cluster has another coordinator by now, stop these "
    "servers and start them with its address; else restore its latest state, or move it away (with ZooKeeper: take "
    f"another path) and make its values again from the storage nodes ({RECOVER}), then start the servers again"
)
"""What to do about a coordinator of an older state, for messages."""


class OlderStateProved(ConsistencyLost):
    """A partition stops because its replicas, or this process, know of a later state than the coordinator holds.

    Clients are told the code of its base. Servers tell it apart, and believe or note nothing else that coordinator
    holds.
    """


class Known(NamedTuple):
    """The last commit that an owner has itself seen, in its earlier sessions."""

    committed: TransactionId
    last_crc: int
    """CRC of the batch that ends at `committed`."""
    session: SessionId = NO_SESSION


NOTHING_KNOWN: Final = Known(NO_TRANSACTION, 0)


def quorum(members: Collection[StorageId]) -> int:
    """Return how many replicas commit: more than half of the members, however few of these are engaged."""
    return len(members) // 2 + 1


def claim(value: PartitionValue, generation: Generation) -> PartitionValue | None:
    """Return the value that claims the next session; None when a later generation owns the partition."""
    if value.generation > generation:
        return None
    # Written with compare-and-set: of two owners that read the same value only one gets this session number.
    return replace(value, generation=generation, session=value.session + 1)


def participants(value: PartitionValue) -> tuple[StorageId, ...]:
    """Return the replicas that a session has to fence: the members, and those that a pending change adds."""
    return value.members + tuple(name for name in value.next or () if name not in value.members)


def is_stale(engagement: Engagement, answer: ReplicaAnswer) -> bool:
    """Whether this copy missed a session that it took part in by the coordinator's word: it was wiped, or is old."""
    return answer.joined < engagement.session


def decide(
    value: PartitionValue, answers: Mapping[StorageId, ReplicaAnswer], known: Known = NOTHING_KNOWN
) -> Decided | Undecided | Contradiction:
    """Decide where the log ends before this session; `known` is the last commit that the deciding owner has seen.

    Every id that was committed, and not given up since, is on so many of the replicas engaged in the last session that
    they are a quorum of the members. With fewer than that in doubt, at least one that can be believed holds the id. So
    the highest id that a believed replica holds is no smaller than any committed id.
    """
    # A replica joins only sessions that the coordinator gave out, and nobody has joined this one before its end is
    # decided. Such a number, or a larger one, means that the coordinator itself was put back to an older state, and
    # then its engagements can't be believed either.
    for name, answer in answers.items():
        if answer.joined >= value.session:
            return Contradiction(
                f"{name} took part in session {answer.joined}, which was given out before: the coordinator, which has "
                f"just given out session {value.session}, was restored from an older state. {RESTORE_LATEST}",
                outdated=answer.joined,
            )
    # Only replicas engaged in the last session can hold what it committed. A late replica's tail may be of a session
    # that was decided without it: it may receive copies, and decides nothing.
    engaged = [name for name, engagement in value.engagements.items() if engagement.unresolved]
    if not engaged:
        return _decide_first(answers)
    doubted: list[StorageId] = []
    closing, last_crc = NO_TRANSACTION, 0
    sources: list[StorageId] = []
    for name in engaged:
        held = answers.get(name)
        # Away, wiped or old: "has not" in its answer would say nothing about what it once acknowledged.
        if held is None or is_stale(value.engagements[name], held):
            doubted.append(name)
            continue
        # One that may have lost counts as absent for what it lacks. What it does hold is proved by CRCs, and so may
        # still raise the closing mark below.
        if held.lost_above is not None:
            doubted.append(name)
        if held.max_synced > closing:
            closing, last_crc, sources = held.max_synced, held.last_crc, [name]
        elif held.max_synced == closing:
            # Two batches with the same last id: the log has forked, and nobody can tell which one is right.
            if closing != NO_TRANSACTION and held.last_crc != last_crc:
                return Contradiction(f"{name} and {sources[0]} hold different transactions at {closing}")
            sources.append(name)
    # A commit took a quorum of all members, however few were engaged. With fewer than that in doubt, at least one
    # replica of every such quorum is believed.
    needed = len(doubted) - quorum(value.members) + 1
    if needed > 0:
        return Undecided(tuple(doubted), needed)
    # Beyond doubt from here on: `closing` covers everything committed, if the promises hold. What follows compares
    # that with what others know, so that a broken promise stops the partition instead of losing transactions.
    for name, answer in answers.items():
        if answer.confirmed > closing:
            return Contradiction(
                f"{name} knows transactions up to {answer.confirmed} to be committed, "
                f"but the replicas of the last session hold no more than {closing}"
            )
    # Replicas that were put back to an older moment of this very session look sound. Only an owner that remembers more
    # can tell; and one of the silent replicas may still hold it.
    if closing < known.committed:
        silent = tuple(name for name in engaged if name not in answers)
        return Undecided(silent, 1) if silent else Contradiction(_forgotten(known, closing))
    if closing == known.committed != NO_TRANSACTION and last_crc != known.last_crc:
        return Contradiction(f"the batch that ends at {closing} is not the one that was committed there")
    return Decided(closing, last_crc, tuple(sources))


def _forgotten(known: Known, closing: TransactionId) -> str:
    return (
        f"this server has seen transactions committed up to {known.committed}, but the replicas of the last session "
        f"hold no more than {closing}: the storage directories may be old copies. Restore newer ones before a server "
        "is restarted, for it would not notice what they lack"
    )


def _decide_first(answers: Mapping[StorageId, ReplicaAnswer]) -> Decided | Contradiction:
    """Decide the end of a partition in which no replica was ever engaged: the log is empty, or a mark contradicts."""
    for name, answer in answers.items():
        # All three marks: a damaged replica may hold nothing any more and still know that there was something.
        highest = max(answer.max_synced, answer.confirmed, answer.prepared)
        if highest != NO_TRANSACTION:
            return Contradiction(f"the coordinator knows of no session, but {name} held transactions up to {highest}")
    return Decided(NO_TRANSACTION, 0, tuple(answers))


def is_first(value: PartitionValue, answers: Mapping[StorageId, ReplicaAnswer]) -> bool:
    """Whether no session of this partition was ever engaged, by the coordinator and by a quorum that answered.

    One of any quorum that had joined a session is among them: an empty coordinator alone proves nothing.
    """
    return not value.engagements and all(answer.joined == NO_SESSION for answer in answers.values())


def clean_to(value: PartitionValue, name: StorageId, answer: ReplicaAnswer, closing: TransactionId) -> TransactionId:
    """Return the id up to which this replica's copy is certainly the log; what is above has to be cut and copied.

    Call it only once `closing` is decided: before that, even a dirty tail may be the last trace of a commit.
    """
    engagement = value.engagements.get(name)
    if engagement is None or is_stale(engagement, answer):
        # Never engaged, wiped or old: of its history only the owner's own confirmation says anything.
        clean = answer.confirmed
    elif engagement.unresolved:
        # Engaged in the last session, whose end is `closing`: it took everything in that session's order.
        clean = closing
    else:
        # Late: above where its session was closed it may hold a dirty tail. What it was caught up with since is
        # confirmed, and kept, or each new session would throw the catch-up away.
        clean = max(engagement.closing, answer.confirmed)
    # Above a loss nothing is certain. Ids that were copied there since, and confirmed, have moved its mark.
    if answer.lost_above is not None:
        clean = min(clean, answer.lost_above)
    return min(clean, answer.max_synced)


def may_engage(value: PartitionValue, clean: Collection[StorageId]) -> bool:
    """Whether a session may start on these clean replicas: they are a quorum, and all that its commits need.

    A copy that is only being added does not count for the quorum: it must not keep the members from going on without
    it.
    """
    return has_quorum(value, clean) and not lack_of(value, clean)


def has_quorum(value: PartitionValue, clean: Collection[StorageId]) -> bool:
    return _is_quorum(value.members, clean)


def lack_of(value: PartitionValue, clean: Collection[StorageId]) -> str:
    """Return what a session on these replicas would lack of the copies and zones required; empty if nothing."""
    return "" if takes_next(value, clean) else _lack_among(value, value.members, clean)


def takes_next(value: PartitionValue, clean: Collection[StorageId]) -> bool:
    """Whether a session on these clean replicas makes a pending change: the next members are its members from then on.

    They have to be a quorum of the members and of the next ones: the last session committed on the former, this one
    commits on the latter. An added copy has to be among them, for it would count against the quorum before it could
    help to reach one. And the next members among them have to be all that commits need: a copy that is required stays.
    """
    if value.next is None or not has_quorum(value, clean):
        return False
    added = [name for name in value.next if name not in value.members]
    enough = _is_quorum(value.next, clean) and all(name in clean for name in added)
    return enough and not _lack_among(value, value.next, clean)


def _lack_among(value: PartitionValue, members: Collection[StorageId], clean: Collection[StorageId]) -> str:
    return "" if value.required is None else value.required.lack_of([name for name in members if name in clean])


def _is_quorum(members: Collection[StorageId], clean: Collection[StorageId]) -> bool:
    return sum(name in clean for name in members) >= quorum(members)


def engage(value: PartitionValue, clean: Iterable[StorageId], closing: TransactionId) -> PartitionValue:
    """Return the value that starts the session. It has to be written before any append of the session is sent.

    Until then the next owner would not know which replicas can hold what this session commits. A pending change that
    can't be made on these replicas (`takes_next`) stays pending.
    """
    clean = set(clean)
    members, pending = value.members, value.next
    if pending is not None and takes_next(value, clean):
        members, pending = pending, None
    engagements: dict[StorageId, Engagement] = {}
    for name in members:
        before = value.engagements.get(name)
        if name in clean:
            engagements[name] = Engagement(value.session)
        elif before is not None:
            # Its session ended at `closing`: when it comes back, what it holds above that is cut. One that was closed
            # earlier keeps its older mark, for it has not seen what was decided since.
            engagements[name] = replace(before, closing=closing) if before.unresolved else before
    return replace(value, members=members, next=pending, engagements=engagements)


_PACES: Final = 2.0
"""For how many times as long as a quorum has taken further replicas are waited for."""


def pace_s(took_s: Collection[float], quorum: int) -> float:
    """Return within how many seconds a quorum of replicas has answered, each asked at its own time; 0 without one."""
    return sorted(took_s)[quorum - 1] if len(took_s) >= quorum else 0.0


def gather_s(least_s: float, pace: float) -> float:
    """Return for how long further replicas are waited for once a quorum has answered that took `pace` seconds.

    One that is left out costs another session, which takes as long again: where all disks are slow, each would leave
    one out.
    """
    return max(least_s, _PACES * pace)
