"""The judges of P1 to P6 and P9: one function each over the record of a partition, whichever stage the run was on.

The promises are those of `docs/architecture.md`. A judge knows what was asked, told and given, and what the log holds
in the end. It knows nothing of how the cluster works, so that it can't share its mistakes. Each yields a `Violation`
for everything that it finds broken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import pairwise
from typing import Final

from polonaise.terms import TransactionId
from polonaise_proving.record.bank import Fold
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.partitionrecord import AppendPart, AskedAppend, Fate, PartitionRecord


def durability(record: PartitionRecord) -> Iterator[Violation]:
    """P1: every append that a client was told is committed is in the log, under its ids."""
    parts = record.parts
    for each in record.asked:
        if each.fate is Fate.COMMITTED:
            for place in range(each.size):
                if parts.get(each.id + place) != AppendPart(each.append, place):
                    yield Violation("P1 durability", each.said, _at(record, each.id + place))


def agreement(record: PartitionRecord) -> Iterator[Violation]:
    """P2: whatever anybody was given under an id is what the log holds there."""
    held = record.held
    for who, id, contents in record.given:
        if id in held and held[id] != contents:
            seen = f"{record.described(contents)} was given to {who}"
            yield Violation("P2 agreement", _at(record, id), seen)


def order(record: PartitionRecord) -> Iterator[Violation]:
    """P3: ids are dense; times, sessions and generations never decrease. P2: CRCs make a chain."""
    batches, following = record.batches, 0
    for batch in batches:
        if batch.first != following:
            yield Violation("P3 order and density", f"a batch from {following}", f"one from {batch.first}")
        following = batch.last + 1
    for before, after in pairwise(batches):
        for field in ("commit_time_us", "session", "generation"):
            if getattr(after, field) < getattr(before, field):
                seen = f"{getattr(before, field)} before {after.first} and {getattr(after, field)} from it on"
                yield Violation("P3 order and density", f"{field} never to decrease", seen)
        if after.previous_crc != before.crc:
            yield Violation("P2 agreement", f"the batch from {after.first} to name its predecessor", "another CRC")


def no_dirty_read(record: PartitionRecord) -> Iterator[Violation]:
    """P4: every transaction that anybody was given had been committed, so the log has it in the end."""
    held = record.held
    for who, id, contents in record.given:
        if id not in held:
            seen = f"{who} was given {record.described(contents)}"
            yield Violation("P4 no dirty read", f"id {id} to be in the log", seen)


def serializability(record: PartitionRecord) -> Iterator[Violation]:
    """P5: no transaction was built on stale state: neither by the log's evidence nor by the balances in its body."""
    for stale in record.stale:
        yield Violation("P5 serializability", "nothing that is built on stale state", stale)
    if record.without_evidence:
        seen = f"{record.without_evidence} transactions have none"
        yield Violation("P5 serializability", "evidence in every batch", seen)
    folded = Fold(record.opening_balance)
    for made in record.transfers:
        folded.apply(*made)
    for wrong in folded.wrong:
        yield Violation("P5 serializability", "balances that are the log's", wrong)


def fates(record: PartitionRecord) -> Iterator[Violation]:
    """P6: what was told of an append is true. P9: a group is in the log whole and in one batch, or not at all.

    P10: every transaction in the log is of an append that a client has asked for.
    """
    ids_of: dict[Hashable, list[TransactionId]] = defaultdict(list)
    asked = {each.append: each for each in record.asked}
    for id, part in record.parts.items():
        if part.append in asked:
            ids_of[part.append].append(id)
        else:
            yield Violation("P10 corruption", "only what a client has asked for", _at(record, id))
    starts = sorted(batch.first for batch in record.batches)
    for append, each in asked.items():
        if append in ids_of or each.fate is Fate.COMMITTED:
            yield from _fate(each, ids_of.get(append, []), starts)


def _fate(asked: AskedAppend, ids: list[TransactionId], starts: list[TransactionId]) -> Iterator[Violation]:
    """`starts` has the first id of each batch."""
    is_refused = bool(ids) and asked.fate in (Fate.FAILED, Fate.GIVEN_UP)
    if is_refused or (asked.fate is Fate.COMMITTED and ids[:1] != [asked.id]):
        yield Violation("P6 fate", asked.said, f"it is in the log as {ids}")
    if not ids:
        return
    if ids != list(range(ids[0], ids[0] + asked.size)):
        promise = "P6 fate" if asked.size == 1 else "P9 all or nothing"
        yield Violation(promise, f"{asked.size} transactions, once: {asked.said}", f"it is in the log as {ids}")
    elif bisect_right(starts, ids[0]) != bisect_right(starts, ids[-1]):
        yield Violation("P9 all or nothing", "a group in one batch", f"ids {ids} of {asked.said} are in several")


def _at(record: PartitionRecord, id: TransactionId) -> str:
    held = record.held
    there = record.described(held[id]) if id in held else "nothing"
    return f"{there} at {id} of partition {record.partition}"


PartitionJudge = Callable[[PartitionRecord], Iterator[Violation]]
JUDGES_OF_PARTITIONS: Final[tuple[PartitionJudge, ...]] = (
    durability,
    agreement,
    order,
    no_dirty_read,
    serializability,
    fates,
)
