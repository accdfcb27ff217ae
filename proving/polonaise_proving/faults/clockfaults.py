"""Wall clocks that are set wrong for a while, in some seeds.

In these seeds the clocks of a minority of the storage nodes and of all servers may be wrong at once, each by an amount
of its own: what two of them agree on is true.
"""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise_proving.stages.simulated.cluster import Cluster, Node

_DAY_S: Final = 86_400.0


class ClockFaults:
    """Sets clocks wrong and right again until `heal`."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster.world
        self._random = cluster.world.random("clocks set wrong")
        count = (len(cluster.storage) - 1) // 2
        self._nodes = cluster.servers + self._random.sample(cluster.storage, count)
        self._wrong: set[Node] = set()
        self._under_way: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Set clocks wrong, each for a while, until cancelled."""
        while True:
            await asyncio.sleep(self._random.expovariate(1.0))
            right = [node for node in self._nodes if node not in self._wrong]
            if right:
                wrong = self._wrong_for_a_while(self._random.choice(right))
                self._under_way.append(self._world.spawn(wrong, "a wrong clock"))

    async def _wrong_for_a_while(self, node: Node) -> None:
        self._wrong.add(node)
        machine, source = node.machine, self._random
        machine.set_clock_right()
        size_s = source.choice((60.0, 3_600.0, _DAY_S, 3_650 * _DAY_S)) * source.uniform(0.7, 1.4)
        machine.jump_clock(size_s * source.choice((1.0, 1.0, -1.0)))
        machine.set_drift(source.uniform(-0.05, 0.05))
        if source.random() < 0.3:
            node.crash()  # it starts again with the wrong clock, and has never seen a right one
        await asyncio.sleep(source.choice((0.05, 0.5, 3.0)) * source.uniform(0.5, 1.5))
        self._set_right(node)

    def _set_right(self, node: Node) -> None:
        node.machine.set_clock_right()
        self._wrong.discard(node)

    def heal(self) -> None:
        """Set all clocks right, for good."""
        for task in self._under_way:
            task.cancel()
        for node in self._nodes:
            self._set_right(node)
