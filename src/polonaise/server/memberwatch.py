"""The watch for changes of partitions' members: operators write them to the coordinator, and tell no server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from polonaise.errors import PolonaiseError
from polonaise.server.coordinatortrouble import answered_within
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagelinks import StorageAddresses
from polonaise.terms import PartitionId

_log = logging.getLogger(__name__)
_MEMBERS: Final = "the members of partitions can't be read"
_HURRY_S: Final = 60.0
"""How long looks are made in a hurry after the last sign that an operator is changing something."""


class MemberWatch:
    """Looks at the values of a server's partitions, one after the other, for a change of members that is pending.

    There is no wake-up that could be lost. It is slow, because a server may have thousands, and hurries while members
    change: one change rarely comes alone. Links to storage nodes that have left the cluster are closed on the way.
    """

    def __init__(
        self, shared: SharedParts, partitions: Mapping[PartitionId, ServedPartition], addresses: StorageAddresses
    ) -> None:
        self._shared = shared
        self._partitions = partitions
        self._addresses = addresses
        self._hurried_until_s = float("-inf")

    def hurry(self) -> None:
        """Look more often for a minute."""
        self._hurried_until_s = self._shared.host.clock.monotonic_s() + _HURRY_S

    async def run(self) -> None:
        """Look at all partitions for ever; no answer of the coordinator ends that."""
        while True:
            await asyncio.sleep(self._shared.settings.members_look_s)
            await self._look_at_all()
            self._drop_links()

    async def _look_at_all(self) -> None:
        """Look at each partition once. The trouble is over if all that were tried could be read."""
        answers: list[bool | None] = []
        for partition in list(self._partitions):
            served = self._partitions.get(partition)
            if served is not None:
                answers.append(await self._look(served))
                if served.members_change:
                    self.hurry()
                hurried = self._shared.host.clock.monotonic_s() < self._hurried_until_s
                settings = self._shared.settings
                await asyncio.sleep(1 / (settings.members_hurry_per_s if hurried else settings.members_looks_per_s))
        # Partitions without a session are not read: they tell nothing about the coordinator.
        read = [answer for answer in answers if answer is not None]
        if read and all(read):
            self._shared.trouble.succeeded(_MEMBERS)
        elif not self._partitions:
            self._shared.trouble.not_needed(_MEMBERS)

    async def _look(self, served: ServedPartition) -> bool | None:
        """Look at one partition; return whether it could be read, or None if it was not tried."""
        try:
            async with answered_within(self._shared.settings.coordinator_s_max, self._shared.coordinator):
                return True if await served.look() else None
        except PolonaiseError as error:
            self._shared.trouble.failed(_MEMBERS, error, partition=served.partition)
            return False

    def _drop_links(self) -> None:
        """Close the links to nodes that have left the cluster, once no partition uses them."""
        # Between two sessions a partition may be speaking to any of them.
        if any(served.owner.session is None for served in self._partitions.values()):
            return
        unused = self._shared.links.keys() - {name for served in self._partitions.values() for name in served.replicas}
        if not self._partitions or not unused:
            return
        self._addresses.look_again()
        for name in sorted(unused - {*self._addresses.names}):
            _log.info("storage node %s has left the cluster", name)
            self._shared.links.pop(name).close()
