"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polonaise_proving.model.player.decisions import Machines
from polonaise_proving.model.player.world import PlayerBounds, PlayerWorld
from polonaise_proving.model.walk import ModelWalk

QUICK = (
    PlayerBounds("player: two streams break", routes=(("a", "a"),), breaks=2),
    PlayerBounds("player: two targets", routes=(("ab", "a"),), breaks=1),
)
"""What `make check` explores."""
SHORT = (
    PlayerBounds("player: a target is moved", routes=(("a", "a"),), breaks=1, moves=1),
    PlayerBounds("player: target dies twice", routes=(("a", "a", "a"),), target_crashes=2, batch_entries=1),
    PlayerBounds("player: two players", routes=(("ab",),), players=2),
    PlayerBounds("player: catching up", routes=(("a", "a", "a", "a"),), breaks=1, join=1, queue_entries=1),
    PlayerBounds("player: a target refuses", routes=(("a", "a"), ("a",)), refusals=2),
    PlayerBounds("player: dummies", routes=(("b", "b", "ab"),), breaks=1, dummies=2, batch_entries=1),
)
"""And `make test`."""
BOUNDS = (
    PlayerBounds("player: two targets, two breaks", routes=(("ab", "a"),), breaks=2),
    PlayerBounds("player: three players", routes=(("a", "a"),), players=3),
    PlayerBounds("player: two players, two targets", routes=(("ab", "b"),), players=2),
    PlayerBounds("player: no patience", routes=(("ab", "b"),), breaks=1, patience_s=0.0, join=0),
    PlayerBounds("player: everything", routes=(("a",),), players=2, breaks=1, refusals=1),
)
"""What `make model` explores."""


_SETTLED_EVERY = 20


class PlayerExploration(ModelWalk[PlayerWorld]):
    """One walk through the states that the machines can come to within these bounds."""

    def __init__(self, machines: Machines, bounds: PlayerBounds) -> None:
        first = PlayerWorld(machines, bounds)
        super().__init__(bounds.name, first, [bounds, machines, first.settings])

    def events(self, world: PlayerWorld) -> Iterable[tuple[Any, ...]]:
        return world.events()

    def step(self, world: PlayerWorld, event: tuple[Any, ...]) -> None:
        world.step(event)

    def check(self, state: bytes, number: int) -> None:
        """Check that nothing is lacking where nothing is to be done, and now and then that it comes to that.

        Every state on the way to the end is one of those walked through, so this would do for all if some steps could
        not go on for ever, without faults: that is what settling finds.
        """
        self.world(state).complete()
        if number % _SETTLED_EVERY == 1:
            self.world(state).settle()
