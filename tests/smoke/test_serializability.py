"""The check of a log's serializability by its own evidence: what is stale, and what a group may do."""

from __future__ import annotations

import pytest

from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import LockMode
from polonaise_proving.record.serializability import SerializabilityCheck, StaleTransaction

LOCK = 77
WRITES: list[tuple[int, int]] = [(LOCK, LockMode.WRITE)]


def batch(*transactions: tuple[int, int, int], first: int = 10, locks: list[tuple[int, int]] = WRITES) -> Batch:
    """A batch of transactions that are given by client id, sequence and mark; each carries these locks."""
    columns = Columns()
    for client_id, sequence, mark in transactions:
        columns.add(client_id, 1, sequence, 0, b"", client_high_water_mark=mark, locks=locks)
    raw = seal(
        columns, partition=0, first=first, session=1, generation=1, commit_time_us=1, previous_crc=0, evidence=True
    )
    return Batch.parse(raw)


def stale(*batches: Batch) -> list[StaleTransaction]:
    check = SerializabilityCheck()
    for each in batches:
        check.follow(each)
    return check.stale


def test_a_group_whose_transactions_raise_each_other_s_locks_is_not_stale() -> None:
    assert stale(batch((7, 1, 9), (7, 2, 9), (7, 3, 9))) == []


def test_a_group_is_stale_by_what_another_transaction_has_raised_below_it() -> None:
    group = batch((7, 1, 9), (7, 2, 9), first=11)
    assert stale(batch((8, 1, 9)), group) == [StaleTransaction(11, LOCK, 9, 10), StaleTransaction(12, LOCK, 9, 10)]


@pytest.mark.parametrize("second", [(8, 2, 9), (7, 3, 9), (7, 2, 8)], ids=["client", "sequence", "mark"])
def test_transactions_that_can_not_be_of_one_group_are_judged_one_by_one(second: tuple[int, int, int]) -> None:
    assert stale(batch((7, 1, 9), second)) == [StaleTransaction(11, LOCK, second[2], 10)]


def test_a_group_ends_with_its_batch() -> None:
    assert stale(batch((7, 1, 9)), batch((7, 2, 9), first=11)) == [StaleTransaction(11, LOCK, 9, 10)]
