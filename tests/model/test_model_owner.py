"""The production's owner keeps every promise in every state within these bounds, and the model notices when not."""

from __future__ import annotations

import pytest

from polonaise.server.protocol.owner import PartitionOwner
from polonaise_proving.model.decisions import mutated_owner
from polonaise_proving.model.owner import BOUNDS, QUICK, SHORT, OwnerBounds, OwnerExploration
from polonaise_proving.mutations.known import MUTATIONS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bounds", QUICK, ids=lambda bounds: bounds.name)
def test_every_promise_holds_in_every_state(bounds: OwnerBounds) -> None:
    explored = OwnerExploration(PartitionOwner, bounds).run()
    assert not explored.broken
    assert explored.states > 100


@pytest.mark.exhaustive("polonaise.server.protocol")  # of bounds
@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_every_promise_holds_in_every_state_further_on(bounds: OwnerBounds) -> None:
    assert not OwnerExploration(PartitionOwner, bounds).run().broken


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, each in MUTATIONS.items() if each.model == "owner"])
def test_effects_that_change_places_break_a_promise(name: str) -> None:
    changed = mutated_owner(MUTATIONS[name])
    for states_max in (1_000, 10_000, 10**9):
        for bounds in (*QUICK, *SHORT, *BOUNDS):
            if OwnerExploration(changed, bounds).run(states_max=states_max).broken:
                return
    pytest.fail(f"nobody notices {name}")
