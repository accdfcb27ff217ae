"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

import io
import pickle
import time
from copyreg import dispatch_table
from typing import Any, ClassVar

from polonaise.errors import InvariantViolated
from polonaise.player.protocol.settings import PlayerSettings

from ..owner.explore import Explored
from .decisions import Machines
from .world import Bounds, Violation, World

QUICK = (
    Bounds("player: two streams break", routes=(("a", "a"),), breaks=2),
    Bounds("player: two targets", routes=(("ab", "a"),), breaks=1),
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
_CONSTANTS: dict[int, Any] = {}
"""What never changes, by its identity: states name it instead of holding it."""


def _constant(key: int) -> Any:
    return _CONSTANTS[key]


class _Pickler(pickle.Pickler):
    """States are kept as bytes."""

    dispatch_table: ClassVar[Any] = {
        **dispatch_table,
        PlayerSettings: lambda held: (_constant, (id(held),)),
        Bounds: lambda held: (_constant, (id(held),)),
        Machines: lambda held: (_constant, (id(held),)),
    }


class Exploration:
    """One walk through the states that the machines can come to within these bounds."""

    def __init__(self, machines: Machines, bounds: Bounds) -> None:
        self._bounds = bounds
        self._first = World(machines, bounds)
        _CONSTANTS.update({id(constant): constant for constant in (bounds, machines, self._first.settings)})

    def run(self, states_max: int = 10**9) -> Explored:
        """Walk all states, or as many as these; say what is broken, if something is."""
        began_s = time.monotonic()
        first = self._kept(self._first)
        came_from: dict[bytes, tuple[bytes, tuple[Any, ...]] | None] = {first: None}
        waiting, states = [first], 0

        def explored(broken: str = "") -> Explored:
            return Explored(self._bounds.name, states, time.monotonic() - began_s, broken)

        while waiting and states < states_max:
            following: list[bytes] = []
            for state in waiting:
                states += 1
                event: tuple[Any, ...] = ("settle",)
                try:
                    self._check(state, states)
                    for event in self._world(state).events():
                        world = self._world(state)
                        world.step(event)
                        after = self._kept(world)
                        if after not in came_from:
                            came_from[after] = state, event
                            following.append(after)
                except (Violation, InvariantViolated) as broken:
                    way = " → ".join(" ".join(map(str, each)) for each in [*self._way(came_from, state), event])
                    return explored(f"{broken}, by {way}")
            waiting = following
        return explored()

    def _check(self, state: bytes, number: int) -> None:
        """Check that nothing is lacking where nothing is to be done, and now and then that it comes to that.

        Every state on the way to the end is one of those walked through, so this would do for all if some steps could
        not go on for ever, without faults: that is what settling finds.
        """
        self._world(state).complete()
        if number % _SETTLED_EVERY == 1:
            self._world(state).settle()

    def _kept(self, world: World) -> bytes:
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(world)
        return file.getvalue()

    def _world(self, state: bytes) -> World:
        world: World = pickle.loads(state)
        return world

    def _way(self, came_from: dict[bytes, Any], state: bytes) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        while (before := came_from[state]) is not None:
            state, event = before
            events.append(event)
        return events[::-1]
