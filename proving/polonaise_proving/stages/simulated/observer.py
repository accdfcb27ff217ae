"""The observer: looks at a cluster's disks and coordinator, and waits for the state that promises demand of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica
from polonaise_proving.record.failures import ProvingMistake, Violation
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node

LOOK_S: Final = 0.1
SETTLE_S: Final = 60.0
"""Virtual seconds within which work that was begun has to be finished while a majority of the storage nodes runs."""
REPAIR_S: Final = 30.0
"""Virtual seconds within which every replica has to be engaged again once nothing harms them any more, or after a copy
last became longer: how long all of a copy takes depends on the disk, the batches and the history that were drawn."""
LAG_S: Final = 5.0
"""Virtual seconds within which every replica, once all are engaged, has to hold what the others hold."""
SCRUB_S: Final = 90.0
"""Virtual seconds after a bit of a replica has rotted within which that has to be found, and mended by the next
session."""


class ObservedApplication(Protocol):
    """What an observer needs of an application: what it has to do, and does."""

    finished: bool
    """Whether it has done all that it had to do."""
    doing: dict[int, str]
    """By worker: the step that it is taking."""
    steps_left: int

    def start_again(self, steps: int) -> None:
        """Give it `steps` to do, in place of those that it has left."""
        ...


class Observer:
    """Look at a schedule from outside of its nodes."""

    def __init__(self, cluster: Cluster, history: History, applications: Mapping[str, ObservedApplication]) -> None:
        self.cluster = cluster
        self.history = history
        self.applications = applications
        self._partitions = range(cluster.knobs.partitions)

    def all_healed(self) -> None:
        """Raise `ProvingMistake` if a fault is in force when all are to be over: else production would be accused."""
        if in_force := self.cluster.world.faults_in_force():
            raise ProvingMistake(f"every fault was to end, and these are still in force: {', '.join(in_force)}")

    # ------------------------------------------------------------------ waiting

    async def until(
        self, seconds: float, reached: Callable[[], bool], promise: str = "P11 availability", *, copying: bool = False
    ) -> None:
        """Wait until `reached()` is true.

        Raises `Violation` of the `promise` if that takes over `seconds`, and the first violation that the history has
        noted as soon as there is one. If what is waited for is `copying`, the seconds count from when the disks last
        held more than ever before in this wait of what is known to be committed when it begins.
        """
        until_s = self.cluster.world.now + seconds
        told = tuple(self.history.told)
        most = self._held(told) if copying else 0
        while not reached():
            self.stop_if_violated()
            if copying and (held := self._held(told)) > most:
                most, until_s = held, self.cluster.world.now + seconds
            if self.cluster.world.now >= until_s:
                raise Violation(promise, f"everything settled within {seconds:g} s", self.described())
            await asyncio.sleep(LOOK_S)

    def _held(self, told: tuple[TransactionId, ...]) -> int:
        """Count the transactions that the disks hold of those up to these ids, one for each partition."""
        return sum(
            min(node.durable_last(partition), last) + 1
            for partition, last in enumerate(told)
            for node in self.cluster.storage
        )

    def stop_if_violated(self) -> None:
        if self.history.violations:
            raise self.history.violations[0]

    # ------------------------------------------------------------------ applications

    def begin_work_again(self, steps: int) -> None:
        """Give each client's application `steps` to do in a new process, in place of those that it has left."""
        for node in self.cluster.clients:
            self.applications[node.name].start_again(steps)
            node.crash()

    def finished(self) -> bool:
        """Whether all applications have done all that they had to do."""
        return all(application.finished for application in self.applications.values())

    # ------------------------------------------------------------------ replicas

    def replicas(self, partition: PartitionId) -> list[DiskReplica]:
        return [node.replica(partition) for node in self.cluster.storage]

    def engaged(self, node: Node) -> bool:
        """Whether the node is engaged in the last engaged session of every partition."""
        name = self.cluster.storage_id(node)
        values = self.cluster.partition_values()
        return all(name in value.engagements and value.engagements[name].unresolved for value in values)

    def all_engaged(self) -> bool:
        """Whether every partition has its first members, and all of them are engaged."""
        first = {self.cluster.storage_id(node) for node in self.cluster.storage}
        if any(value.next is not None or {*value.members} != first for value in self.cluster.partition_values()):
            return False
        return all(self.engaged(node) for node in self.cluster.storage)

    def at_work(self) -> bool:
        """Whether every partition has a session of a running server, with all first members in it.

        At the coordinator replicas stay engaged when a session ends, until the next one begins.
        """
        first = {self.cluster.storage_id(node) for node in self.cluster.storage}
        sessions = [
            (partition, served.owner.session)
            for server in self.cluster.running_servers
            for partition, served in server.partitions.items()
        ]
        working = {partition for partition, session in sessions if session is not None and {*session.engaged} >= first}
        return working >= {*self._partitions}

    def filled(self, node: Node) -> bool:
        """Whether the node's disk holds everything that is known to be committed."""
        return all(node.durable_last(partition) >= told for partition, told in enumerate(self.history.told))

    def rotten(self, node: Node) -> bool:
        """Whether this node's disk can't be read or lacks something that is known to be committed.

        Also true while any replica of the cluster is not engaged.
        """
        if not self.all_engaged() or not self.filled(node):
            return True
        return any(node.replica(partition).bad for partition in self._partitions)

    def counted_though_lost(self, node: Node) -> bool:
        """Whether a running server counts a copy of this node as engaged of which the node's health says it is lost."""
        name, lost = self.cluster.storage_id(node), self.cluster.stores[node.name].health()["unavailable"]
        return any(
            str(partition) in lost and served.owner.session is not None and name in served.owner.session.engaged
            for server in self.cluster.running_servers
            for partition, served in server.partitions.items()
        )

    def lagging(self) -> bool:
        """Whether replicas of a partition end at different ids, as while one still writes what the others hold."""
        lasts = [[replica.last for replica in self.replicas(partition)] for partition in self._partitions]
        return any(len(set(each)) > 1 for each in lasts)

    async def repaired(self, node: Node | None = None) -> None:
        """Wait until all replicas are engaged, and so in the present sessions, and all is on `node`, if one is given.

        All is what is known to be committed.

        Raises `Violation` as `until` does, after `REPAIR_S` seconds. Then gives the replicas time to become `level`.
        """
        await self.until(
            REPAIR_S,
            lambda: self.all_engaged() and self.at_work() and (node is None or self.filled(node)),
            copying=True,
        )
        await self.level()

    async def level(self) -> None:
        """Wait until each replica has what the others have, for `LAG_S` at most: a checker tells if one never has."""
        for _ in range(int(LAG_S / LOOK_S)):
            if not self.lagging():
                return
            await asyncio.sleep(LOOK_S)

    def holding(self, spoilt: Collection[str], partition: PartitionId, last: TransactionId) -> list[str]:
        """Return the names of the nodes whose disks hold a partition up to `last` now.

        A spoilt disk may have held it, and counts as holding it. The disks of nodes whose copies were given up
        meanwhile are looked at, too.
        """
        nodes = (*self.cluster.storage, *self.cluster.spares)
        return [node.name for node in nodes if node.name in spoilt or node.durable_last(partition) >= last]

    # ------------------------------------------------------------------ for reports

    def described(self) -> str:
        """Describe what applications do, what owners wait for, and the value of each partition at the coordinator.

        And the faults that a trial has in force on purpose.
        """
        lines = [
            f"{name} does {sorted(a.doing.values())}, {a.steps_left} steps left"
            for name, a in self.applications.items()
            if not a.finished
        ]
        for name, server in self.cluster.owners.items():
            lines += [
                f"{name}: partition {partition} generation {served.generation} committed {served.owner.committed} "
                f"{'ready' if served.owner.session else 'waits for ' + served.owner.readiness.waits_for}"
                for partition, served in server.partitions.items()
            ]
        lines += [f"partition {partition}: {value}" for partition, value in enumerate(self.cluster.partition_values())]
        lines += [f"meanwhile {fault}" for fault in self.cluster.world.faults_in_force()]
        return "\n  ".join(lines)
