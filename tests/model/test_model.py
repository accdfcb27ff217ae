"""The production's decisions keep every promise in every state within these bounds; `make model` goes further."""

from __future__ import annotations

import pytest

from polonaise_proving.model.bounds import SMALL, TINY, ModelBounds
from polonaise_proving.model.decisions import production
from polonaise_proving.model.search import Search

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bounds", TINY, ids=str)
def test_every_promise_holds_in_every_state(bounds: ModelBounds) -> None:
    _explore(bounds)


@pytest.mark.exhaustive("polonaise.server.protocol", "polonaise.storage.protocol")  # of bounds
@pytest.mark.parametrize("bounds", SMALL, ids=str)
def test_every_promise_holds_in_every_state_further_on(bounds: ModelBounds) -> None:
    _explore(bounds)


def _explore(bounds: ModelBounds) -> None:
    result = Search(production(), bounds).run()
    assert result.counterexample is None, f"{result}\n{result.counterexample}"
    assert result.complete


@pytest.mark.parametrize(
    "bounds",
    [
        ModelBounds("owners", batches=1),
        ModelBounds("wiped disk", sessions=2, batches=1, wipes=1),
        ModelBounds("image", sessions=2, batches=1, snapshots=1),
        ModelBounds("addition", sessions=2, batches=1, replicas=4, edits=1),
    ],
    ids=str,
)
def test_what_is_forgotten_of_void_attempts_has_no_effect(bounds: ModelBounds) -> None:
    with_all, without_void = Search(production(), bounds, forgetting=False), Search(production(), bounds)

    all_states, fewer_states = with_all.run(), without_void.run()

    assert all_states.complete
    assert fewer_states.complete
    assert fewer_states.states < all_states.states
    assert without_void.disks_seen() == with_all.disks_seen()
