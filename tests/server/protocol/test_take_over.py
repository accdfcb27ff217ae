"""Who owns what: partitions without a living owner are taken, all others are left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.values import Assignment, Owner
from polonaise.server.assignment import owned_by, take_over


def test_the_first_server_takes_everything_under_the_first_generation() -> None:
    taken = take_over(Assignment(), 1, "a:1", 3, {1})
    assert taken.owners == {partition: Owner(1, "a:1", 1) for partition in range(3)}


def test_what_a_living_server_owns_stays_with_it() -> None:
    held = Assignment({0: Owner(1, "a:1", 4), 1: Owner(2, "b:1", 7)})
    assert take_over(held, 2, "b:1", 2, {1, 2}) == held


def test_what_a_dead_server_owned_is_taken_under_the_next_generation() -> None:
    held = Assignment({0: Owner(1, "a:1", 4), 1: Owner(2, "b:1", 7)})
    taken = take_over(held, 2, "b:1", 2, {2})
    assert taken.owners == {0: Owner(2, "b:1", 5), 1: Owner(2, "b:1", 7)}


def test_a_server_that_nobody_sees_yet_does_not_rob_itself() -> None:
    held = Assignment({0: Owner(3, "c:1", 2)})
    assert take_over(held, 3, "c:1", 1, set()) == held


def test_a_server_is_told_only_of_its_own_partitions() -> None:
    held = Assignment({0: Owner(1, "a:1", 4), 1: Owner(2, "b:1", 7), 2: Owner(1, "a:1", 1)})
    assert sorted(owned_by(held, 1)) == [0, 2]
    assert owned_by(held, 9) == {}


owners = st.builds(Owner, st.integers(1, 4), st.just("x:1"), st.integers(1, 9))


@given(
    held=st.dictionaries(st.integers(0, 7), owners, max_size=8),
    alive=st.sets(st.integers(1, 4)),
    partitions=st.integers(1, 8),
)
def test_afterwards_every_partition_has_one_living_owner_and_generations_only_rise(
    held: dict[int, Owner], alive: set[int], partitions: int
) -> None:
    before = Assignment({partition: owner for partition, owner in held.items() if partition < partitions})
    after = take_over(before, 4, "x:1", partitions, alive)
    assert sorted(after.owners) == list(range(partitions))
    for partition, owner in after.owners.items():
        assert owner.server in alive | {4}
        was = before.owners.get(partition)
        if was is not None and was != owner:
            assert owner.generation == was.generation + 1
            assert was.server not in alive
    assert take_over(after, 4, "x:1", partitions, alive) == after
