"""What each seed draws stays what it was: else the seeds that tests keep, and mutations name, have another course."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulation_seeds import kept

from polonaise.terms import PartitionId
from polonaise_proving.faults import nemesis
from polonaise_proving.faults.nemesis import LATER_ACTIONS, Nemesis, action_names
from polonaise_proving.mutations.known import MUTATIONS
from polonaise_proving.scenarios.schedule import Schedule, run
from polonaise_proving.stages.simulated import World
from polonaise_proving.stages.simulated.cluster import Cluster
from polonaise_proving.work.workload import LATER_STEPS, ClientLife


def named_seeds() -> list[int]:
    """Those that once failed, and those that find a mutation."""
    return sorted({*kept(), *(each.seed for each in MUTATIONS.values() if each.seed is not None)})


def nemesis_of(seed: int) -> Nemesis:
    cluster = SimpleNamespace(world=World(seed), storage=[SimpleNamespace(name=name) for name in "abc"])
    return Nemesis(cast(Cluster, cluster))


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


@pytest.mark.parametrize(("chance", "added"), [(0.0, []), (1.0, ["later"])])
def test_a_later_action_leaves_the_draws_of_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch, chance: float, added: list[str]
) -> None:
    actions, weights, *rest = drawn_by(nemesis_of(5))
    monkeypatch.setattr(nemesis, "LATER_ACTIONS", ((later, chance, 1.0, "later 1"),))
    actions_now, weights_now, *rest_now = drawn_by(nemesis_of(5))
    assert (actions_now, weights_now[: len(weights)]) == (actions + added, weights)
    assert rest_now == rest


def test_what_work_a_seed_draws_is_what_it_always_was() -> None:
    schedules = [Schedule(seed) for seed in range(20)]
    drawn = "\n".join(str((each._drawn_steps()[1], each._random.random())) for each in schedules)
    assert zlib.crc32(drawn.encode()) == 2_588_190_849, (
        "every seed has another course: add a step to `workload.LATER_STEPS`, not to `STEPS` or `RARE_STEPS`"
    )


async def later_step(_: ClientLife, partition: PartitionId) -> None:
    raise AssertionError("only drawn")


@pytest.mark.parametrize(("share", "added"), [(0.0, []), (1.0, ["later_step"])])
def test_a_later_step_leaves_the_draws_of_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch, share: float, added: list[str]
) -> None:
    def drawn() -> tuple[list[str], list[int], float]:
        schedule = Schedule(5)
        steps, weights = schedule._drawn_steps()
        return [step.__name__ for step in steps], weights, schedule._random.random()

    steps, weights, after = drawn()
    monkeypatch.setattr("polonaise_proving.scenarios.schedule.LATER_STEPS", ((later_step, share, 1, "later 1"),))
    assert drawn() == (steps + added, weights + [1] * len(added), after)


def with_it(chance: float, name: str) -> list[int]:
    """The seeds that are named somewhere and have a later action."""
    return [seed for seed in named_seeds() if World(seed).random(name).random() < chance]


def test_no_seed_that_is_kept_has_a_later_action_or_step() -> None:
    assert with_it(0.35, "an action whose name was not chosen")
    later = [(each.__name__, share, name) for each, share, _, name in (*LATER_ACTIONS, *LATER_STEPS)]
    wrong = {what: with_it(share, name) for what, share, name in later}
    assert {name: seeds for name, seeds in wrong.items() if seeds} == {}, "end its name with another number"


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
