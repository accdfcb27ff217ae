"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

from typing import Any

from ..walk import Walk
from .world import Bounds, World, frames_of

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


class Exploration(Walk[World]):
    """One walk through the states that `owner_class` can come to within these bounds."""

    def __init__(self, owner_class: Any, bounds: Bounds) -> None:
        self._frames = frames_of(bounds)
        first = World(owner_class, bounds)
        appends = [each for frames in self._frames for each in frames]
        super().__init__(bounds.name, first, [bounds, first.settings, *appends])

    def events(self, world: World) -> list[tuple[Any, ...]]:
        return list(world.events())

    def step(self, world: World, event: tuple[Any, ...]) -> None:
        world.step(*event, self._frames)
