"""Clients that hold leases amid faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from polonaise.client.lease import Lease
from polonaise.client.log import Log
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise_proving.record.observations import History, LeaseTaken
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.process import Process

HOLDERS: Final = 3
_DURATION_S: Final = 1.0


class LeaseHolders:
    """Several processes that want the same leases, each a node of its own, and what they hold."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._random: random.Random = cluster.world.random("lease holders")
        self._leases: dict[str, tuple[Process, Lease]] = {}
        """By name of a node: its latest process, and the lease that it wants or has."""
        self.resting = False
        """Whether the faults are over: from then on each lease has to be had within bounded time."""
        self.held_since: set[str] = set()
        """The names of the nodes that have had a lease since then."""

    @property
    def well(self) -> bool:
        """Whether each holder has had its lease since the faults were over."""
        return len(self.held_since) == HOLDERS

    async def run(self, node: Node, host: Host) -> None:
        """Run one life of a holder: have a lease for a while, again and again, mostly with the same log object."""
        while True:
            discovery = self._cluster.discovery(node, host)
            try:
                async with Log(host, discovery, settings=self._cluster.knobs.client) as log:
                    stays = True
                    while stays:
                        stays = await self._hold_once(node, log)
                        await asyncio.sleep(0.3 * self._random.random())
            finally:
                await discovery.close()

    async def _hold_once(self, node: Node, log: Log) -> bool:
        """Have the lease for a while, and release it; return False if it is left to run out with the log object."""
        assert node.process is not None
        lease = log.lease("simulated", duration_s=_DURATION_S)
        self._leases[node.name] = (node.process, lease)
        try:
            await lease.acquire(timeout=self._random.choice((1.0, 5.0, 20.0)))
        except PolonaiseError:
            return True
        self._note(node, lease)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.choice((0.05, 0.5, 3.0)) if not self.resting else 0.1):
                await lease.lost()
                self._cluster.world.faults.count("lease_lost")
        if self._random.random() < 0.2:
            return False
        await lease.release()
        return True

    def _note(self, node: Node, lease: Lease) -> None:
        """Note that this holder begins to count itself one, and which others do at this moment."""
        others = [
            name
            for name, (process, other) in self._leases.items()
            if other is not lease and not process.dead and other.held
        ]
        self._history.leases_taken.append(LeaseTaken(node.name, lease.name, others))
        self._cluster.world.faults.count("lease_held")
        if self.resting:
            self.held_since.add(node.name)
