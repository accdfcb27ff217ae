"""What each seed draws stays what it was: else the seeds that tests keep, and mutations name, have another course."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise.terms import PartitionId
from polonaise_proving.faults import nemesis
from polonaise_proving.faults.nemesis import LATER_ACTIONS, LaterAction, Nemesis, action_names
from polonaise_proving.scenarios.schedule import LATER_FEATURES, Schedule, run
from polonaise_proving.stages.simulated import World
from polonaise_proving.stages.simulated.cluster import Cluster
from polonaise_proving.work.workload import LATER_STEPS, ClientLife, LaterStep


def nemesis_of(seed: int, later: int = 0) -> Nemesis:
    cluster = SimpleNamespace(world=World(seed), storage=[SimpleNamespace(name=name) for name in "abc"])
    return Nemesis(cast(Cluster, cluster), later=later)


def drawn_by(of: Nemesis) -> list[Any]:
    return [
        [action.__name__ for action in of._actions],
        [round(weight, 9) for weight in of._weights],
        of._pause_s,
        of._random.random(),
    ]


def test_what_the_nemesis_draws_of_a_seed_is_what_it_always_was() -> None:
    drawn = "\n".join(str(drawn_by(nemesis_of(seed))[1:]) for seed in range(20))
    assert zlib.crc32(drawn.encode()) == 2_345_144_972, (
        "every seed has another course: add an action to `nemesis.LATER_ACTIONS`, not to `ACTIONS`, and draw by "
        "`World.random` with a name of your own"
    )


async def later(_: Nemesis) -> None:
    raise AssertionError("only drawn")


@pytest.mark.parametrize(
    ("chance", "features", "added"), [(0.0, 1, []), (1.0, 1, ["later"]), (1.0, 0, [])], ids=["none", "it", "kept"]
)
def test_a_later_action_leaves_the_draws_of_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch, chance: float, features: int, added: list[str]
) -> None:
    actions, weights, *rest = drawn_by(nemesis_of(5))
    monkeypatch.setattr(nemesis, "LATER_ACTIONS", (LaterAction(1, later, chance, 1.0),))
    actions_now, weights_now, *rest_now = drawn_by(nemesis_of(5, features))
    assert (actions_now, weights_now[: len(weights)]) == (actions + added, weights)
    assert rest_now == rest


def test_what_work_a_seed_draws_is_what_it_always_was() -> None:
    schedules = [Schedule(seed, later=0) for seed in range(20)]
    drawn = "\n".join(str((each._drawn_steps()[1], each._random.random())) for each in schedules)
    assert zlib.crc32(drawn.encode()) == 2_588_190_849, (
        "every seed has another course: add a step to `workload.LATER_STEPS`, not to `STEPS` or `RARE_STEPS`"
    )


async def later_step(_: ClientLife, partition: PartitionId) -> None:
    raise AssertionError("only drawn")


@pytest.mark.parametrize(
    ("share", "features", "added"), [(0.0, 1, []), (1.0, 1, ["later_step"]), (1.0, 0, [])], ids=["none", "it", "kept"]
)
def test_a_later_step_leaves_the_draws_of_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch, share: float, features: int, added: list[str]
) -> None:
    def drawn(later: int) -> tuple[list[str], list[int], float]:
        schedule = Schedule(5, later=later)
        steps, weights = schedule._drawn_steps()
        return [step.__name__ for step in steps], weights, schedule._random.random()

    steps, weights, after = drawn(0)
    monkeypatch.setattr("polonaise_proving.scenarios.schedule.LATER_STEPS", (LaterStep(1, later_step, share, 1),))
    assert drawn(features) == (steps + added, weights + [1] * len(added), after)


def test_each_later_feature_has_a_number_of_its_own_and_runs_have_all() -> None:
    numbers = [each.number for each in (*LATER_ACTIONS, *LATER_STEPS)]
    assert len(set(numbers)) == len(numbers), "give the new one the next number, and raise `schedule.LATER_FEATURES`"
    assert set(numbers) <= set(range(1, LATER_FEATURES + 1)), "raise `schedule.LATER_FEATURES`: no run has the new one"
    assert [each.number for each in LATER_ACTIONS] == sorted(each.number for each in LATER_ACTIONS)
    assert [each.number for each in LATER_STEPS] == sorted(each.number for each in LATER_STEPS)


@pytest.mark.slow
def test_a_seed_with_one_action_alone_has_no_other() -> None:
    for name in action_names():
        of = Schedule(3, only=name).nemesis  # without an object store
        assert {action.__name__ for action in of._actions} <= {name}
    result = run(3, only="crash", record=True)
    said = {line.rpartition("nemesis: ")[2] for line in result.trace if "nemesis: " in line}
    assert (result.failure, said) == ("", {"crash"})


def test_an_action_on_the_object_store_is_left_out_where_there_is_none() -> None:
    result = run(3, only="store_away", record=True)
    assert result.failure == ""
    assert not any("nemesis: " in line for line in result.trace)
