"""The lock table: never below the truth, and above it about as seldom as three places can be."""

from __future__ import annotations

import random
from hashlib import blake2b
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.server.protocol.locktable import LockTable
from polonaise.terms import LockMode

WRITE = LockMode.WRITE


def passes(table: LockTable, lock: int, mark: int, transaction: int) -> bool:
    """Whether a transaction with one write lock is let in. A refusal names the estimate."""
    estimate = table.estimate(lock)
    refused = table.pass_each([lock], bytes([WRITE]), [1], [mark], transaction)
    assert refused == ([] if estimate <= mark else [(0, estimate)])
    return not refused


steps = st.lists(
    st.tuples(st.integers(0, 12), st.integers(-1, 60), st.booleans()),
    max_size=60,
)


@given(entries=st.sampled_from([1, 2, 7, 16, 100]), start=st.integers(-1, 5), taken=steps)
def test_an_estimate_is_never_below_the_last_that_raised_the_lock(
    entries: int, start: int, taken: list[tuple[int, int, bool]]
) -> None:
    table, truth = LockTable(start, entries), {}
    for transaction, (name, mark, checked) in enumerate(taken, start + 1):
        lock = name * 0x0123456789ABCDEF % 2**64
        assert table.estimate(lock) >= truth.get(lock, start)
        if checked:
            passed = passes(table, lock, mark, transaction)
            assert not passed or truth.get(lock, start) <= mark  # a stale one never passes
        else:
            table.raise_to(lock, transaction)
            passed = True
        if passed:
            truth[lock] = transaction
    for lock, transaction in truth.items():
        assert table.estimate(lock) >= transaction


transactions = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 8), st.sampled_from(LockMode)), max_size=3), st.integers(-1, 12)),
    max_size=12,
)
one_write_each = st.lists(
    st.tuples(st.integers(0, 8).map(lambda lock: [(lock, LockMode.WRITE)]), st.integers(-1, 12)), max_size=12
)


@given(
    entries=st.sampled_from([1, 2, 3, 100]),
    start=st.integers(-1, 2),
    given=st.one_of(transactions, one_write_each),
)
def test_many_transactions_pass_the_lock_table_as_they_would_one_by_one(
    entries: int, start: int, given: list[tuple[list[tuple[int, LockMode]], int]]
) -> None:
    table, alone = LockTable(start, entries), LockTable(start, entries)
    refused, transaction = [], start + 1
    for position, (held, mark) in enumerate(given):
        estimate = max((alone.estimate(lock) for lock, mode in held if mode != LockMode.APPEND), default=-1)
        if estimate > mark:
            refused.append((position, estimate))
            continue
        for lock, mode in held:
            if mode != LockMode.READ:
                alone.raise_to(lock, transaction)
        transaction += 1
    locks = [lock for held, _ in given for lock, _ in held]
    modes = bytes(mode for held, _ in given for _, mode in held)
    ends = list(accumulate(len(held) for held, _ in given))
    assert table.pass_each(locks, modes, ends, [mark for _, mark in given], start + 1) == refused
    assert [table.estimate(lock) for lock in range(9)] == [alone.estimate(lock) for lock in range(9)]


def test_a_new_session_takes_everything_before_it_for_raised() -> None:
    table = LockTable(41, 1000)
    assert {table.estimate(lock) for lock in range(2000)} == {41}


def test_a_table_is_made_only_for_many_locks_and_knows_what_was_raised_before() -> None:
    table = LockTable(9)
    locks = hashed(40_000)
    for transaction, lock in enumerate(locks[:30_000], 10):
        assert passes(table, lock, 9, transaction)
    assert len(table._entries) == 0
    assert not passes(table, locks[0], 9, 50_000)
    for transaction, lock in enumerate(locks[30_000:], 50_000):
        table.raise_to(lock, transaction)
    assert len(table._entries) == 1 << 20
    assert all(table.estimate(lock) >= transaction for transaction, lock in enumerate(locks[:30_000], 10))
    assert table.estimate(1) == 9


def test_what_is_equal_to_the_mark_passes_and_what_is_above_does_not() -> None:
    table = LockTable(-1, 1 << 12)
    assert passes(table, 5, -1, 10)
    assert not passes(table, 5, 9, 11)
    assert table.estimate(5) == 10
    assert passes(table, 5, 10, 11)
    assert table.estimate(5) == 11


def test_a_refused_write_leaves_the_table_as_it_was() -> None:
    table = LockTable(7, 64)
    assert not passes(table, 3, 6, 100)
    assert all(table.estimate(lock) == 7 for lock in range(500))


def false_conflicts(entries: int, raised: list[int], asked: list[int]) -> float:
    table = LockTable(-1, entries)
    for lock in raised:
        table.raise_to(lock, 0)
    return sum(table.estimate(lock) >= 0 for lock in asked) / len(asked)


def ideal(entries: int, raised: int) -> float:
    """What three independent places for each lock would give."""
    return float((1 - (1 - 1 / entries) ** (3 * raised)) ** 3)


def hashed(count: int) -> list[int]:
    return [int.from_bytes(blake2b(str(n).encode(), digest_size=8).digest(), "little") for n in range(count)]


def drawn(count: int) -> list[int]:
    source = random.Random(5)
    return [source.getrandbits(64) for _ in range(count)]


@pytest.mark.parametrize("entries", [1_000, 1_024, 4_096, 5_000, 30_000, 1 << 15, 65_537])
@pytest.mark.parametrize("load", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("locks_of", [hashed, drawn], ids=["hash", "random"])
def test_false_conflicts_are_as_seldom_as_three_independent_places_make_them(
    entries: int, load: float, locks_of: object
) -> None:
    count, asked = int(entries * load), 20_000
    locks = locks_of(count + asked)  # type: ignore[operator]
    expected = ideal(entries, count)
    noise = 4 * (expected / asked) ** 0.5
    assert false_conflicts(entries, locks[:count], locks[count:]) <= 1.3 * expected + noise


def test_the_locks_kept_one_by_one_enter_the_table_in_the_order_in_which_they_were_raised() -> None:
    table = LockTable(-1, 64)  # two locks are kept one by one
    one, two, three = 0, 64, 1
    table.raise_to(one, 1)
    table.raise_to(two, 2)
    table.raise_to(one, 3)
    table.raise_to(three, 4)
    assert not table.exact
    assert set(table._places(one)) & set(table._places(two)), "they share a place"
    assert [table.estimate(each) for each in (one, two, three)] == [3, 2, 4]
    assert min(table._entries[place] for place in table._places(one)) == 3, "the later one is not overwritten"
