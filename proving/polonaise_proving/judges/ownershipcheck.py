"""Check who owns what, seen from the coordinator: assignments that are written, and servers that own too long."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise.coordination.values import ASSIGNMENT, Assignment, PartitionValue, partition_key
from polonaise.terms import Generation, PartitionId
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster

_LOOK_S: Final = 0.02
_FAULT: Final = "session_run_out"
"""The class of fault that is counted, at each look: a server runs on although its session can have ended."""


class OwnershipCheck:
    """Check each assignment and claim that is written and, with sessions, that no server owns on after its own.

    - An assignment gives each partition an owner. Another owner has a later generation, and
      no generation falls: it tells two owners of a partition apart.
    - No owner claims a partition that one of a later generation has claimed.
    - A server owns nothing any more when its session can have ended, counted from its last contact.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._before = Assignment()
        self._generations: dict[PartitionId, Generation] = {}
        cluster.service.on_written.append(self._written)
        cluster.partition_checks.append(self._claimed)

    def _written(self, key: str, _: bytes, contents: bytes) -> None:
        """Compare a new assignment with the one before it."""
        if key != ASSIGNMENT:
            return
        before, self._before = self._before.owners, Assignment.decode(contents)
        after = self._before.owners
        missing = sorted(set(range(self._cluster.knobs.partitions)) - after.keys())
        if missing:
            self._history.violated("P11 availability", "an assignment of all partitions", f"one without {missing}")
        for partition, owner in before.items():
            now = after.get(partition, owner)
            if now.generation < owner.generation + (now.server != owner.server):
                self._history.violated(
                    "P11 availability",
                    f"partition {partition} to get a later generation than {owner.generation} of server {owner.server}",
                    f"generation {now.generation} of server {now.server}",
                )

    def _claimed(self, partition: PartitionId, _: PartitionValue, value: PartitionValue) -> None:
        """Compare the generation of a partition's new value with the latest before it."""
        latest = self._generations.setdefault(partition, value.generation)
        if value.generation < latest:
            expected = f"owners of {partition_key(partition)} from generation {latest} on"
            self._history.violated("P13 fail-safe", expected, f"one of generation {value.generation} claims it")
        self._generations[partition] = max(latest, value.generation)

    async def watch(self) -> None:
        """Look again and again for a server that owns longer than its session holds. Only for seeds with sessions."""
        session_s = self._cluster.knobs.session_s
        was_paused: set[str] = set()
        while True:
            await asyncio.sleep(_LOOK_S)
            for node in self._cluster.servers:
                server, contact = self._cluster.owners.get(node.name), self._cluster.contacts.get(node.name)
                if server is None or contact is None or node.process is None or not node.running:
                    continue
                # One that has just been resumed has had no chance yet to look at its clock.
                paused_before = node.name in was_paused
                was_paused.discard(node.name)
                if node.process.paused:
                    was_paused.add(node.name)
                if node.process.paused or paused_before:
                    continue
                over_s = self._cluster.world.now - (contact.contact_s + session_s)
                if over_s <= 0.0:
                    continue
                self._cluster.world.faults.count(_FAULT)
                if owned := [number for number, served in server.partitions.items() if served.owner.session]:
                    self._history.violated(
                        "P13 fail-safe",
                        f"{node.name} to own nothing when its session can have ended",
                        f"it owns {owned}, {over_s:.3f} s later",
                    )
                    return
