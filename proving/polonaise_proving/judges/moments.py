"""Judges of single moments of a schedule: by what clients had been told just then, and what lay on disks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, SessionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica
from polonaise_proving.record.observations import Fate, Kind, LeaseTaken, Try, Violation

_PROMISE = "P13 fail-safe"


def one_holder(taken: LeaseTaken) -> Iterator[Violation]:
    """Leases: nobody else counts itself the holder at the moment at which one begins to."""
    if taken.others:
        expected = f"{taken.holder} alone to hold lease {taken.lease!r}"
        yield Violation("leases", expected, f"so do {', '.join(taken.others)}")


def quorum_holds(
    known: Mapping[str, TransactionId], lasts: Mapping[str, TransactionId], needed: int
) -> Iterator[Violation]:
    """P1: what anybody knows to be committed is durable on a quorum of the members.

    `known` is the highest id by who knows it, `lasts` where the log of each sound member ends; `needed` of these have
    to hold it. Spoilt disks are not read: each counts as holding it, because it may have held it.
    """
    who, committed = max(known.items(), key=lambda each: each[1])
    if sum(last >= committed for last in lasts.values()) < needed:
        expected = f"{committed}, committed as {who} was told, on {needed} of {', '.join(lasts)}"
        yield Violation("P1 durability", expected, f"their logs end at {lasts}")


def needed_copies(
    partition: PartitionId, told: TransactionId, lack: str, engaged: Collection[str], holding: Collection[str]
) -> Iterator[Violation]:
    """P1: what was told as committed is durable on the copies, and in the zones, that commits need.

    `lack` is what the copies that hold it lack of that; empty if they lack nothing.
    """
    if lack:
        expected = f"{told} of partition {partition}, told as committed, on the replicas that commits need"
        seen = f"{lack}: of the engaged {', '.join(engaged)}, it is on {', '.join(holding)}"
        yield Violation("P1 durability", expected, seen)


def _crcs(replica: DiskReplica) -> dict[TransactionId, int]:
    return {batch.last: batch.crc for batch in replica.batches}


def acknowledged_is_held(replica: DiskReplica, sent: Mapping[int, Batch], acknowledged: int) -> Iterator[Violation]:
    """P1: a storage node holds every batch of a session up to the highest number that it has acknowledged."""
    durable = _crcs(replica)
    for number, batch in sent.items():
        if number <= acknowledged and durable.get(batch.last) != batch.crc:
            expected = f"ids {batch.first} to {batch.last} of {replica.name}, acknowledged with {acknowledged}"
            yield Violation("P1 durability", expected, f"it holds batches up to {sorted(durable)}")


def joined_where_it_ends(replica: DiskReplica, prepared: TransactionId, crc: int) -> Iterator[Violation]:
    """P1: a copy joins a session only where its log ends as the session has it."""
    durable = _crcs(replica)
    if durable.get(prepared) != crc:
        expected = f"no copy without id {prepared}, CRC {crc:#010x}, to join there"
        yield Violation("P1 durability", expected, f"{replica.name} holds {sorted(durable)}, and has joined")


def fenced_out(
    replica: DiskReplica, end: TransactionId, fence: SessionId | None, fenced: SessionId, session: SessionId
) -> Iterator[Violation]:
    """P2: once `session` was told where a copy ends, its fence stays, and the session before it writes nothing."""
    if fence is not None and fence < session:
        seen = f"that of {replica.name} is at {fence}"
        yield Violation("P2 agreement", f"a fence that was told at {session} to stay there", seen)
    durable = _crcs(replica)
    if max(durable, default=-1) > end:
        expected = f"nothing of session {fenced} after {session} was told that {replica.name} ends"
        yield Violation("P2 agreement", f"{expected} at {end}", f"{sorted(durable)}")


def nothing_accepted(
    tries: Sequence[Try], told: Sequence[TransactionId], known: Sequence[TransactionId]
) -> Iterator[Violation]:
    """P13: once more is lost than can be made up for, no append is told to be committed, and no new id is seen.

    A producer's append may repeat one that was committed earlier, and is then told so, which is true.
    """
    for attempt in tries:
        if attempt.fate is Fate.COMMITTED and attempt.kind is not Kind.PRODUCED:
            yield Violation(_PROMISE, "nothing to be accepted", str(attempt))
    if told != known:
        yield Violation(_PROMISE, f"nothing above {known}", f"ids up to {told} were told")


def loss_is_told(
    health: Sequence[tuple[int, Mapping[str, object]]], reasons: Sequence[set[str]]
) -> Iterator[Violation]:
    """P13: no partition is ready then, and the health of one at least names all its reasons.

    One is enough: the owners of the others may not have asked all replicas yet.
    """
    if any(each["ready"] for _, each in health):
        yield Violation(_PROMISE, "no partition to be ready", repr(health))
    told = [(partition, str(each["waits_for"])) for partition, each in health]
    if not any(all(reason in text for reason in reasons[partition]) for partition, text in told):
        yield Violation(_PROMISE, f"health to name all of {reasons}", repr(told))


def planned_fails_nothing(tries: Sequence[Try], reasons: Mapping[bool, Collection[str]]) -> Iterator[Violation]:
    """P11: no append fails because a node is stopped cleanly.

    `reasons` are what errors say then, for an append that could be refused for what it demands, and for any other.
    """
    for attempt in tries:
        if attempt.fate is Fate.FAILED and any(reason in attempt.why for reason in reasons[attempt.demands]):
            yield Violation("P11 availability", "no append to fail because a node is stopped", str(attempt))
