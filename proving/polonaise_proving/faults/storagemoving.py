"""Move storage nodes to other addresses, and let an operator tell the cluster: in time, late, twice, or wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import StorageId
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.process import Process

_PORT: Final = 9100
"""The port below those that storage nodes move to: each move takes the next one."""
_AGAIN_S: Final = 0.2
"""Virtual seconds between two tries to tell the cluster something."""

_Deed = Callable[["StorageMoves", Coordinator, Coordinator, Node], Awaitable[None]]


class StorageMoves:
    """The operator of a cluster whose storage nodes move: a process with two ways to the coordinator.

    The second one stands for another operator, who edits the description at the same time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random: random.Random = cluster.world.random("operator")
        self._port = _PORT
        self._moving: dict[str, Process | None] = {}
        """By name of a node that was given another address: its process then, which listens at the one before."""
        self.resting = False
        """Whether nothing is to be moved any more. The operator then corrects all addresses in the description."""
        # Without given names, a wiped disk would take its name from the first server that reaches it, at an address
        # that may be wrong; to mend that, an operator would have to wipe it again, besides the disks that faults spoil.
        cluster.named_nodes = True

    async def run(self, node: Node, host: Host) -> None:
        """Move storage nodes until `resting` is set; then tell the cluster where each of them is."""
        one, another = self._cluster.coordinator(node, host), self._cluster.coordinator(node, host)
        pause_s = self._random.choice((0.2, 0.6, 1.5))
        while not self.resting:
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            deed = self._random.choice(_DEEDS)
            with contextlib.suppress(PolonaiseError):
                await deed(self, one, another, self._random.choice(self._cluster.storage))
        for each in self._cluster.storage:
            # It goes on where it was if the operator was not answered, or died, after telling the cluster ahead.
            if each.process is not None and each.process is self._moving.get(each.name):
                each.crash()
            await self._tell_until_told(one, each)
        await asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------ deeds

    async def move(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Start a node at another address, and tell the cluster before, after, or twice at the same time."""
        if self._random.random() < 0.3:
            await self._tell(one, node, self._new_place(node))
            await asyncio.sleep(self._random.choice((0.0, 0.3)))
            node.crash()
            return
        place = self._new_place(node)
        node.crash()
        await asyncio.sleep(self._random.choice((0.0, 0.2, 1.5)))
        if self._random.random() < 0.5:
            await self._tell(one, node, place)
        else:
            await asyncio.gather(self._tell(one, node, place), self._tell(another, node, place))

    async def take_for_another(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Tell the cluster that a node is where another one is; after a while, tell the truth."""
        others = [each for each in self._cluster.storage if each is not node]
        if not others:
            return
        self._cluster.world.faults.count("wrong_address")
        await self._tell(one, node, self._cluster.places[self._random.choice(others).name])
        node.crash()  # servers look at an address only to connect, so make them connect
        await asyncio.sleep(self._random.choice((0.3, 1.0, 3.0)))
        await self._tell_until_told(one, node)

    async def exchange(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Tell the cluster, as two operators, that two nodes have exchanged their addresses; later, the truth."""
        others = [each for each in self._cluster.storage if each is not node]
        if not others:
            return
        other = self._random.choice(others)
        self._cluster.world.faults.count("wrong_address")
        places = self._cluster.places
        await asyncio.gather(
            self._tell(one, node, places[other.name]),
            self._tell(another, other, places[node.name]),
        )
        self._random.choice((node, other)).crash()
        await asyncio.sleep(self._random.choice((0.3, 1.0, 3.0)))
        await self._tell_until_told(one, node)
        await self._tell_until_told(one, other)

    # ------------------------------------------------------------------ what an operator does

    def _new_place(self, node: Node) -> str:
        """Have a node listen at an address that nobody has had, from its next start on; return the address."""
        self._port += 1
        self._cluster.world.faults.count("storage_moved")
        self._cluster.places[node.name] = f"{node.name}:{self._port}"
        self._moving[node.name] = node.process
        return self._cluster.places[node.name]

    async def _tell(self, coordinator: Coordinator, node: Node, address: str) -> None:
        """Tell the cluster where a node is, by compare-and-set. Raises what the coordinator raises."""
        name: StorageId = self._cluster.storage_id(node)
        while True:
            current = await coordinator.description()
            if await coordinator.set_description(current.value.moved(name, address), current.version) is not None:
                return

    async def _tell_until_told(self, coordinator: Coordinator, node: Node) -> None:
        """Tell the cluster where a node really is, until the coordinator has taken it."""
        while True:
            try:
                await self._tell(coordinator, node, self._cluster.places[node.name])
            except PolonaiseError:
                await asyncio.sleep(_AGAIN_S)
            else:
                return


_DEEDS: Final[tuple[_Deed, ...]] = (
    StorageMoves.move,
    StorageMoves.move,
    StorageMoves.take_for_another,
    StorageMoves.exchange,
)
