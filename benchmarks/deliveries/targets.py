"""A process of targets: those of a player over a transport, or those of a bare program."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from benchmarks.deliveries.bare import BARE_GRPC, BARE_STREAMS, serve_bare
from benchmarks.deliveries.children import Handler, answer, usage
from benchmarks.deliveries.form import LATE, Notes
from benchmarks.deliveries.receiving import ReceivingTarget

from polonaise.player import serve

SCHEMES = {"link": "link://127.0.0.1:0", "gRPC": "grpc://127.0.0.1:0"}
"""The address at which a target listens, by transport; the system chooses the port."""


class Targets:
    """The targets of this process, each with a server of its own."""

    def __init__(self) -> None:
        self._notes: dict[str, Notes] = {}
        self._servers = AsyncExitStack()

    async def open(self, transport: str, names: list[str]) -> dict[str, str]:
        """Serve these targets; return their addresses by name."""
        addresses = {}
        for name in names:
            if transport in (BARE_GRPC, BARE_STREAMS):
                self._notes[name] = Notes()
                bare = await serve_bare(transport, self._notes[name])
                self._servers.push_async_callback(bare.close)
                addresses[name] = bare.address
            else:
                target = ReceivingTarget(with_times=name != LATE)
                self._notes[name] = target.notes
                server = await self._servers.enter_async_context(serve(target, SCHEMES[transport]))
                addresses[name] = server.address
        return addresses

    async def counts(self) -> dict[str, int]:
        """Return how many entries each target has received."""
        return {name: notes.count for name, notes in self._notes.items()}

    async def collect(self) -> dict[str, Any]:
        """Return what each target has noted."""
        return {name: notes.told() for name, notes in self._notes.items()}

    async def close(self) -> None:
        await self._servers.aclose()


async def main() -> None:
    targets = Targets()
    handlers: dict[str, Handler] = {
        "open": targets.open,
        "counts": targets.counts,
        "collect": targets.collect,
        "usage": usage,
    }
    await answer(handlers, targets.close)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
