"""The schedule of a smoke test follows from its seed, has every kind of fault, and leaves a majority of each group."""

from __future__ import annotations

import pytest

from polonaise_proving.faults.dealing import STEPS_MIN, TOLD_HOLD_S, digest_of, schedule_of
from polonaise_proving.judges.told import is_to_be_told
from polonaise_proving.record.faultkinds import COUNTS, KINDS, PROCESS_KINDS, FaultKind, Telling, group_of

EVERY = frozenset(FaultKind)


def test_the_same_seed_gives_the_same_schedule_and_another_one_another() -> None:
    assert schedule_of(7, 50_000, EVERY) == schedule_of(7, 50_000, list(reversed(FaultKind)))
    assert len({digest_of(schedule_of(seed, 50_000, EVERY)) for seed in range(50)}) == 50


def test_a_schedule_is_the_one_that_it_was() -> None:
    """By this value a report of an earlier version can be repeated."""
    assert digest_of(schedule_of(1, 50_000, EVERY)) == "a243fb891d675a85", (
        "seeds have other schedules: if that is meant, as with a new kind of fault, write the new digest here, and a "
        "line in CHANGELOG.md"
    )


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_can_be_alone(kind: FaultKind) -> None:
    """As long as there are two groups that it may befall, two nodes have it at once."""
    dealt = [fault for step in schedule_of(7, 50_000, {kind}) for fault in step.faults]
    assert {fault.kind for fault in dealt} == {kind}
    assert len(dealt) >= STEPS_MIN


@pytest.mark.parametrize("seed", range(20))
def test_at_most_one_node_of_each_group_has_a_fault_at_a_time(seed: int) -> None:
    for step in schedule_of(seed, 200_000, EVERY):
        touched = [group for fault in step.faults for group in fault.groups]
        assert len(touched) == len(set(touched))
        assert 1 <= len(step.faults) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_steps_are_spread_over_the_whole_run(seed: int) -> None:
    at = [step.at for step in schedule_of(seed, 50_000, EVERY)]
    assert at == sorted(set(at))
    assert 0 < at[0] < 10_000
    assert 40_000 < at[-1] < 50_000


@pytest.mark.parametrize("seed", range(5))
def test_a_long_run_has_every_kind_on_every_group(seed: int) -> None:
    dealt = {(fault.kind, group_of(fault.node)) for step in schedule_of(seed, 150_000, EVERY) for fault in step.faults}
    assert dealt == {(kind, group) for kind, facts in KINDS.items() for group in facts.targets}


@pytest.mark.parametrize("seed", range(100))
def test_fifty_thousand_transactions_have_a_fault_of_each_kind_that_is_judged(seed: int) -> None:
    steps = schedule_of(seed, 50_000, EVERY)
    judged = {
        fault.kind for step in steps if step.hold_s >= TOLD_HOLD_S for fault in filter(is_to_be_told, step.faults)
    }
    assert judged == {kind for kind, facts in KINDS.items() if facts.telling is not Telling.NOTHING}


@pytest.mark.parametrize("seed", range(20))
def test_kinds_that_are_rare_always_last_until_they_are_told(seed: int) -> None:
    for step in schedule_of(seed, 1_000_000, EVERY):
        assert step.hold_s >= TOLD_HOLD_S or not any(KINDS[fault.kind].is_long for fault in step.faults)


@pytest.mark.parametrize("seed", range(5))
def test_many_faults_of_a_long_run_are_over_before_any_deadline(seed: int) -> None:
    assert sum(step.hold_s < TOLD_HOLD_S for step in schedule_of(seed, 1_000_000, EVERY)) > 40


def test_only_the_kinds_that_can_be_inflicted_are_drawn() -> None:
    kinds = {fault.kind for step in schedule_of(3, 200_000, PROCESS_KINDS) for fault in step.faults}
    assert kinds == PROCESS_KINDS


def test_a_short_run_has_some_steps() -> None:
    assert len(schedule_of(1, 100, EVERY)) == STEPS_MIN


def test_faults_name_nodes_that_there_are() -> None:
    for step in schedule_of(4, 200_000, EVERY):
        for fault in step.faults:
            for node in filter(None, (fault.node, fault.other)):
                assert 1 <= int(node.rpartition("-")[2]) <= COUNTS[group_of(node)]
            assert bool(fault.other) == (fault.kind is FaultKind.CUT_PAIR)
