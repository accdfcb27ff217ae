"""P13: more is lost than can be made up for. Then nothing may be accepted, and whoever asks is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from polonaise.coordination.values import PartitionValue
from polonaise.simulator.application import Application
from polonaise.simulator.cluster import Cluster, Node
from polonaise.simulator.history import Fate, History, Kind, Violation

_PROMISE = "P13 fail-safe"
_WATCH_S = 6.0


class Disaster:
    """Strikes a healthy cluster beyond what replication can bear, and watches what it does."""

    def __init__(self, cluster: Cluster, history: History, applications: Mapping[str, Application]) -> None:
        self._cluster = cluster
        self._history = history
        self._applications = applications
        self._random = cluster.world.random("disaster")

    async def strike(self) -> None:
        """Raises `Violation` if anything is accepted afterwards, or refused without a reason."""
        known = list(self._history.told)
        self._history.refusal_is_right = True
        for node in self._cluster.nodes:
            node.hold_down()
            if node.process is not None:
                node.process.crash()
        if self._random.random() < 0.3:
            self._forget_sessions()
            reasons: tuple[str, ...] = ("the coordinator",)
        else:
            reasons = self._wipe_a_quorum()
        first_try = len(self._history.tries)
        for application in self._applications.values():
            application.start_again(steps=8)
        for node in self._cluster.nodes:
            node.let_up()
        await asyncio.sleep(_WATCH_S)
        for attempt in self._history.tries[first_try:]:
            if attempt.fate is Fate.COMMITTED and attempt.kind is not Kind.PRODUCED:
                raise Violation(_PROMISE, "nothing to be accepted", str(attempt))
        if self._history.told != known:
            raise Violation(_PROMISE, f"nothing above {known}", f"ids up to {self._history.told} were told")
        if self._history.violations:
            raise self._history.violations[0]
        self._check_health(reasons)

    def _forget_sessions(self) -> None:
        """The coordinator's values are those of a cluster that was never used."""
        service = self._cluster.service
        snapshot = service.snapshot()
        initial = PartitionValue.initial(self._cluster.description.storage).encode()
        for partition in range(self._cluster.knobs.partitions):
            version, _ = snapshot[f"partition-{partition}"]
            snapshot[f"partition-{partition}"] = version, initial
        service.restore(snapshot)

    def _wipe_a_quorum(self) -> tuple[str, ...]:
        """New disks for so many replicas of the last session that what was committed may be gone."""
        count = len(self._cluster.storage) // 2 + 1
        wiped: list[Node] = self._random.sample(self._cluster.storage, count)
        for node in wiped:
            node.machine.disk.wipe()
        return tuple(node.name for node in wiped)

    def _check_health(self, reasons: tuple[str, ...]) -> None:
        partitions = [
            health for server in self._cluster.owners.values() for health in server.health()["partitions"].values()
        ]
        told = [str(health["waits_for"]) for health in partitions]
        if any(health["ready"] for health in partitions):
            raise Violation(_PROMISE, "no partition to be ready", repr(partitions))
        if not any(all(reason in text for reason in reasons) for text in told):
            raise Violation(_PROMISE, f"health to name {', '.join(reasons)}", repr(told))
