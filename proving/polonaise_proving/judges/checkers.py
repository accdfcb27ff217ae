"""The checkers: compare the log at the end of a schedule with its history, promise by promise.

The promises (P1, P2, …) are those of `docs/architecture.md`. A checker knows what was asked, told and seen, and what
the batches say; it knows nothing of how the cluster works, so that it can't share its mistakes. Each yields a
`Violation` for everything that it finds broken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

from polonaise.log import registers
from polonaise.terms import LockMode, PartitionId, TransactionId
from polonaise_proving.judges.moments import one_holder
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.observations import (
    ACCOUNT_START,
    COUNT,
    MOVE,
    PRODUCED,
    Fate,
    History,
    Kind,
    Try,
    Violation,
    describe,
)

Checker = Callable[[FinalLog, History], Iterator[Violation]]
_SLACK_US: Final = 2_000_000
"""How far commit times may be off besides the bound: what clocks that are right differ by, in microseconds."""


def check(logs: Sequence[FinalLog], history: History) -> list[Violation]:
    """Run every checker on the log of each partition. Return all violations, those noted during the run first."""
    violations = list(history.violations)
    for log in logs:
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


# ------------------------------------------------------------------ P1, P2, P4: what was seen and told is there


def seen_is_there(log: FinalLog, history: History) -> Iterator[Violation]:
    """P4: every transaction that a client was given had been committed, so the final log has it, unchanged."""
    for transaction, seen in sorted(history.seen[log.partition].items()):
        if transaction >= len(log):
            yield Violation(
                "P4 no dirty read", f"a log that ends at {len(log) - 1}", f"{transaction}: {describe(seen)}"
            )
        elif log.transactions[transaction] != seen:
            there = describe(log.transactions[transaction])
            yield Violation("P2 agreement", f"{there} at {transaction}", f"{describe(seen)} was given to somebody")


def left_out_is_own(log: FinalLog, history: History) -> Iterator[Violation]:
    """P3: readers are given every transaction of an application; those left out are the library's own."""
    for transaction, who in sorted(history.left_out[log.partition].items()):
        if transaction < len(log) and not log.transactions[transaction].own:
            there = describe(log.transactions[transaction])
            yield Violation("P3 order and density", f"{there} at {transaction} to be given", f"{who} was not given it")


def told_is_there(log: FinalLog, history: History) -> Iterator[Violation]:
    """P1: every append that an application was told is committed is in the log, under its ids and with its bytes."""
    for attempt in history.tries:
        if attempt.partition != log.partition or attempt.fate is not Fate.COMMITTED:
            continue
        for place, data in enumerate(attempt.bodies):
            transaction = attempt.id + place
            if transaction >= len(log):
                yield Violation("P1 durability", str(attempt), f"the log ends at {len(log) - 1}")
            elif log.transactions[transaction].data != data:
                yield Violation("P1 durability", str(attempt), f"{describe(log.transactions[transaction])} there")


# ------------------------------------------------------------------ P3: order


def order(log: FinalLog, history: History) -> Iterator[Violation]:
    """P3: ids are dense and in commit order; times, sessions and generations never decrease. P2: CRCs make a chain."""
    following = 0
    for batch in log.batches:
        if batch.first != following:
            yield Violation("P3 order and density", f"a batch from {following}", f"one from {batch.first}")
        following = batch.last + 1
    for before, after in pairwise(log.batches):
        for field in ("commit_time_us", "session", "generation"):
            if getattr(after, field) < getattr(before, field):
                seen = f"{getattr(before, field)} before {after.first} and {getattr(after, field)} from it on"
                yield Violation("P3 order and density", f"{field} never to decrease", seen)
        if after.previous_crc != before.crc:
            yield Violation("P2 agreement", f"the batch from {after.first} to name its predecessor", "another CRC")
    for transaction, body in enumerate(log.bodies):
        if body is None or body.number >= len(history.tries):
            continue
        # What was known to be committed before an append was asked for has a smaller id than the append.
        floor = history.tries[body.number].floor
        if transaction <= floor:
            expected = f"ids in commit order: {floor} was known before try {body.number} was made"
            yield Violation("P3 order and density", expected, f"it got {transaction}")


# ------------------------------------------------------------------ P5: serializability


def locks(log: FinalLog, history: History) -> Iterator[Violation]:
    """P5: by the evidence in the batches, no lock that a transaction checked was raised between its mark and its id."""
    if len(log.marks) != len(log):
        yield Violation("P5 serializability", "evidence in every batch", f"{len(log.marks)} of {len(log)} transactions")
        return
    raised: dict[int, TransactionId] = {}
    for first, stop in _groups(log):
        mark = min(log.marks[first:stop])  # a group is judged by the oldest state that any part of it was built on
        # All are checked before any of them raises: a group does not conflict with itself.
        for transaction in range(first, stop):
            for lock, mode in log.locks[transaction]:
                if mode != LockMode.APPEND and raised.get(lock, -1) > mark:
                    seen = f"{transaction} was built on {mark}, and {raised[lock]} raised lock {lock:#x}"
                    yield Violation("P5 serializability", f"nothing between (partition {log.partition})", seen)
        for transaction in range(first, stop):
            for lock, mode in log.locks[transaction]:
                if mode != LockMode.READ:
                    raised[lock] = transaction


def _groups(log: FinalLog) -> Iterator[tuple[TransactionId, TransactionId]]:
    """Yield the range (first id, id after the last) of each group, and of each single transaction."""
    first = 0
    for transaction in range(1, len(log) + 1):
        here, before = log.bodies[transaction] if transaction < len(log) else None, log.bodies[transaction - 1]
        if here is None or before is None or here.number != before.number:
            yield first, transaction
            first = transaction


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


def bank(log: FinalLog, history: History) -> Iterator[Violation]:
    """P5: every transfer was built on the balances that its accounts had just before it, and no balance is negative."""
    balances: dict[int, int] = {}
    for transaction, body in enumerate(log.bodies):
        if body is None or body.kind is not Kind.MOVE:
            continue
        source, target, amount, source_seen, target_seen = MOVE.unpack_from(body.rest)
        source_held, target_held = balances.get(source, ACCOUNT_START), balances.get(target, ACCOUNT_START)
        if (source_held, target_held) != (source_seen, target_seen):
            seen = f"the transfer {transaction} was built on {source_seen} and {target_seen}"
            yield Violation("P5 serializability", f"balances {source_held} and {target_held}", seen)
        balances[source], balances[target] = source_held - amount, target_held + amount
        if balances[source] < 0:
            yield Violation("P5 serializability", "no negative balance", f"{balances[source]} after {transaction}")


def counters(log: FinalLog, history: History) -> Iterator[Violation]:
    """P5: each step of a counter, made by compare-and-set of a register, is in the log once and in order."""
    for seen, expected in _out_of_order(log, Kind.COUNT, COUNT, "counter", first=1):
        yield Violation("P5 serializability", f"{expected} next", seen)


def producers(log: FinalLog, history: History) -> Iterator[Violation]:
    """P6: the numbers of an idempotent producer are in the log once each, in order, without gaps."""
    for seen, expected in _out_of_order(log, Kind.PRODUCED, PRODUCED, "producer", first=0):
        yield Violation("P6 fate", f"{expected} next", seen)


def _out_of_order(log: FinalLog, kind: Kind, fields: Struct, name: str, first: int) -> Iterator[tuple[str, str]]:
    """Yield the number seen and the one expected, wherever numbers of a counter or producer are not consecutive."""
    following: dict[int, int] = {}
    for transaction, body in enumerate(log.bodies):
        if body is None or body.kind is not kind:
            continue
        owner, number = fields.unpack_from(body.rest)
        if number != following.get(owner, first):
            yield f"{number} at {transaction}", f"number {following.get(owner, first)} of {name} {owner}"
        following[owner] = number + 1


def answers(log: FinalLog, history: History) -> Iterator[Violation]:
    """P2: every answer was true of the log: the mark was reached, the register had the value.

    The value may be that of any moment from the answer's floor on. P4: no mark is above the end of the log.
    """
    stages = log.registers_after()
    ends = [end for end, _ in stages]
    for answer in history.answers:
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
    for listing in history.listings:
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


# ------------------------------------------------------------------ P6, P9, P10: fates, groups, bytes


def fates(log: FinalLog, history: History) -> Iterator[Violation]:
    """P6: what was told of an append is true. P9: a group is in the log whole and in one batch, or not at all.

    P10: every transaction in the log is one that an application wrote, or the library's own.
    """
    by_try: dict[int, list[TransactionId]] = {}
    for transaction, body in enumerate(log.bodies):
        if log.transactions[transaction].own:
            continue
        if body is None or body.number >= len(history.tries):
            seen = describe(log.transactions[transaction])
            yield Violation("P10 corruption", "only what an application wrote", f"{seen} at {transaction}")
        else:
            by_try.setdefault(body.number, []).append(transaction)
    for attempt in history.tries:
        if attempt.partition == log.partition:
            yield from _fate(log, attempt, by_try.get(attempt.number, []))


def reasons(log: FinalLog, history: History) -> Iterator[Violation]:
    """P6: the id that a lock conflict named is in the log, above the mark that the append was built on."""
    for attempt in history.tries:
        if attempt.partition != log.partition or attempt.rests_on is None:
            continue
        if attempt.rests_on >= len(log) or (attempt.mark is not None and attempt.rests_on <= attempt.mark):
            expected = f"a conflict with an id of the log, which ends at {len(log) - 1}, above {attempt.mark}"
            yield Violation("P6 fate", expected, f"{attempt}, resting on {attempt.rests_on}")


def _fate(log: FinalLog, attempt: Try, ids: list[TransactionId]) -> Iterator[Violation]:
    if attempt.fate in (Fate.FAILED, Fate.GIVEN_UP) and ids:
        yield Violation("P6 fate", str(attempt), f"it is in the log as {ids}")
    if attempt.fate is Fate.COMMITTED and ids[:1] != [attempt.id]:
        yield Violation("P6 fate", str(attempt), f"it is in the log as {ids}")
    if not ids:
        return
    first = ids[0]
    if ids != list(range(first, first + attempt.count)):
        promise = "P6 fate" if attempt.count == 1 else "P9 all or nothing"
        yield Violation(promise, f"{attempt.count} transactions, once: {attempt}", f"it is in the log as {ids}")
        return
    if log.batch_places[first] != log.batch_places[ids[-1]]:
        yield Violation("P9 all or nothing", "a group in one batch", f"ids {ids} of {attempt} are in several")
    if [log.transactions[transaction].data for transaction in ids] != attempt.bodies:
        yield Violation("P10 corruption", f"the bodies of {attempt}", f"other bytes at {ids}")
    if attempt.position is not None and first != attempt.position:
        yield Violation("P6 fate", f"{attempt} at the demanded position {attempt.position}", f"it got {first}")


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
    seen_is_there,
    left_out_is_own,
    told_is_there,
    order,
    locks,
    evidence,
    bank,
    counters,
    answers,
    listings,
    fates,
    reasons,
    producers,
)
