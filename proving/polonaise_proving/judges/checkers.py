"""The checkers: compare the log at the end of a schedule with what is on record of a schedule alone.

They look at what real processes do not note: marks and locks as applications gave them, answers and listings, what
readers were not given, copies on disks and true times. `partitions` judges what every run has on record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from polonaise.log import registers
from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.judges.moments import one_holder
from polonaise_proving.judges.partitions import JUDGES_OF_PARTITIONS
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import History, Kind, Listing, ProvedAnswer, describe
from polonaise_proving.record.schedulerecord import ScheduleRecord

Checker = Callable[[FinalLog, History], Iterator[Violation]]
_SLACK_US: Final = 2_000_000
"""How far commit times may be off besides the bound: what clocks that are right differ by, in microseconds."""


def check(logs: Sequence[FinalLog], history: History) -> list[Violation]:
    """Run every judge on the record of each partition. Return all violations, those noted during the run first."""
    violations = list(history.violations)
    for log in logs:
        record = ScheduleRecord(log, history)
        for judge in JUDGES_OF_PARTITIONS:
            violations.extend(judge(record))
        for checker in CHECKERS:
            violations.extend(checker(log, history))
    for taken in history.leases_taken:
        violations.extend(one_holder(taken))
    return violations


def check_replicas(log: FinalLog, replicas: Sequence[DiskReplica], spoilt: set[str]) -> Iterator[Violation]:
    """P2: replicas agree byte by byte.

    A replica whose disk was damaged (`spoilt`) may lack batches, but holds none other than the log's. The other
    replicas hold all of the log that is not trimmed (P1), and can be read without damage (P10).
    """
    batches = {batch.first: batch for batch in log.batches}
    for replica in replicas:
        for batch in replica.batches:
            in_log = batches.get(batch.first)
            if in_log is None or bytes(in_log.view) != bytes(batch.view):
                seen = f"{replica.name} holds ids {batch.first} to {batch.last} with CRC {batch.crc:#010x}"
                yield Violation("P2 agreement", f"the log's own bytes in partition {log.partition}", seen)
        if replica.name in spoilt:
            continue
        if replica.bad:
            yield Violation("P10 corruption", f"{replica.name}, which was never damaged, to read", replica.bad)
        elif len(replica.batches) != sum(batch.first >= replica.first for batch in log.batches):
            seen = f"{replica.name} ends at {replica.last}"
            yield Violation("P1 durability", f"partition {log.partition} up to {len(log) - 1}", seen)


def left_out_is_own(log: FinalLog, history: History) -> Iterator[Violation]:
    """P3: readers are given every transaction of an application; those left out are the library's own."""
    for transaction, who in sorted(history.left_out[log.partition].items()):
        if transaction < len(log) and not log.transactions[transaction].own:
            there = describe(log.transactions[transaction])
            yield Violation("P3 order and density", f"{there} at {transaction} to be given", f"{who} was not given it")


def floors(log: FinalLog, history: History) -> Iterator[Violation]:
    """P3: what was known to be committed before an append was asked for has a smaller id than the append."""
    for transaction, body in enumerate(log.bodies):
        if body is not None and body.number < len(history.tries):
            floor = history.tries[body.number].floor
            if transaction <= floor:
                expected = f"ids in commit order: {floor} was known before try {body.number} was made"
                yield Violation("P3 order and density", expected, f"it got {transaction}")


# ------------------------------------------------------------------ P5: serializability


def evidence(log: FinalLog, history: History) -> Iterator[Violation]:
    """P5: the mark and the locks in the log's evidence are those with which the application made the try."""
    for transaction, body in enumerate(log.bodies):
        if body is None or body.number >= len(history.tries) or transaction >= len(log.marks):
            continue
        attempt = history.tries[body.number]
        if attempt.mark is None:
            continue
        mark, locks = attempt.judged_by(body.place)
        if log.marks[transaction] != mark or log.locks[transaction] != locks:
            seen = f"mark {log.marks[transaction]} and locks {log.locks[transaction]} at {transaction}"
            yield Violation("P5 serializability", f"mark {mark} and locks {locks} of {attempt}", seen)


def counters(log: FinalLog, history: History) -> Iterator[Violation]:
    """P5: each step of a counter, made by compare-and-set of a register, is in the log once and in order."""
    for seen, expected in _out_of_order(log, Kind.COUNT, "counter", first=1):
        yield Violation("P5 serializability", f"{expected} next", seen)


def producers(log: FinalLog, history: History) -> Iterator[Violation]:
    """P6: the numbers of an idempotent producer are in the log once each, in order, without gaps."""
    for seen, expected in _out_of_order(log, Kind.PRODUCED, "producer", first=0):
        yield Violation("P6 fate", f"{expected} next", seen)


def _out_of_order(log: FinalLog, kind: Kind, name: str, first: int) -> Iterator[tuple[str, str]]:
    """Yield the number seen and the one expected, wherever numbers of a counter or producer are not consecutive."""
    following: dict[int, int] = {}
    for transaction, body in enumerate(log.bodies):
        if body is None or (said := body.fields(kind)) is None:
            continue
        owner, number = said
        if number != following.get(owner, first):
            yield f"{number} at {transaction}", f"number {following.get(owner, first)} of {name} {owner}"
        following[owner] = number + 1


def answers(log: FinalLog, history: History) -> Iterator[Violation]:
    """P2: every answer was true of the log: the mark was reached, the register had the value.

    The value may be that of any moment from the answer's floor on. P4: no mark is above the end of the log.
    """
    stages = log.registers_after()
    ends = [end for end, _ in stages]
    for answer in history.noted(ProvedAnswer):
        if answer.partition != log.partition:
            continue
        if answer.mark is not None:
            if answer.mark >= len(log):
                seen = f"{answer.client} was answered at {answer.mark}"
                yield Violation("P4 no dirty read", f"a log that ends at {len(log) - 1}", seen)
            continue
        possible = [values.get(answer.key) for _, values in stages[bisect_right(ends, answer.floor) - 1 :]]
        if answer.value not in possible:
            seen = f"{answer.client} was told {answer.value!r}"
            yield Violation("P2 agreement", f"register {answer.key!r} = one of {possible} from {answer.floor} on", seen)


def listings(log: FinalLog, history: History) -> Iterator[Violation]:
    """P2: each page of a listing has all registers of one moment, and no page is older than the one before it."""
    stages = log.registers_after()
    ends = [end for end, _ in stages]
    count = history.listing_count_max
    for listing in history.noted(Listing):
        if listing.partition != log.partition:
            continue
        stage, first = bisect_right(ends, listing.floor) - 1, listing.prefix
        # A page that is full says nothing about what follows, so an empty one comes behind a last page that is full.
        for start in range(0, len(listing.registers) + 1, count):
            page = listing.registers[start : start + count]
            last = page[-1][0] if len(page) == count else None
            while stage < len(stages) and _listed(stages[stage][1], listing.prefix, first, last) != page:
                stage += 1
            if stage == len(stages):
                expected = f"registers {listing.prefix!r}… from {first!r} on as at a moment from {listing.floor} on"
                yield Violation("P2 agreement", expected, f"{listing.client} was told {page}")
                break
            first = registers.after(last) if last is not None else first


def _listed(
    values: Mapping[bytes, bytes], prefix: bytes, first: bytes, last: bytes | None
) -> list[tuple[bytes, bytes]]:
    keys = [key for key in sorted(values) if key.startswith(prefix) and key >= first and (last is None or key <= last)]
    return [(key, values[key]) for key in keys]


# ------------------------------------------------------------------ P6, P10: bytes, places, reasons


def written(log: FinalLog, history: History) -> Iterator[Violation]:
    """P10: what is in the log of an append are its bodies. P6: they are at the position that it demanded."""
    for transaction, body in enumerate(log.bodies):
        if body is None or body.number >= len(history.tries) or log.transactions[transaction].own:
            continue
        attempt, data = history.tries[body.number], log.transactions[transaction].data
        if body.place >= attempt.count or data != attempt.bodies[body.place]:
            yield Violation("P10 corruption", f"the bodies of {attempt}", f"other bytes at {transaction}")
        elif attempt.position is not None and transaction - body.place != attempt.position:
            seen = f"it got {transaction - body.place}"
            yield Violation("P6 fate", f"{attempt} at the demanded position {attempt.position}", seen)


def reasons(log: FinalLog, history: History) -> Iterator[Violation]:
    """P6: the id that a lock conflict named is in the log, above the mark that the append was built on."""
    for attempt in history.tries:
        if attempt.partition != log.partition or attempt.rests_on is None:
            continue
        if attempt.rests_on >= len(log) or (attempt.mark is not None and attempt.rests_on <= attempt.mark):
            expected = f"a conflict with an id of the log, which ends at {len(log) - 1}, above {attempt.mark}"
            yield Violation("P6 fate", expected, f"{attempt}, resting on {attempt.rests_on}")


class CommitTimes:
    """Notes when it was first known that something is committed, and compares commit times with that."""

    def __init__(self, history: History, partitions: int, off_s_max: float) -> None:
        """`history.true_us` tells the true time; commit times may be off by `off_s_max` seconds."""
        self._history = history
        self._off_us = int(off_s_max * 1e6) + _SLACK_US
        self._known: list[list[tuple[TransactionId, int]]] = [[] for _ in range(partitions)]
        """By partition: ids, rising, each with the true time at which somebody first knew that it is committed. Of the
        log as it was after `_resets`."""
        self._resets = [0] * partitions
        """By partition: the resets of the head that `_known` was cut by."""
        history.told_checks.append(self._told)

    def _told(self, partition: PartitionId) -> None:
        self._known_in(partition).append((self._history.told[partition], self._history.true_us()))

    def _known_in(self, partition: PartitionId) -> list[tuple[TransactionId, int]]:
        """Return what is known of a partition, without what resets of its head have given up: that was another log."""
        known, kept = self._known[partition], self._history.kept_by_resets[partition]
        if (before := self._resets[partition]) < len(kept):
            self._resets[partition] = len(kept)
            del known[bisect_left(known, (min(kept[before:]) + 1, 0)) :]
        return known

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """P3: each commit time lies between the append and its commit, as far as clocks may be off."""
        off_us = self._off_us
        known, latest_us = self._known_in(log.partition), 0
        for batch in log.batches:
            place = bisect_left(known, (batch.last, 0))
            if place < len(known) and batch.commit_time_us > known[place][1] + off_us:
                ahead_s = (batch.commit_time_us - known[place][1]) / 1e6
                seen = f"{batch.first} to {batch.last} were committed {ahead_s:.0f} s after somebody knew of it"
                yield Violation("P3 order and density", "commit times near the true time", seen)
            for transaction in range(batch.first, batch.last + 1):
                body = log.bodies[transaction]
                if body is not None and body.number < len(self._history.tries):
                    latest_us = max(latest_us, self._history.tries[body.number].asked_us)
            if batch.commit_time_us < latest_us - off_us:
                behind_s = (latest_us - batch.commit_time_us) / 1e6
                seen = f"{batch.first} to {batch.last} were committed {behind_s:.0f} s before they were appended"
                yield Violation("P3 order and density", "commit times near the true time", seen)


CHECKERS: Final[tuple[Checker, ...]] = (
    left_out_is_own,
    floors,
    evidence,
    counters,
    answers,
    listings,
    written,
    reasons,
    producers,
)
