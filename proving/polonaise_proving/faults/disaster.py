"""The disaster (P13): loses more than replicas can make up for, and checks that nothing is accepted afterwards.

Health has to say why. A disaster comes last in its schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polonaise.coordination.values import Engagement, PartitionValue, partition_key
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.terms import StorageId, TransactionId
from polonaise_proving.judges.moments import loss_is_told, nothing_accepted
from polonaise_proving.record.failures import Violation, raise_first
from polonaise_proving.stages.simulated.observer import Observer
from polonaise_proving.work.application import Application

_PROMISE = "P13 fail-safe"
_WATCH_S = 6.0
_LOOK_S = 0.05
_LOOKS_MAX = 100
_FINISHED_S = 60.0
_UNMOUNTED_SHARE = 0.5
"""The share of disasters with an unmounted store, among those whose fragments are ahead of the replicas."""


class Disaster:
    """Strike a healthy cluster beyond what replication can bear, and check what it does then."""

    def __init__(self, observer: Observer, applications: Mapping[str, Application]) -> None:
        """`applications` are those of the observer."""
        self._cluster = observer.cluster
        self._history = observer.history
        self._observer = observer
        self._applications = applications
        self._random = self._cluster.world.random("disaster")

    async def strike(self, overtake: Callable[[bool], None] | None = None) -> None:
        """Lose more than can be made up for, and check that nothing is accepted afterwards and that health says why.

        Either the coordinator forgets its sessions, or a quorum of the disks of each partition is wiped, or, with
        `overtake`, the fragments are ahead of the replicas; `overtake(True)` puts an empty directory in the store's
        place, too. Raises `Violation`.
        """
        known, unmounted = list(self._history.told), False
        self._history.refusal_is_right = True
        for node in self._cluster.nodes:
            node.put_down()
        partitions = self._cluster.knobs.partitions
        if overtake is not None:
            unmounted = self._random.random() < _UNMOUNTED_SHARE
            overtake(unmounted)
            reasons: list[set[str]] = [set() if unmounted else {"fragments_ahead"}] * partitions
        elif self._random.random() < 0.3:
            self._forget_sessions()
            reasons = [{"the coordinator"}] * partitions
        else:
            reasons = self._wipe_quorums()
        await self._nothing_accepted(known)
        if unmounted:
            await self._until_told("how far it reaches")
        raise_first(loss_is_told(self._health(), reasons))

    async def _nothing_accepted(self, known: Sequence[TransactionId]) -> None:
        """Let applications append for a while.

        `known` is the highest id of each partition that was known before. Raises the first `Violation`.
        """
        first_try = len(self._history.tries)
        # Work first, then the nodes: the applications try as soon as they live, while servers still recover.
        for application in self._applications.values():
            application.start_again(steps=8)
        for node in self._cluster.nodes:
            node.let_up()
        await asyncio.sleep(_WATCH_S)
        raise_first(nothing_accepted(self._history.tries[first_try:], self._history.told, known))
        self._observer.stop_if_violated()  # by what the clients noticed by themselves

    async def go_back(self) -> None:
        """Put every replica back to an earlier moment of the very session that is current, while its owner lives.

        No replica can tell that by itself, nor could a new server; but the owner has seen more committed than the
        replicas hold. Raises `Violation` as `strike` does, but health need not name a reason. Nothing is demanded if
        the replicas of some partition lack nothing that was told, if a later session began, or if a partition gets
        another owner meanwhile.
        """
        self._observer.begin_work_again(steps=4)
        disks = [node.machine.disk for node in self._cluster.storage]
        engaged: list[dict[StorageId, Engagement]] = []
        until_s = self._cluster.world.now + _FINISHED_S
        while not self._observer.finished():
            if engaged != (engaged := self._engaged()):  # a new session: an older snapshot could be told from it
                snapshots = [disk.snapshot() for disk in disks]
            if self._cluster.world.now > until_s:
                raise Violation(_PROMISE, "work to go on before anything is lost", self._observer.described())
            await asyncio.sleep(_LOOK_S)
        known = list(self._history.told)
        self._history.refusal_is_right = True
        for node in (*self._cluster.clients, *self._cluster.storage):
            node.put_down()
        for disk, snapshot in zip(disks, snapshots, strict=True):
            disk.restore(snapshot)
        lasts = [max(node.durable_last(p) for node in self._cluster.storage) for p in range(len(known))]
        if engaged != self._engaged() or any(last >= told for last, told in zip(lasts, known, strict=True)):
            return  # nothing is missing, or the coordinator knows of a later session than the replicas
        self._cluster.world.faults.count("gone_back")
        # New views: the old ones have applied what is gone, and would tell by their marks that it is missing.
        for application in self._applications.values():
            application.ledger = application.new_ledger()
        owners = self._owners()
        try:
            await self._nothing_accepted(known)
            raise_first(loss_is_told(self._health(), [set()] * len(known)))
        except Violation:
            # What an owner knew went with it when its partition was taken from it, or its lease ran out.
            if self._owners() == owners:
                raise
            self._history.violations.clear()

    def _owners(self) -> dict[int, PartitionOwner]:
        """Return the owner of each partition, as the running servers have them in memory."""
        return {
            partition: served.owner
            for server in self._cluster.running_servers
            for partition, served in server.partitions.items()
        }

    def _engaged(self) -> list[dict[StorageId, Engagement]]:
        """Return, by partition, the engagement of each replica at the coordinator."""
        return [dict(value.engagements) for value in self._cluster.partition_values()]

    async def _until_told(self, reason: str) -> None:
        """Wait until health names this reason, for 5 s at most. Raises `Violation`.

        An owner tries again and again, because a store may come back at any time. Each try asks the replicas first,
        and meanwhile health names those.
        """
        seen = set[str]()
        for _ in range(_LOOKS_MAX):
            told = [health["waits_for"] for _, health in self._health()]
            if any(reason in text for text in told):
                return
            seen.update(told)
            await asyncio.sleep(_LOOK_S)
        raise Violation(_PROMISE, f"health to name {reason!r}", repr(sorted(seen)))

    def _health(self) -> list[tuple[int, Any]]:
        """Return the id and the health of every partition, as each running server tells those that it owns."""
        return [
            (int(partition), health)
            for server in self._cluster.running_servers
            for partition, health in server.health()["partitions"].items()
        ]

    def _forget_sessions(self) -> None:
        """Put the partitions' values at the coordinator back to those of a cluster that was never used."""
        service = self._cluster.service
        snapshot = service.snapshot()
        initial = PartitionValue.initial(self._cluster.description.storage).encode()
        for partition in range(self._cluster.knobs.partitions):
            entry = snapshot[partition_key(partition)]
            # Another version: a write of a server that has just died must not bring back what was forgotten.
            snapshot[partition_key(partition)] = entry._replace(version=entry.version + 1, contents=initial)
        service.restore(snapshot)

    def _wipe_quorums(self) -> list[set[str]]:
        """Wipe disks until what was committed may be gone in every partition.

        Returns, by partition, the names of the engaged storage nodes that were wiped. They are a quorum, because wiping
        a quorum of all replicas might not be enough: if some of those were not engaged, the engaged ones that are left
        may hold all that was committed.
        """
        quorum = len(self._cluster.storage) // 2 + 1
        engaged = [
            {name.partition(":")[0] for name, engagement in value.engagements.items() if engagement.unresolved}
            for value in self._cluster.partition_values()
        ]
        wiped: set[str] = set()
        for node in self._random.sample(self._cluster.storage, len(self._cluster.storage)):
            if all(len(names & wiped) >= quorum for names in engaged):
                break
            node.machine.disk.wipe()
            wiped.add(node.name)
        return [names & wiped for names in engaged]
