"""A town of several servers that share its partitions: which of them serves what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polonaise.server.node import Server
from polonaise_proving.stages.simulated.cluster import Node
from rigs.town import Town
from rigs.waiting import wait_until

PARTITIONS = 4
LONG_S = 60.0
"""Virtual seconds within which partitions move if they move at all: looks, graces and quiet times are shorter."""


class SharedTown(Town):
    """The town, its servers by their numbers, and the partitions that each has a session of."""

    def __init__(self, servers: int, **settings: Any) -> None:
        super().__init__(1, servers=servers, partitions=PARTITIONS, **settings)

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.servers

    def at(self, number: int) -> Server:
        return self.cluster.owners[self.nodes[number].name]

    def served(self, number: int) -> list[int]:
        """Return the partitions that a server has a session of."""
        if not self.nodes[number].running:
            return []
        return [each for each, served in self.at(number).partitions.items() if served.owner.session is not None]

    async def until(self, holds: Callable[[], object]) -> None:
        await wait_until(lambda: bool(holds()), within_s=LONG_S, every_s=0.5)

    async def all_served(self, *by: int) -> None:
        """Wait until each of these servers serves some of the partitions, and no other one does."""

        def shared() -> bool:
            served = [self.served(number) for number in by]
            return all(served) and sorted(each for some in served for each in some) == [*range(PARTITIONS)]

        await self.until(shared)
