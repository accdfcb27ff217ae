"""The check of resets of the head: what was decided, what must be left of the log, and what the log has to tell of it.

It reads what operators ask for, what is written at the coordinator, and what lies on disks; nothing of how a server
carries a reset out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from polonaise.coordination.values import HeadReset, PartitionValue
from polonaise.terms import NO_SESSION, NO_TRANSACTION, OwnKind, PartitionId, SessionId, StorageId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.record.observations import History, describe

_FAIL_SAFE: Final = "P13 fail-safe"
_DURABILITY: Final = "P1 durability"
_NO_DIRTY_READ: Final = "P4 no dirty read"
_FATE: Final = "P6 fate"


class HeldCopies(Protocol):
    """The copies that one storage node has on its disk."""

    def replica(self, partition: PartitionId) -> DiskReplica: ...

    def durable_last(self, partition: PartitionId) -> TransactionId:
        """Return the last id that would be left if the power went now."""
        ...


class Decision(NamedTuple):
    """A decision of an operator, who has written it, has tried to, or was about to."""

    reset: HeadReset
    proved: bool
    """Whether the source proves the id by itself; else what lies above its confirmed mark may never have been the log.
    """


class CarriedOut(NamedTuple):
    """A reset that was carried out."""

    reset: HeadReset
    kept: TransactionId
    """The id up to which the log has to be what it was before."""
    before: FinalLog
    """The log as it was before the reset."""


class HeadResetCheck:
    """Notes each reset that is carried out, in the history too, and compares logs with all of them."""

    def __init__(
        self, history: History, partitions: int, storage: Mapping[StorageId, HeldCopies], faults: FaultCounts
    ) -> None:
        """`storage` are the storage nodes with copies of all partitions. `written` has to be called from now on."""
        self._history = history
        self._partitions = range(partitions)
        self._storage = storage
        self._faults = faults
        self.decisions: list[list[Decision]] = [[] for _ in range(partitions)]
        self.carried_out: list[list[CarriedOut]] = [[] for _ in range(partitions)]
        self.before: list[FinalLog] = []
        """The log of each partition as it was when the last disks were lost, or as the last reset since then has left
        it, and as it had gone on by the last decision."""
        self.on_reset: Callable[[PartitionId, HeadReset], None] = lambda partition, reset: None
        """Called when a reset was carried out and is noted."""
        self.came_back: dict[tuple[PartitionId, StorageId], TransactionId] = {}
        """By partition and storage node: the last id on the node's disk when it came back with what it held, since
        disks were lost last."""
        self._reset_since: set[PartitionId] = set()
        """The partitions with a reset that was carried out since disks were lost last."""

    def disks_are_lost(self, before: list[FinalLog]) -> None:
        """Note that disks are lost now; `before` is the log of each partition."""
        self.before = before
        self.came_back.clear()
        self._reset_since.clear()

    # ------------------------------------------------------------------ what is written

    def written(self, partition: PartitionId, old: PartitionValue, new: PartitionValue) -> None:
        """Check that a reset is carried out by an engagement, as it was decided, and once.

        To be called with each write of a partition's value.
        """
        done_before, done = _done(old), _done(new)
        if done[: len(done_before)] != done_before or len(done) > len(done_before) + 1:
            seen = f"partition {partition} with {done} after {done_before}"
            self._history.violated(_FAIL_SAFE, "resets that were carried out to be kept for ever", seen)
        elif len(done) > len(done_before):
            self._carried_out(partition, old, new, done[-1])
        elif len(old.resets) > len(done_before) and len(new.resets) == len(done):
            self._faults.count("reset_withdrawn")
        elif new.resets != old.resets:
            self._decided(partition, done[-1].session if done else NO_SESSION)

    def _decided(self, partition: PartitionId, session: SessionId) -> None:
        """Note how the log has gone on since this session, which carried out the last reset: most disks hold it.

        This is called before copies are cut for the decision.
        """
        log = self.before[partition]
        held = [batch for node in self._storage.values() for batch in node.replica(partition).batches]
        counts = Counter(batch.crc for batch in held)
        later = {batch.first: batch for batch in held if counts[batch.crc] > len(self._storage) // 2}
        since = [later[id] for id in sorted(later) if id >= len(log) and later[id].session >= session]
        self.before[partition] = FinalLog(partition, [*log.batches, *since])

    def _carried_out(self, partition: PartitionId, old: PartitionValue, new: PartitionValue, reset: HeadReset) -> None:
        decided = [each for each in self.decisions[partition] if _is_same(each.reset, reset)]
        was_asked = len(old.resets) == len(new.resets) and _is_same(old.resets[-1], reset)
        if not decided or not was_asked or reset.session != new.session or reset != new.resets[-1]:
            expected = f"the reset {old.resets[-1:]} that an operator has decided on, in session {new.session}"
            self._history.violated(_FAIL_SAFE, expected, f"partition {partition}: {reset}")
            return
        for name, engagement in new.engagements.items():
            held = self.came_back.get((partition, name), NO_TRANSACTION)
            # Behind a first reset, what a lost node held is given up already, whatever it was.
            shown = partition in self._reset_since or held <= max(reset.known, reset.to)
            if engagement.session == reset.session and not shown:
                expected = f"partition {partition} to give up ids up to {reset.known}, as the operator was shown"
                self._history.violated(_DURABILITY, expected, f"{name} takes part, which held {held}")
        self._note(partition, reset, decided[-1])
        self.on_reset(partition, reset)

    def _note(self, partition: PartitionId, reset: HeadReset, decided: Decision) -> None:
        faults, before = self._faults, self.before[partition]
        kept = reset.to if decided.proved else max(reset.certain, NO_TRANSACTION)
        held = self._storage[reset.source].replica(partition)
        # What is trimmed there was in the log before, and is in fragments.
        copy = FinalLog(partition, [*(each for each in before.batches if each.last < held.first), *held.batches])
        taken = range(kept + 1, min(reset.to + 1, len(copy)))
        there = {id: copy.transactions[id] for id in taken}
        gone = [each for each in before.transactions[kept + 1 :] if there.get(each.id) != each]
        revived = {body.number for id in taken if (body := copy.bodies[id]) is not None}
        faults.count("head_reset")
        if gone:
            faults.count("reset_gave_up")
        self.carried_out[partition].append(CarriedOut(reset, kept, before))
        # From now on that is the log: another reset is not to keep what this one has given up.
        self.before[partition] = FinalLog(partition, [batch for batch in copy.batches if batch.last <= reset.to])
        self._reset_since.add(partition)
        self._history.head_reset(partition, reset.to, kept, gone, revived)

    def notes_what_came_back(self, name: StorageId) -> None:
        """Note what the disk of a storage node holds that is let up again with it."""
        for partition in self._partitions:
            self.came_back[partition, name] = self._storage[name].durable_last(partition)

    # ------------------------------------------------------------------ what operators are told

    def told(self, partition: PartitionId, reset: HeadReset, done_before: int, carried_out: bool) -> None:
        """Check what an operator was told of its decision: whether it was carried out, or withdrawn.

        `done_before` resets were carried out before that.
        """
        since = [each.reset for each in self.carried_out[partition][done_before:]]
        there = any((each.to, each.source) == (reset.to, reset.source) for each in since)
        if carried_out and not there:
            seen = f"an operator was told that {reset} was carried out, and {since} were"
            self._history.violated(_FATE, f"the truth about the reset of partition {partition}", seen)
        if not carried_out and since:
            seen = f"an operator was told that {reset} was withdrawn, and {since} were carried out"
            self._history.violated(_FATE, f"the truth about the reset of partition {partition}", seen)

    # ------------------------------------------------------------------ logs

    def check(self, logs: Sequence[FinalLog]) -> Iterator[Violation]:
        """Compare each partition's log with its resets."""
        for log in logs:
            done = self.carried_out[log.partition]
            for place, each in enumerate(done):
                yield from self._kept(log, each, [later.kept for later in done[place + 1 :]])
                yield from self._given_up(log, each)
            yield from self._records(log, [each.reset for each in done])

    def _kept(self, log: FinalLog, done: CarriedOut, later: list[TransactionId]) -> Iterator[Violation]:
        """P1: as far as a reset, and those after it, had to keep the log, it is byte by byte what it was before."""
        last = min([done.kept, *later])
        there = {batch.first: bytes(batch.view) for batch in log.batches}
        for batch in done.before.batches:
            if batch.last <= last and there.get(batch.first) != bytes(batch.view):
                expected = f"partition {log.partition} up to {last} as it was before the reset to {done.reset.to}"
                yield Violation(_DURABILITY, expected, f"ids {batch.first} to {batch.last} are others, or missing")
                return

    def _given_up(self, log: FinalLog, done: CarriedOut) -> Iterator[Violation]:
        """P4: above a reset there is nothing that was written before it."""
        for batch in log.batches:
            if batch.first > done.reset.to and batch.session < done.reset.session:
                expected = f"nothing above {done.reset.to} from before session {done.reset.session}, which has reset it"
                seen = f"ids {batch.first} to {batch.last} of session {batch.session} in partition {log.partition}"
                yield Violation(_NO_DIRTY_READ, expected, seen)
                return

    def _records(self, log: FinalLog, done: Sequence[HeadReset]) -> Iterator[Violation]:
        """P13: the log tells of each reset, once: right after it, or in the record of a later one at least as low."""
        expected: dict[TransactionId, dict[str, Any]] = {}
        for place, reset in enumerate(done):
            if all(later.to > reset.to for later in done[place + 1 :]):
                earlier = [_document(each) for each in done[:place] if each.to >= reset.to]
                expected[reset.to + 1] = {**_document(reset), "earlier": earlier}
        found = {
            transaction.id: transaction
            for transaction in log.transactions
            if transaction.own and transaction.header == OwnKind.RESET_HEAD
        }
        for id in sorted({*expected, *found}):
            record = found.get(id)
            if record is None:
                there = describe(log.transactions[id]) if id < len(log) else f"a log that ends at {len(log) - 1}"
                wanted = f"the record {expected[id]} at {id} of partition {log.partition}"
                yield Violation(_FAIL_SAFE, wanted, there)
            elif _read(record.data) != expected.get(id):
                wanted = f"the record {expected.get(id)} at {id} of partition {log.partition}"
                yield Violation(_FAIL_SAFE, wanted, bytes(record.data).decode(errors="replace"))


def _read(record: bytes) -> object:
    """Return what a record says; an empty text for a damaged one."""
    try:
        return json.loads(record)
    except ValueError:
        return ""


def _is_same(one: HeadReset, other: HeadReset) -> bool:
    """Whether two resets are the same decision, whatever has come of it."""
    return (one.to, one.source, one.known, one.asked_us) == (other.to, other.source, other.known, other.asked_us)


def _done(value: PartitionValue) -> list[HeadReset]:
    return [reset for reset in value.resets if reset.session != NO_SESSION]


def _document(reset: HeadReset) -> dict[str, Any]:
    """Return the JSON fields with which the log's record has to describe this reset, without `earlier`.

    `docs/decisions/0038` says when the log gets this record.
    """
    return {
        "to": reset.to,
        "given_up": [reset.to + 1, reset.known] if reset.known > reset.to else [],
        "source": reset.source,
        "session": reset.session,
        "asked_us": reset.asked_us,
    }
