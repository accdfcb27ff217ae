"""Who owns what: each partition has one living owner, servers own equally many, and little moves for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import Assignment, Owner, Registration
from polonaise.server.assignment import Candidate, LivingServers, assign, owned_by


def candidates(*servers: int, settled: bool = True) -> dict[int, Candidate]:
    return {server: Candidate(f"s:{server}", settled) for server in servers}


def owned(*servers: int, generation: int = 1) -> Assignment:
    """Partition 0 is the first server's, partition 1 the second's, and so on."""
    return Assignment({n: Owner(server, f"s:{server}", generation) for n, server in enumerate(servers)})


def servers_of(assignment: Assignment) -> list[int]:
    return [assignment.owners[partition].server for partition in sorted(assignment.owners)]


def test_the_first_server_owns_everything_under_the_first_generation() -> None:
    assert assign(Assignment(), candidates(1), 3) == owned(1, 1, 1)


def test_without_a_server_the_assignment_stays() -> None:
    assert assign(owned(1, 2), {}, 2) == owned(1, 2)


def test_what_a_living_server_owns_stays_with_it_under_its_generation() -> None:
    assert assign(owned(1, 2, generation=4), candidates(1, 2), 2) == owned(1, 2, generation=4)


def test_what_a_dead_server_owned_is_spread_over_the_others_under_the_next_generation() -> None:
    after = assign(owned(1, 1, 2, 2, 3, 3), candidates(2, 3), 6)
    assert servers_of(after) == [2, 3, 2, 2, 3, 3]
    assert [after.owners[n].generation for n in range(6)] == [2, 2, 1, 1, 1, 1]
    assert after.owners[1].address == "s:3"


def test_a_new_server_is_given_its_share_once_it_has_settled() -> None:
    held = owned(1, 1, 1, 1)
    assert assign(held, candidates(1) | candidates(2, settled=False), 4) == held
    after = assign(held, candidates(1, 2), 4)
    assert sorted(servers_of(after)) == [1, 1, 2, 2]


def test_a_server_that_has_not_settled_takes_what_nobody_else_can() -> None:
    assert servers_of(assign(owned(9, 9), candidates(1, settled=False), 2)) == [1, 1]


def test_of_servers_none_of_which_has_settled_the_one_that_owns_goes_on() -> None:
    assert assign(owned(1, 1), candidates(1, 2, settled=False), 2) == owned(1, 1)
    assert servers_of(assign(owned(1, 9), candidates(1, 2, settled=False), 2)) == [1, 1]


def test_servers_that_differ_by_one_partition_give_each_other_nothing() -> None:
    assert assign(owned(1, 1, 2), candidates(1, 2), 3) == owned(1, 1, 2)


def test_a_preferred_partition_goes_where_it_is_preferred_and_another_comes_back_for_it() -> None:
    wishes = candidates(1) | {2: Candidate("s:2", preferred=frozenset({0}))}
    assert servers_of(assign(Assignment(), wishes, 2)) == [2, 1]
    assert servers_of(assign(owned(1, 2), wishes, 2)) == [2, 1]
    assert servers_of(assign(owned(1, 1, 2), wishes, 3)) == [2, 1, 2]


def test_preferences_do_not_disturb_the_balance() -> None:
    wishes = candidates(1) | {2: Candidate("s:2", preferred=frozenset(range(4)))}
    assert sorted(servers_of(assign(owned(1, 1, 1, 1), wishes, 4))) == [1, 1, 2, 2]


def test_a_server_is_told_only_of_its_own_partitions() -> None:
    assert sorted(owned_by(owned(1, 2, 1), 1)) == [0, 2]
    assert owned_by(owned(1, 2, 1), 9) == {}


@st.composite
def clusters(draw: st.DrawFn, *, preferences: bool) -> tuple[Assignment, dict[int, Candidate], int]:
    partitions = draw(st.integers(1, 12))
    ids = st.integers(1, 6)
    owners = st.builds(lambda server, generation: Owner(server, f"s:{server}", generation), ids, st.integers(1, 9))
    held = draw(st.dictionaries(st.integers(0, partitions - 1), owners))
    wishes = st.frozensets(st.integers(0, partitions - 1)) if preferences else st.just(frozenset())
    settled = st.booleans() if preferences else st.just(True)
    living = {
        server: Candidate(f"s:{server}", draw(settled), draw(wishes)) for server in draw(st.sets(ids, min_size=1))
    }
    return Assignment(held), living, partitions


@pytest.mark.slow
@given(clusters(preferences=True))
def test_every_partition_has_one_living_owner_the_balance_holds_and_generations_rise_with_each_move(
    cluster: tuple[Assignment, dict[int, Candidate], int],
) -> None:
    before, living, partitions = cluster
    after = assign(before, living, partitions)
    assert sorted(after.owners) == list(range(partitions))
    for partition, owner in after.owners.items():
        assert owner.server in living
        was = before.owners.get(partition)
        if was is None:
            assert owner.generation == 1
        elif was.server != owner.server:
            assert owner.generation == was.generation + 1
        else:
            assert owner == was
    owning = {owner.server for owner in before.owners.values()} & set(living)
    takers = [server for server, each in living.items() if each.settled] or list(owning) or list(living)
    loads = [len(owned_by(after, server)) for server in living]
    assert max(loads) - min(len(owned_by(after, server)) for server in takers) <= 1
    # Nothing moves again, and the order in which members were listed decides nothing.
    assert assign(after, living, partitions) == after
    assert assign(before, dict(reversed(living.items())), partitions) == after


@pytest.mark.slow
@given(clusters(preferences=False))
def test_no_balanced_assignment_needs_fewer_moves(cluster: tuple[Assignment, dict[int, Candidate], int]) -> None:
    before, living, partitions = cluster
    after = assign(before, living, partitions)
    kept = {server: len(owned_by(before, server)) for server in living}
    least, more = divmod(partitions, len(living))
    # The largest get the places for one more; of each server as much stays as it has places.
    shares = [least + (rank < more) for rank in range(len(living))]
    stay = sum(min(share, load) for share, load in zip(shares, sorted(kept.values(), reverse=True), strict=True))
    moved = sum(
        partition not in before.owners or before.owners[partition].server != owner.server
        for partition, owner in after.owners.items()
    )
    assert moved == partitions - stay


@pytest.mark.slow
@given(clusters(preferences=True))
def test_without_rebalancing_nothing_of_a_living_server_moves(
    cluster: tuple[Assignment, dict[int, Candidate], int],
) -> None:
    before, living, partitions = cluster
    after = assign(before, living, partitions, rebalance=False)
    assert sorted(after.owners) == list(range(partitions))
    for partition, owner in before.owners.items():
        if owner.server in living:
            assert after.owners[partition] == owner


def test_servers_that_differ_on_who_is_dead_undo_nothing_of_each_other() -> None:
    """B is dead. A has seen it, C has not yet: what A gave away C must not give back."""
    held = owned(1, 1, 2, 2, 3, 3)
    by_a = assign(held, candidates(1, 3), 6, rebalance=False)
    assert assign(by_a, candidates(1, 2, 3), 6, rebalance=False) == by_a


# ------------------------------------------------------------------ who lives, and for how long


def members(*servers: int) -> list[Registration]:
    return [Registration(server, f"s:{server}") for server in servers]


def test_partitions_of_living_servers_move_only_after_a_quiet_time() -> None:
    living, held = LivingServers(1, settle_s=10), owned(1, 1)
    for now_s, there, quiet in (
        (0, (1,), False), (9, (1,), False), (10, (1,), True),
        (11, (1, 2), False), (20, (1, 2), False), (21, (1, 2), True),
        (22, (1,), False), (32, (1,), True),
    ):  # fmt: skip
        living.candidates(members(*there), held, now_s)
        assert living.quiet(now_s) is quiet, now_s


def test_a_change_of_the_assignment_begins_the_quiet_time_anew() -> None:
    living = LivingServers(1, settle_s=10)
    living.candidates(members(1, 2), owned(1, 2), 0)
    changed = owned(2, 2)
    living.candidates(members(1, 2), changed, 9)
    assert not living.quiet(18)
    living.candidates(members(1, 2), changed, 18)
    assert living.quiet(19)


def test_the_quiet_time_is_never_shorter_than_that_in_which_servers_may_differ() -> None:
    living, held = LivingServers(1, settle_s=0), owned(1)
    living.candidates(members(1), held, 0)
    assert not living.quiet(LEASE_S - 0.1)
    assert living.quiet(LEASE_S)


def test_a_server_that_was_away_has_to_settle_again() -> None:
    living, held = LivingServers(1, settle_s=10), owned(1)
    assert living.candidates(members(1, 2), held, 0)[2].settled, "it was there before this one"
    living.candidates(members(1), held, 5)
    assert not living.candidates(members(1, 2), held, 6)[2].settled
    assert living.candidates(members(1, 2), held, 16)[2].settled


def test_what_a_server_prefers_is_taken_from_its_registration() -> None:
    living = LivingServers(1, 5.0)
    seen = living.candidates([Registration(1, "s:1"), Registration(2, "s:2", frozenset({3}))], Assignment(), 0.0)
    assert [seen[server].preferred for server in (1, 2)] == [frozenset(), frozenset({3})]


# ------------------------------------------------------------------ servers that can't serve


def unable(server: int, *partitions: int) -> dict[int, Candidate]:
    return {server: Candidate(f"s:{server}", unable=frozenset(partitions))}


def test_what_an_owner_is_unable_to_serve_moves_to_servers_that_are_able() -> None:
    after = assign(owned(1, 1, 2, 3), unable(1, 0, 1) | candidates(2, 3), 4, rebalance=False)
    assert servers_of(after) == [2, 3, 2, 3]
    assert [after.owners[n].generation for n in range(4)] == [2, 2, 1, 1]


def test_nothing_moves_to_a_server_that_is_unable_to_serve_something() -> None:
    assert servers_of(assign(owned(2, 2, 2, 2), unable(1, 7) | candidates(2), 4)) == [2, 2, 2, 2]
    assert servers_of(assign(owned(2, 9, 9, 2), unable(1, 7) | candidates(2), 4)) == [2, 2, 2, 2]


def test_where_nobody_is_able_nothing_moves() -> None:
    held = owned(1, 1, 2, 2)
    assert assign(held, unable(1, 0, 1) | unable(2, 2), 4) == held
    assert assign(held, unable(1, 0, 1), 4, rebalance=False) == assign(held, candidates(1), 4, rebalance=False)
    held = owned(1, 1, 1, 1)
    assert assign(held, unable(1, 0, 1) | unable(2, 2), 4) == held


def test_nothing_moves_to_a_server_that_has_just_said_that_it_is_unable() -> None:
    doubtful = {2: Candidate("s:2", doubtful=True)}
    assert servers_of(assign(owned(1, 1, 3), unable(1, 0) | doubtful | candidates(3), 3)) == [3, 1, 3]
    held = owned(1, 1, 1, 1)
    assert assign(held, unable(1, 0) | doubtful, 4) == held
    assert assign(held, candidates(1) | doubtful, 4) == held


def test_that_a_server_is_unable_is_believed_once_all_could_have_said_the_same() -> None:
    living = LivingServers(1, 10.0)
    members = [Registration(1, "s:1"), Registration(2, "s:2", unable=frozenset({4}))]
    held = Assignment()
    assert not living.candidates(members, held, 50.0)[2].unable
    assert not living.candidates(members, held, 52.0)[2].unable
    assert living.candidates(members, held, 52.0)[2].doubtful
    assert living.candidates(members, held, 53.0)[2].unable == {4}
    assert not living.candidates([members[0], Registration(2, "s:2")], held, 54.0)[2].unable
    assert not living.candidates(members, held, 55.0)[2].unable
