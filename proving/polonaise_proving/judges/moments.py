"""Judges of single moments of a schedule: by what clients had been told just then, and what lay on disks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from polonaise.coordination.values import ASSIGNMENT, Assignment, PartitionValue, partition_key
from polonaise.log.batch import Batch
from polonaise.terms import Generation, PartitionId, SessionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import History, Kind, LeaseTaken, Try
from polonaise_proving.record.partitionrecord import Fate

_PROMISE = "P13 fail-safe"
_AVAILABILITY = "P11 availability"


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


def fates_told(client: str, tries: Sequence[Try]) -> Iterator[Violation]:
    """P6: when a client has done all that it had to, it was told the fate of each of its tries.

    A step that notes no outcome is found by this, too: nothing that it appended would ever be judged. To be called
    before the client's process dies, with which what is pending becomes unknown.
    """
    for attempt in tries:
        if attempt.client == client and attempt.fate is Fate.PENDING:
            seen = "its fate was never told, or the step that made it has not noted it"
            yield Violation("P6 fate", f"the fate of {attempt} to be noted, as its client is done", seen)


def copies_hold(
    partition: PartitionId, last: TransactionId, copies: int, holding: Collection[str]
) -> Iterator[Violation]:
    """P1: what an application was told to be on as many copies as it needs is durable on as many disks."""
    if len(holding) < copies:
        expected = f"{last} of partition {partition}, told as on {copies} copies, on as many disks"
        yield Violation("P1 durability", expected, f"it is on {', '.join(holding) or 'none'}")


def left_in_sync(partition: PartitionId, gone: str, left: Collection[str], needed: int) -> Iterator[Violation]:
    """P1: a copy is given up only if enough others are in sync."""
    if len(left) < needed:
        seen = f"partition {partition} to give up {gone}, with {left} in sync"
        yield Violation("P1 durability", f"{needed} copies in sync without the one that is removed", seen)


def members_as_asked(
    partition: PartitionId, old: PartitionValue, new: PartitionValue, engaged: Collection[str]
) -> Iterator[Violation]:
    """P1: members become those that were asked for, once most of them, and those added, are engaged."""
    added = {*new.members} - {*old.members}
    if new.members != old.next or not added <= {*engaged} or 2 * len(engaged) <= len(new.members):
        expected = f"the members {old.next} that were asked for, most of them and those added engaged"
        seen = f"partition {partition} with {new.members}, engaged {engaged}, after {old.members}"
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


def loss_is_counted_no_more(name: str, for_s: float, within_s: float) -> Iterator[Violation]:
    """P13: no owner counts a copy for long of which its node knows that it is lost."""
    if for_s > within_s:
        yield Violation(_PROMISE, f"no owner to count what {name} has lost", f"one does, for {for_s:.1f} s")


def refused_is_left(name: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Violation]:
    """P13: nothing is changed in a directory that can't be opened."""
    if before != after:
        yield Violation(_PROMISE, f"the refused directory of {name} as it was", str(sorted(after)))


def ahead_appends_nothing(
    tries: Sequence[Try], client: str, partition: PartitionId, reset_to: TransactionId
) -> Iterator[Violation]:
    """P6: a client that is ahead of a partition since its reset was told of no append that was committed there."""
    for attempt in tries:
        # What was told before the reset does not count as committed any more.
        committed = attempt.fate is Fate.COMMITTED and attempt.id > reset_to
        if committed and (attempt.client, attempt.partition) == (client, partition):
            yield Violation("P6 fate", "a client that is ahead of the log to append nothing", str(attempt))


def owned_as_before(before: Mapping[int, object], after: Mapping[int, object]) -> Iterator[Violation]:
    """P11: servers that work keep what they own."""
    if after != before:
        yield Violation(_AVAILABILITY, f"servers that work to keep what they own: {before}", f"{after}")


def moved_once(moves: int, partitions: int) -> Iterator[Violation]:
    """P11: partitions that nobody can serve change their owners once each, at most."""
    if moves > partitions:
        yield Violation(_AVAILABILITY, "partitions that nobody can serve to stay", f"{moves} moves")


def all_closed(name: str, left_open: Collection[str]) -> Iterator[Violation]:
    """P11: a process that ends closes all that it has open."""
    if left_open:
        seen = f"{name} left open {', '.join(left_open)}"
        yield Violation(_AVAILABILITY, "a process that ends to close all it has open", seen)


def planned_fails_nothing(tries: Sequence[Try], reasons: Mapping[bool, Collection[str]]) -> Iterator[Violation]:
    """P11: no append fails because a node is stopped cleanly.

    `reasons` are what errors say then, for an append that could be refused for what it demands, and for any other.
    """
    for attempt in tries:
        if attempt.fate is Fate.FAILED and any(reason in attempt.why for reason in reasons[attempt.demands]):
            yield Violation(_AVAILABILITY, "no append to fail because a node is stopped", str(attempt))


class OwnershipCheck:
    """Check each assignment and claim that is written and, with sessions, that no server owns on after its own.

    - An assignment gives each partition an owner. Another owner has a later generation, and
      no generation falls: it tells two owners of a partition apart.
    - No owner claims a partition that one of a later generation has claimed.
    - A server owns nothing any more when its session can have ended, counted from its last contact.
    """

    def __init__(self, history: History, partitions: int) -> None:
        self._history = history
        self._partitions = range(partitions)
        self._before = Assignment()
        self._generations: dict[PartitionId, Generation] = {}

    def written(self, key: str, _: bytes, contents: bytes) -> None:
        """Compare a new assignment at the coordinator with the one before it; other keys do not matter."""
        if key != ASSIGNMENT:
            return
        before, self._before = self._before.owners, Assignment.decode(contents)
        after = self._before.owners
        missing = sorted(set(self._partitions) - after.keys())
        if missing:
            self._history.violated("P11 availability", "an assignment of all partitions", f"one without {missing}")
        for partition, owner in before.items():
            now = after.get(partition, owner)
            if now.generation < owner.generation + (now.server != owner.server):
                self._history.violated(
                    "P11 availability",
                    f"partition {partition} to get a later generation than {owner.generation} of server {owner.server}",
                    f"generation {now.generation} of server {now.server}",
                )

    def claimed(self, partition: PartitionId, _: PartitionValue, value: PartitionValue) -> None:
        """Compare the generation of a partition's new value with the latest before it."""
        latest = self._generations.setdefault(partition, value.generation)
        if value.generation < latest:
            expected = f"owners of {partition_key(partition)} from generation {latest} on"
            self._history.violated("P13 fail-safe", expected, f"one of generation {value.generation} claims it")
        self._generations[partition] = max(latest, value.generation)

    def outlives(self, server: str, owned: Sequence[PartitionId], over_s: float) -> None:
        """Judge what a server owns `over_s` seconds after its session can have ended."""
        if owned:
            self._history.violated(
                "P13 fail-safe",
                f"{server} to own nothing when its session can have ended",
                f"it owns {owned}, {over_s:.3f} s later",
            )
