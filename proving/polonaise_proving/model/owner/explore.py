"""Walks every state of the model, breadth first: what it finds is a shortest way to a broken promise."""

from __future__ import annotations

from typing import Any

from polonaise_proving.model.owner.world import OwnerBounds, OwnerWorld, frames_of
from polonaise_proving.model.walk import ModelWalk

QUICK = (
    OwnerBounds("owner: conflicts", frames=(("k", "k", "-"),), mounts=1, asks=0),
    OwnerBounds("owner: two mounts", frames=(("k",),), mounts=2, asks=0),
)
"""What `make check` explores."""
SHORT = (
    OwnerBounds("owner: full inbox, nothing asked", frames=(("k", "k", "-"),), window_bytes=1_300, asks=0),
    OwnerBounds("owner: mounts that replace each other, one append", frames=(("k",),), mounts=3),
)
"""And `make test`."""
BOUNDS = (
    OwnerBounds("owner: two clients", frames=(("k", "k", "-"), ("k",)), mounts=1),
    OwnerBounds("owner: mounts that replace each other", frames=(("k", "k"),), mounts=3),
    OwnerBounds("owner: full inbox", frames=(("k", "k", "-"),), window_bytes=1_300),
)
"""What `make model` explores."""


class OwnerExploration(ModelWalk[OwnerWorld]):
    """One walk through the states that `owner_class` can come to within these bounds."""

    def __init__(self, owner_class: Any, bounds: OwnerBounds) -> None:
        self._frames = frames_of(bounds)
        first = OwnerWorld(owner_class, bounds)
        appends = [each for frames in self._frames for each in frames]
        super().__init__(bounds.name, first, [bounds, first.settings, *appends])

    def events(self, world: OwnerWorld) -> list[tuple[Any, ...]]:
        return list(world.events())

    def step(self, world: OwnerWorld, event: tuple[Any, ...]) -> None:
        name, number = event
        world.step(name, number, self._frames)
