"""The process of the player. Targets that are reached directly are in it, too."""

from __future__ import annotations

import asyncio
import cProfile
import time
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from benchmarks.deliveries.children import Handler, answer, usage
from benchmarks.deliveries.form import LATE, route
from benchmarks.deliveries.receiving import ReceivingTarget

import polonaise
from polonaise.player import Player, remote


class Playing:
    """One player, with its client of the log."""

    def __init__(self) -> None:
        self._direct: dict[str, ReceivingTarget] = {}
        self._player: Player | None = None
        self._open = AsyncExitStack()
        self._profile: cProfile.Profile | None = None

    async def start(self, coordinator: str, player: str, addresses: dict[str, str], after: int) -> None:
        """Start the player. Targets without an address are direct ones; all get what follows the id `after`."""
        log = await self._open.enter_async_context(polonaise.connect(coordinator))
        targets = {name: remote(address) if address else self._made(name) for name, address in addresses.items()}
        start_after = {name: {0: after} for name in targets}
        retired = {LATE} - targets.keys()
        self._player = Player(log, player, route, targets, start_after=start_after, retired=retired)
        await self._open.enter_async_context(self._player)

    def _made(self, name: str) -> ReceivingTarget:
        self._direct[name] = ReceivingTarget(with_times=name != LATE)
        return self._direct[name]

    async def add(self, name: str, address: str, after: int) -> None:
        """Deliver to this target, too, what follows the id `after`."""
        assert self._player is not None
        target = remote(address) if address else self._made(name)
        self._player.add_target(name, target, {0: after})

    async def health(self) -> dict[str, Any]:
        assert self._player is not None
        return self._player.health()

    async def counts(self) -> dict[str, int]:
        """Return how many entries each direct target has received."""
        return {name: target.notes.count for name, target in self._direct.items()}

    async def collect(self) -> dict[str, Any]:
        """Return what each direct target has noted."""
        return {name: target.notes.told() for name, target in self._direct.items()}

    async def profile(self, path: str) -> None:
        """Begin to profile this process; the second time, end that and write the profile to `path`."""
        if self._profile is None:
            self._profile = cProfile.Profile(time.process_time)  # others work on these processors, too
            self._profile.enable()
        else:
            self._profile.disable()
            self._profile.dump_stats(path)
            self._profile = None

    async def close(self) -> None:
        await self._open.aclose()


async def main() -> None:
    playing = Playing()
    handlers: dict[str, Handler] = {
        "start": playing.start,
        "add": playing.add,
        "health": playing.health,
        "counts": playing.counts,
        "collect": playing.collect,
        "profile": playing.profile,
        "usage": usage,
    }
    await answer(handlers, playing.close)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
