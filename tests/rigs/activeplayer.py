"""An active player's decisions without anything around them: a test is the log, the targets and the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.effects import AskMark, PlayerEffect, SendBatches
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings

E = TypeVar("E")


class Player:
    """An active player of epoch 3, whose effects are kept by kind, in time that the test tells."""

    def __init__(self, *targets: str, partitions: int = 1, **settings: Any) -> None:
        self.machine = ActivePlayer(3, range(partitions), PlayerSettings(**settings))
        self.effects: list[PlayerEffect] = []
        self.now_s = 100.0
        for target in targets:
            self.machine.add_target(target)

    def do(self, event: str, *about: Any) -> None:
        """Let an event happen that has a time."""
        self.effects += getattr(self.machine, event)(*about, self.now_s)

    def tick(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.effects += self.machine.tick(self.now_s)

    def all(self, kind: type[E]) -> list[E]:
        """Return the effects of this kind since the last call of `all` for it."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def connect(self, target: str, term: int = 1, applied: Mapping[int, int] | None = None, mark: int = -1) -> None:
        """Have the target accept the stream; the log's mark is `mark` for all who ask."""
        self.do("connected", target, term, applied or {})
        for ask in self.all(AskMark):
            self.do("mark_told", ask.partition, ask.number, mark)

    def fetch(self, first: int, *targets: str, partition: int = 0, size: int = 1) -> None:
        """Let the main stream bring one transaction for these targets."""
        routed = {target: [RoutedEntry(first, bytes(size))] for target in targets}
        self.do("fetched", partition, 1, first, first, routed)

    def sent(self) -> list[tuple[str, int, int, list[int]]]:
        """Return what was sent since the last call: target, partition, previous id, ids."""
        return [
            (effect.target, batch.partition, batch.previous, [entry.id for entry in batch.entries])
            for effect in self.all(SendBatches)
            for batch in effect.batches
        ]


def served(*targets: str, partitions: int = 1, **settings: Any) -> Player:
    """A player that has begun the main streams of an empty log, and serves these targets."""
    player = Player(*targets, partitions=partitions, **settings)
    player.tick()
    for target in targets:
        player.connect(target)
    player.effects.clear()
    return player


def hindered(player: Player, target: str) -> dict[str, str]:
    """Return what health tells of what hinders a target, by partition."""
    return targets_health(player.machine)[target]["hindered"]
