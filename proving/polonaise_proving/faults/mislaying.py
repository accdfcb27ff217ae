"""The trial of mislaid directories: most storage nodes come up with empty ones, as with a mount that is missing.

Nothing is lost by that. A partition has to open as soon as they have what they had, and who looks meanwhile has to be
told of what is there now.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from polonaise.terms import NO_TRANSACTION, TransactionId
from polonaise_proving.faults.nemesis import Nemesis
from polonaise_proving.stages.simulated.cluster import Node
from polonaise_proving.stages.simulated.observer import Observer

_TOLD_S: Final = 15.0
"""Virtual seconds within which owners must tell who answers with an empty directory, and who is gone again."""
_OPEN_S: Final = 10.0
"""Virtual seconds within which every partition must be open once the right directories are back."""


class MislaidDirectories:
    """The trial of one schedule. All is well when it begins, and when it ends."""

    def __init__(self, observer: Observer, nemesis: Nemesis, source: random.Random) -> None:
        self._observer = observer
        self._cluster = observer.cluster
        self._nemesis = nemesis
        self._random = source

    async def run(self) -> None:
        """Mislay the directories of a majority, and put them back. Raises `Violation`."""
        storage, cluster = self._cluster.storage, self._cluster
        # What rots on a spoilt disk without having been read is no loss only as long as the others have it.
        sound = [node for node in storage if node.name not in self._nemesis.spoilt]
        nodes = self._random.sample(sound, self._random.randint(len(storage) // 2 + 1, len(sound)))
        for node in nodes:
            node.hold_down()
            self._nemesis.crash_or_power_loss(node)
        await asyncio.sleep(0)  # until the processes are put away: a disk can't be replaced under a living one
        right = [node.machine.disk.snapshot() for node in nodes]
        for node in nodes:
            self._nemesis.spoil(node)  # so that nobody looks for the log there meanwhile
            node.machine.disk.wipe()
            node.let_up()
        await self._observer.until(_TOLD_S, lambda: self._all_listed_empty(nodes), "P13 fail-safe")
        for node in nodes:
            node.hold_down()
            node.crash()
        await self._observer.until(_TOLD_S, lambda: not self._listed(nodes), "P13 fail-safe")
        for node, image in zip(nodes, right, strict=True):
            node.machine.disk.restore(image)
            self._nemesis.is_whole(node)
            node.let_up()
        await self._observer.until(_OPEN_S, lambda: all(map(cluster.is_open, range(cluster.knobs.partitions))))
        cluster.world.faults.count("mislaid")
        await self._observer.repaired()

    def _all_listed_empty(self, nodes: list[Node]) -> bool:
        """Whether the owner of each partition lists all these nodes, as empty, for who would reset its head."""
        told = self._listed(nodes)
        return len(told) == len(nodes) * self._cluster.knobs.partitions and all(last == NO_TRANSACTION for last in told)

    def _listed(self, nodes: list[Node]) -> list[TransactionId]:
        """Return the last id that owners list for these nodes, once for each partition and node."""
        names = {self._cluster.storage_id(node) for node in nodes}
        return [
            held["last"]
            for server in self._cluster.running_servers
            for health in server.health()["partitions"].values()
            for name, held in health.get("held", {}).items()
            if name in names
        ]
