"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

import io
import pickle
import time
from copyreg import dispatch_table
from dataclasses import dataclass
from typing import Any, ClassVar

from polonaise.errors import InvariantViolated
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.wire.appends import ReceivedAppends

from .world import Bounds, Violation, World, frames_of

QUICK = (
    Bounds("owner: conflicts", frames=(("k", "k", "-"),), mounts=1, asks=0),
    Bounds("owner: two mounts", frames=(("k",),), mounts=2, asks=0),
)
"""What `make check` explores."""
SHORT = (
    Bounds("owner: full inbox, nothing asked", frames=(("k", "k", "-"),), window_bytes=1_300, asks=0),
    Bounds("owner: mounts that replace each other, one append", frames=(("k",),), mounts=3),
)
"""And `make test`."""
BOUNDS = (
    Bounds("owner: two clients", frames=(("k", "k", "-"), ("k",)), mounts=1),
    Bounds("owner: mounts that replace each other", frames=(("k", "k"),), mounts=3),
    Bounds("owner: full inbox", frames=(("k", "k", "-"),), window_bytes=1_300),
)
"""What `make model` explores."""


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


class _Pickler(pickle.Pickler):
    """States are kept as bytes."""

    dispatch_table: ClassVar[Any] = {
        **dispatch_table,
        memoryview: lambda view: (memoryview, (bytes(view),)),
        ReceivedAppends: lambda held: (_constant, (id(held),)),
        OwnerSettings: lambda held: (_constant, (id(held),)),
        Bounds: lambda held: (_constant, (id(held),)),
    }


class Exploration:
    """One walk through the states that `owner_class` can come to within these bounds."""

    def __init__(self, owner_class: Any, bounds: Bounds) -> None:
        self._bounds = bounds
        self._frames = frames_of(bounds)
        self._first = World(owner_class, bounds)
        constants = [bounds, self._first.settings, *(appends for frames in self._frames for appends in frames)]
        _CONSTANTS.update({id(constant): constant for constant in constants})

    def run(self) -> Explored:
        began_s = time.monotonic()
        first = self._kept(self._first)
        came_from: dict[bytes, tuple[bytes, str] | None] = {first: None}
        waiting, states = [first], 0
        while waiting:
            following: list[bytes] = []
            for state in waiting:
                states += 1
                for event, number in self._world(state).events():
                    world = self._world(state)
                    words = f"{event} {number}"
                    try:
                        world.step(event, number, self._frames)
                    except (Violation, InvariantViolated) as broken:
                        way = " → ".join([*self._way(came_from, state), words])
                        return Explored(self._bounds.name, states, time.monotonic() - began_s, f"{broken}, by {way}")
                    after = self._kept(world)
                    if after not in came_from:
                        came_from[after] = state, words
                        following.append(after)
            waiting = following
        return Explored(self._bounds.name, states, time.monotonic() - began_s)

    def _kept(self, world: World) -> bytes:
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(world)
        return file.getvalue()

    def _world(self, state: bytes) -> World:
        world: World = pickle.loads(state)
        return world

    def _way(self, came_from: dict[bytes, tuple[bytes, str] | None], state: bytes) -> list[str]:
        words: list[str] = []
        while (before := came_from[state]) is not None:
            state, word = before
            words.append(word)
        return words[::-1]
