"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..walk import Walk
from .decisions import Machines
from .world import Bounds, World

QUICK = (
    Bounds("player: two streams break", routes=(("a", "a"),), breaks=2),
    Bounds("player: two targets", routes=(("ab", "a"),), breaks=1),
    Bounds("player: a target is moved", routes=(("a", "a"),), breaks=1, moves=1),
)
"""What `make check` explores."""
SHORT = (
    Bounds("player: target dies twice", routes=(("a", "a", "a"),), target_crashes=2, batch_entries=1),
    Bounds("player: two players", routes=(("ab",),), players=2),
    Bounds("player: catching up", routes=(("a", "a", "a", "a"),), breaks=1, join=1, queue_entries=1),
    Bounds("player: a target refuses", routes=(("a", "a"), ("a",)), refusals=2),
    Bounds("player: dummies", routes=(("b", "b", "ab"),), breaks=1, dummies=2, batch_entries=1),
)
"""And `make test`."""
BOUNDS = (
    Bounds("player: two targets, two breaks", routes=(("ab", "a"),), breaks=2),
    Bounds("player: three players", routes=(("a", "a"),), players=3),
    Bounds("player: two players, two targets", routes=(("ab", "b"),), players=2),
    Bounds("player: no patience", routes=(("ab", "b"),), breaks=1, patience_s=0.0, join=0),
    Bounds("player: everything", routes=(("a",),), players=2, breaks=1, refusals=1),
)
"""What `make model` explores."""


_SETTLED_EVERY = 20


class Exploration(Walk[World]):
    """One walk through the states that the machines can come to within these bounds."""

    def __init__(self, machines: Machines, bounds: Bounds) -> None:
        first = World(machines, bounds)
        super().__init__(bounds.name, first, [bounds, machines, first.settings])

    def events(self, world: World) -> Iterable[tuple[Any, ...]]:
        return world.events()

    def step(self, world: World, event: tuple[Any, ...]) -> None:
        world.step(event)

    def check(self, state: bytes, number: int) -> None:
        """Check that nothing is lacking where nothing is to be done, and now and then that it comes to that.

        Every state on the way to the end is one of those walked through, so this would do for all if some steps could
        not go on for ever, without faults: that is what settling finds.
        """
        self.world(state).complete()
        if number % _SETTLED_EVERY == 1:
            self.world(state).settle()
