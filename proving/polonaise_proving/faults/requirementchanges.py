"""Require copies and zones of commits while clients work, as an operator does, and check that commits have them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection
from typing import Final

from polonaise.admin.requiring import require, set_zone
from polonaise.coordination import Coordinator
from polonaise.coordination.values import PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import PartitionId
from polonaise_proving.judges.moments import needed_copies
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node

_TIMEOUT_S: Final = 1.0
"""Virtual seconds that the operator's commands wait, for an answer and for the partitions to follow."""
_AGAIN_S: Final = 0.2


class RequirementChanges:
    """The operator who changes the requirement of a cluster with several storage nodes, and the check that it holds."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._random: random.Random = cluster.world.random("requirement")
        self.resting = False
        """Whether nothing is to be required any more. The operator then takes the requirement back."""
        self.taken_back = False
        """Whether every partition has a session without a requirement again."""

    async def run(self, node: Node, host: Host) -> None:
        """Require more and less until `resting` is set; then take the requirement back."""
        coordinator = self._cluster.coordinator(node, host)
        nodes = len(self._cluster.storage)
        pause_s = self._random.choice((0.1, 0.3, 0.8))
        zones = ("north", "south", "")
        while not self.resting:
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            with contextlib.suppress(PolonaiseError):
                if self._random.random() < 0.3:
                    name = self._cluster.storage_id(self._random.choice(self._cluster.storage))
                    await set_zone(host, coordinator, name, self._random.choice(zones), _TIMEOUT_S)
                    continue
                copies = self._random.choice((0, nodes // 2 + 1, nodes, nodes))
                if self._random.random() < 0.5:
                    await self._require_blindly(coordinator, copies)
                else:
                    await require(host, coordinator, copies, self._random.choice((0, 0, 1, 2)), _TIMEOUT_S)
                self._cluster.world.faults.count("requirement_changed")
        while not self.taken_back:
            with contextlib.suppress(PolonaiseError):
                self.taken_back = not (await require(host, coordinator, 0, 0, _TIMEOUT_S)).waiting
            await asyncio.sleep(_AGAIN_S)
        await asyncio.get_running_loop().create_future()

    async def _require_blindly(self, coordinator: Coordinator, copies: int) -> None:
        """Write a requirement of copies without the command's look at who is there, as if nodes went down after it.

        Without a requirement of zones: with one that no zones can meet, nothing would be committed until it is changed.
        """
        current = await coordinator.description()
        await coordinator.set_description(current.value.requiring(copies, 0), current.version)

    def check(self, partition: PartitionId, spoilt: Collection[str]) -> None:
        """Check that what applications were told as committed is durable on the replicas that commits needed.

        To be called at the moment when one is told so: the other replicas catch up soon after.

        An engaged replica has everything that was committed before its session, and so what a requirement demands of a
        session holds for all that is told while it lasts. A spoilt disk may have held it, and counts as holding it.
        """
        told, value = self._history.told[partition], self._cluster.partition_value(partition)
        if value.required is None:
            return
        engaged = self._engaged(value)
        holding = [
            name for name, node in engaged.items() if node.name in spoilt or node.durable_last(partition) >= told
        ]
        lack = value.required.lack_of(holding)
        self._history.violations.extend(needed_copies(partition, told, lack, engaged, holding))

    def _engaged(self, value: PartitionValue) -> dict[str, Node]:
        engaged = {name for name, each in value.engagements.items() if each.unresolved}
        nodes = (*self._cluster.storage, *self._cluster.spares)
        return {name: node for node in nodes if (name := self._cluster.storage_id(node)) in engaged}
