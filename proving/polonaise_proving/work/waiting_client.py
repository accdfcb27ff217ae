"""A client that mounts, waits and then appends, to find what a client is told while its append can't be committed."""

from __future__ import annotations

import asyncio

from polonaise.client.log import Log
from polonaise.host import Host
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.work import workload
from polonaise_proving.work.application import Application


class WaitingClient:
    """A client that appends to each partition once `go` is set. Its process has one life only."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._log: Log | None = None
        partitions = cluster.knobs.partitions
        self.application = Application(history, "waiting", partitions, 0, cluster.world.random("waiting"))
        self.go = asyncio.Event()
        self.mounted = False
        self.done = False

    @property
    def trouble(self) -> str:
        """The trouble of partition 0 as the client is told it now; empty if the partition has none."""
        return str((self._log.trouble(0) if self._log is not None else None) or "")

    async def run(self, node: Node, host: Host) -> None:
        """Mount all partitions, wait for `go`, then append to each and read it."""
        coordinator, ledger = self._cluster.coordinator(node, host), self.application.ledger
        async with Log(host, coordinator, view=ledger, settings=self._cluster.knobs.client) as log:
            self._log = log
            partitions = range(self._cluster.knobs.partitions)
            for partition in partitions:
                await log.ready(partition)
            self.mounted = True
            await self.go.wait()
            session = workload.ClientLife(host, self.application, log)
            for partition in partitions:
                await workload.last_step(session, partition)
            self.done = True
            await asyncio.get_running_loop().create_future()
