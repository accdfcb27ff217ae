"""How members share partitions: to plus or minus one, with few moves, whoever joins, leaves or looks late."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.protocol.groupleases import NextMove, next_move


def test_one_member_wants_all_and_two_share() -> None:
    assert next_move(4, [1], {}, 1) == NextMove((0, 1, 2, 3), ())
    assert next_move(4, [1, 2], {}, 1) == NextMove((0, 1), ())
    assert next_move(4, [1, 2], {}, 2) == NextMove((2, 3), ())
    assert next_move(4, [], {}, 7) == NextMove((0, 1, 2, 3), ()), "who is not listed yet counts itself"


def test_who_has_too_many_gives_up_the_surplus_and_who_lacks_some_waits_for_them() -> None:
    held = dict.fromkeys(range(5), 1)
    assert next_move(5, [1, 2], held, 1) == NextMove((), (3, 4))
    assert next_move(5, [1, 2], held, 2) == NextMove((), ())
    assert next_move(5, [1, 2], {0: 1, 1: 1, 2: 1}, 2) == NextMove((3, 4), ())


def test_a_partition_of_a_member_that_is_gone_is_not_free_before_its_lease_has_run_out() -> None:
    assert next_move(2, [1], {0: 1, 1: 99}, 1) == NextMove((), ())
    assert next_move(2, [1], {0: 1}, 1) == NextMove((1,), ())


def test_more_members_than_partitions() -> None:
    assert [next_move(2, [1, 2, 3], {}, me).wanted for me in (1, 2, 3)] == [(0,), (1,), ()]
    assert next_move(2, [1, 2, 3], {0: 3, 1: 2}, 1) == NextMove((), ())


@given(st.integers(1, 30), st.integers(1, 9), st.randoms(use_true_random=False))
def test_shares_come_to_rest_from_any_state(partitions: int, members: int, source: random.Random) -> None:
    """Members look one after the other, each at an older state or the present one, and leases keep them apart."""
    here = list(range(members))
    held = {p: source.choice(here) for p in range(partitions) if source.random() < 0.7}
    moved = 0
    for _ in range(8):
        for me in source.sample(here, members):
            before = dict(held)
            move = next_move(partitions, here, before, me)
            assert not set(move.wanted) & before.keys()
            assert all(before[partition] == me for partition in move.surplus)
            for partition in move.surplus:
                del held[partition]
                moved += 1
            for partition in move.wanted:
                held.setdefault(partition, me)
    counts = Counter(dict.fromkeys(here, 0)) + Counter(held.values())
    shares = [counts[member] for member in here]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1
    assert moved <= partitions, "no partition is given up twice"


@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_member_that_joins_moves_no_more_than_its_share(members: int) -> None:
    partitions = 12
    held = {p: p % (members - 1) for p in range(partitions)}
    surplus = [p for me in range(members - 1) for p in next_move(partitions, range(members), held, me).surplus]
    assert len(surplus) in (partitions // members, -(-partitions // members))
