"""The production's player delivers each entry once, in order, in every state within these bounds; and the model notices
when it does not."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from polonaise_proving.model.player import (
    PRODUCTION,
    QUICK,
    SHORT,
    PlayerBounds,
    PlayerExploration,
    PlayerWorld,
    mutated,
)
from polonaise_proving.mutations.known import MUTATIONS


@pytest.mark.slow
@pytest.mark.parametrize("bounds", QUICK, ids=lambda bounds: bounds.name)
def test_each_target_gets_each_entry_once_in_every_state(bounds: PlayerBounds) -> None:
    explored = PlayerExploration(PRODUCTION, bounds).run()
    assert not explored.broken
    assert explored.states > 1_000


@pytest.mark.exhaustive("polonaise.player.protocol")  # of bounds
@pytest.mark.slow
@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_each_target_gets_each_entry_once_further_on(bounds: PlayerBounds) -> None:
    explored = PlayerExploration(PRODUCTION, bounds).run()
    assert not explored.broken
    assert explored.states > 500


@pytest.mark.parametrize("seed", range(60))
def test_each_target_gets_each_entry_once_on_a_long_way_of_many_faults(seed: int) -> None:
    """Further than all ways can be walked: three targets, two partitions, everything at once."""
    random = Random(seed)
    letters = ("", "a", "b", "c", "ab", "bc", "abc")
    routes = tuple((*random.choices(letters, k=12), "abc") for _ in range(2))
    bounds = PlayerBounds(
        f"walk {seed}", routes, breaks=8, target_crashes=4, players=3, refusals=5, moves=3,
        queue_entries=random.choice((1, 3, 99)), join=random.choice((0, 2, 99)), batch_entries=random.choice((1, 3)),
        dummies=random.choice((2, 99)), patience_s=random.choice((0.0, inf)),
    )  # fmt: skip
    world = PlayerWorld(PRODUCTION, bounds)
    for _ in range(random.randrange(50, 400)):
        due, events = list(world.due()), list(world.events())
        # Faults now and then: they are most of what is possible.
        if events:
            world.step(random.choice(due if due and random.random() < 0.8 else events))
    world.settle()
    assert all(len(target.applied) == 2 for target in world.targets.values())


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in MUTATIONS.items() if each.model == "player"])
def test_a_broken_player_is_noticed(name: str) -> None:
    """Among them is what the paper's text lacks: no term, no epoch, reads that more than one target gets."""
    changed = mutated(MUTATIONS[name])
    # Most break soon within some bounds: those are not to wait for all states within the bounds before them.
    for states_max in (400, 8_000, 30_000):
        for bounds in (*QUICK, *SHORT):
            if PlayerExploration(changed, bounds).run(states_max=states_max).broken:
                return
    pytest.fail(f"nobody notices {name}")
