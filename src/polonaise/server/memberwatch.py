"""The look-out of a server for members that change: operators write to the coordinator, and ask no server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from polonaise.errors import PolonaiseError
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.settings import ServerSettings
from polonaise.server.storageaddresses import StorageAddresses
from polonaise.server.storagelinks import StorageLinks
from polonaise.terms import PartitionId

_log = logging.getLogger(__name__)
_MEMBERS: Final = "the members of partitions can't be read"


class MemberWatch:
    """Looks at the values of a server's partitions, one after the other, for a change of members that is pending.

    There is no wake-up that could be lost: every partition is looked at again and again. Links to storage nodes that
    have left the cluster are closed on the way.
    """

    def __init__(
        self,
        settings: ServerSettings,
        partitions: Mapping[PartitionId, ServedPartition],
        links: StorageLinks,
        addresses: StorageAddresses,
        trouble: CoordinatorTrouble,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._links = links
        self._addresses = addresses
        self._trouble = trouble

    async def run(self) -> None:
        """Look at all partitions for ever. Never raises a fault: an answer that nobody foresaw ends no server."""
        while True:
            await asyncio.sleep(self._settings.members_look_s)
            for partition in list(self._partitions):
                served = self._partitions.get(partition)
                if served is not None:
                    await self._look(served)
                    await asyncio.sleep(1 / self._settings.members_looks_per_s)
            self._drop_links()

    async def _look(self, served: ServedPartition) -> None:
        limit_s = self._settings.coordinator_s_max
        try:
            async with asyncio.timeout(limit_s):
                await served.look()
            self._trouble.succeeded(_MEMBERS)
        except TimeoutError:
            _log.warning("partition %d: the coordinator gave no answer within %g s", served.partition, limit_s)
        except PolonaiseError as error:
            self._trouble.failed(_MEMBERS, error)
            _log.warning("partition %d: %s: %s", served.partition, _MEMBERS, error)

    def _drop_links(self) -> None:
        """Close the links to nodes that are no storage nodes of the cluster any more, once no partition uses them.

        While each node has a copy of something, the description is not even read: none of them can have left.
        """
        # Between two sessions a partition may be speaking to any of them.
        if any(served.owner.session is None for served in self._partitions.values()):
            return
        unused = self._links.keys() - {name for served in self._partitions.values() for name in served.replicas}
        if not self._partitions or not unused:
            return
        self._addresses.look_again()
        for name in sorted(unused - {*self._addresses.names}):
            _log.info("storage node %s has left the cluster", name)
            self._links.pop(name).close()
