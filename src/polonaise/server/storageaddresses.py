"""Storage nodes' addresses from the cluster's description, which is read again when a node can't be reached."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import BadOption, PolonaiseError, UnknownStorageNode
from polonaise.host import Host
from polonaise.redaction import redacted
from polonaise.terms import StorageId

_log = logging.getLogger(__name__)
_APART_S: Final = 1.0
"""The least time between two reads of the description, for all nodes together."""


class StorageAddresses:
    """The addresses of storage nodes by name, as last read: again when one can't be reached, or may have left."""

    def __init__(self, host: Host, coordinator: Coordinator, description: ClusterDescription) -> None:
        self._host = host
        self._coordinator = coordinator
        self._description = description
        self._reading: asyncio.Task[None] | None = None
        self._read_s = float("-inf")

    def of(self, name: StorageId) -> str:
        """Return the address of a storage node; its name, while the description is read again that does not have it."""
        if name not in self._description.storage:
            self.look_again()
        return self._description.address_of(name)

    @property
    def names(self) -> tuple[StorageId, ...]:
        return self._description.storage

    def why_not_reached(self, name: StorageId, error: PolonaiseError) -> PolonaiseError:
        """Return why a node can't be connected to: this error, or that the description lacks it."""
        if name in self._description.storage:
            return error
        as_address = "" if isinstance(error, BadOption) else f" (at its name, as an address: {error.text})"
        return UnknownStorageNode(
            f"the cluster's description has no storage node {redacted(name)}, so that its address is not known"
            f"{as_address}: if it is one of this cluster, add it (polonaise storage add NAME HOST:PORT); else move its "
            "copies to another one (polonaise partition replace)"
        )

    def look_again(self) -> None:
        """Start to read the description again, once a second at most, in the background."""
        now_s = self._host.clock.monotonic_s()
        if self._reading is None and now_s - self._read_s >= _APART_S:
            self._read_s = now_s
            self._reading = self._host.spawn(self._read(), "addresses of the storage nodes")

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        before = self._description.nodes
        try:
            self._description = await self._coordinator.describe()
        except PolonaiseError:
            return  # other reads of the coordinator report its trouble; the known addresses may still be right
        finally:
            self._reading = None
        for name, address in self._description.nodes.items():
            if name in before and address != before[name]:
                _log.info("storage node %s has moved from %s to %s", name, before[name], address)
