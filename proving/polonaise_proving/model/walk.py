"""Walks every state of a model, breadth first: what it finds is a shortest way to a broken promise.

For models whose states are objects of production and of the test, kept as pickles: those of `owner` and `player`.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Collection, Iterable
from copyreg import dispatch_table
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from polonaise.errors import InvariantViolated

W = TypeVar("W")


class Broken(Exception):
    """A promise that does not hold. The search adds how it came to that."""


@dataclass(frozen=True)
class Explored:
    """How far it got, and what it found."""

    name: str
    states: int
    seconds: float
    broken: str = ""
    """Which promise does not hold, and how it came to that; empty when all hold."""

    def __str__(self) -> str:
        return f"{self.name}: {self.states:,} states in {self.seconds:.0f} s{': ' + self.broken if self.broken else ''}"


_CONSTANTS: dict[int, Any] = {}
"""What never changes, by its identity: states name it instead of holding it."""


def _constant(key: int) -> Any:
    return _CONSTANTS[key]


class ModelWalk(Generic[W]):
    """One walk through the states that follow a first one. A model says which events there are, and what one does."""

    def __init__(self, name: str, first: W, constants: Collection[Any]) -> None:
        """`constants` are what all states share: objects of types that states hold no others of."""
        self._name = name
        self._first = first
        _CONSTANTS.update({id(constant): constant for constant in constants})
        named = {type(constant): lambda held: (_constant, (id(held),)) for constant in constants}
        self._reducers = {**dispatch_table, memoryview: lambda view: (memoryview, (bytes(view),)), **named}

    def events(self, world: W) -> Iterable[tuple[Any, ...]]:
        """Return the steps that are possible in this state."""
        raise NotImplementedError

    def step(self, world: W, event: tuple[Any, ...]) -> None:
        """Take one step. Raises `Violation`."""
        raise NotImplementedError

    def check(self, state: bytes, number: int) -> None:
        """Check the state that is the `number`th to be visited. Raises `Violation`. The default checks nothing."""

    def run(self, states_max: int = 10**9) -> Explored:
        """Walk all states, or as many as these and those beside the last; say what is broken, if something is."""
        began_s = time.monotonic()
        first = self._kept(self._first)
        came_from: dict[bytes, tuple[bytes, tuple[Any, ...]] | None] = {first: None}
        waiting, states = [first], 0

        def explored(broken: str = "") -> Explored:
            return Explored(self._name, states, time.monotonic() - began_s, broken)

        while waiting and states < states_max:
            following: list[bytes] = []
            for state in waiting:
                states += 1
                event: tuple[Any, ...] = ("check",)
                try:
                    self.check(state, states)
                    for event in self.events(self.world(state)):
                        world = self.world(state)
                        self.step(world, event)
                        after = self._kept(world)
                        if after not in came_from:
                            came_from[after] = state, event
                            following.append(after)
                except (Broken, InvariantViolated) as broken:
                    way = " → ".join(" ".join(map(str, each)) for each in [*_way(came_from, state), event])
                    return explored(f"{broken}, by {way}")
            waiting = following
        return explored()

    def world(self, state: bytes) -> W:
        """Return a state as objects, new ones each time."""
        world: W = pickle.loads(state)
        return world

    def _kept(self, world: W) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = self._reducers
        pickler.dump(world)
        return file.getvalue()


def _way(came_from: dict[bytes, tuple[bytes, tuple[Any, ...]] | None], state: bytes) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = []
    while (before := came_from[state]) is not None:
        state, event = before
        events.append(event)
    return events[::-1]
