"""Targets that come and go while players run: a player loses one and gets it back, as it was or at an empty place.

And targets whose disks are put back to an earlier moment, as one does with a database.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Final

from polonaise.errors import Closed
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.player import Player
from polonaise.player.protocol.entries import TargetName
from polonaise_proving.judges.deliverycheck import DeliveryCheck
from polonaise_proving.record.targetmemory import MEMORY_FILE, FenceTaken, decode
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.world import World
from polonaise_proving.work.simulatedtarget import TargetTrouble

_COMINGS_SHARE: Final = 0.3
"""The share of schedules with players in which targets come and go."""
_MOVES_SHARE: Final = 0.5
"""The share of these times at which the target comes back empty."""
_TRIES: Final = 50


def put_back(check: DeliveryCheck, name: TargetName, disk: SimulatedDisk, source: random.Random) -> bool:
    """Take some of what a target has applied on its present stream off its disk, as if that was put back.

    Returns whether that was possible now: nobody may be writing, and the stream must have brought something.
    """
    raw = check.look(name).raw
    if not _is_settled(raw, disk):
        return False
    ends = [0]
    for step, end in decode(raw):
        ends = [end] if isinstance(step, FenceTaken) else [*ends, end]
    if len(ends) < 2 or ends[-1] != len(disk.file(MEMORY_FILE).cache):
        return False
    disk.truncate(MEMORY_FILE, source.choice(ends[-6:-1]))
    check.put_back(name)
    return True


def empty(check: DeliveryCheck, name: TargetName, disk: SimulatedDisk) -> bool:
    """Take all that a target keeps off its disk, its fence too, as if its name was given to an empty place.

    Returns whether that was possible now: nobody may be writing.
    """
    if not _is_settled(check.look(name).raw, disk):
        return False
    disk.truncate(MEMORY_FILE, 0)
    check.put_back(name)
    return True


def _is_settled(raw: bytes, disk: SimulatedDisk) -> bool:
    return bool(raw) and not disk.locks and not disk.file(MEMORY_FILE).unsynced


class TargetMoves:
    """Takes targets away from players, and gives them back."""

    def __init__(
        self,
        world: World,
        check: DeliveryCheck,
        disks: Mapping[TargetName, SimulatedDisk],
        troubles: Mapping[TargetName, TargetTrouble],
    ) -> None:
        self._world = world
        self._disks = disks
        self._check = check
        self._troubles = troubles
        self._names = list(troubles)
        self._source = world.random("targets come and go")
        self._drawn = self._source.random() < _COMINGS_SHARE
        self.resting = False
        """Whether targets stay from now on."""

    async def run(self, player: Player, endpoint: Callable[[TargetName], DeliveryEndpoint]) -> None:
        """Take targets away from a player, and give them back under their names, until it ends or `resting` is set."""
        source = self._source
        while self._drawn and not self.resting:
            await asyncio.sleep(source.uniform(0.1, 2.0))
            name = source.choice(self._names)
            moves = source.random() < _MOVES_SHARE
            with contextlib.suppress(Closed):  # the player has ended meanwhile
                if moves:
                    await self._read_begun(player, name)
                await player.remove_target(name)
                await asyncio.sleep(source.choice((0.0, 0.1, 0.7)))
                if moves:
                    await self._empty(name)
                player.add_target(name, endpoint(name))

    async def _read_begun(self, player: Player, name: TargetName) -> None:
        """Wait for a moment, or until a read for a target is under way: its answer comes when the target is gone."""
        assert player._delivery is not None
        stream = player._delivery.machine.targets[name]
        for _ in range(_TRIES):
            if any(pair.queue is not None and pair.queue.reads for pair in stream.pairs.values()):
                return
            await asyncio.sleep(0.01)

    async def _empty(self, name: TargetName) -> None:
        """Have a target keep nothing any more, as soon as nobody writes there."""
        for _ in range(_TRIES):
            if empty(self._check, name, self._disks[name]):
                self._troubles[name].put_back += 1
                self._world.faults.count("target_moved")
                return
            await asyncio.sleep(0.01)
