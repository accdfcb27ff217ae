"""The copies and zones that commits need, by partition, as last read from the cluster's description."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, Demand, PartitionValue, Requirement, Versioned
from polonaise.errors import Closed, PartitionNotReady, PolonaiseError
from polonaise.terms import PartitionId, StorageId

_log = logging.getLogger(__name__)
_LOOK_S: Final = 300.0
"""The description is read again after this although no change of it was told."""
_AGAIN_S: Final = 1.0


class Requirements:
    """Knows the requirements that this server has read last, and follows their changes."""

    def __init__(self, coordinator: Coordinator, described: Versioned[ClusterDescription]) -> None:
        self._coordinator = coordinator
        self._version = described.version
        self._read = (0, 0)
        """The number of the newest demand, and of partitions, in the newest description that was taken."""
        self._of: Mapping[PartitionId, Requirement] = {}
        self._demands: Mapping[str, Demand] = {}
        self.zones: Mapping[StorageId, str] = described.value.zones
        """The zones of the storage nodes that have one, as last read."""
        self.take(described.value)
        self._followed = self._read[0]
        """The number of the newest demand when `follow` last called `changed`."""

    def take(self, description: ClusterDescription) -> bool:
        """Take a description if it has a newer demand or more partitions; return whether it has a newer demand."""
        before, after = self._read, (description.newest_demand, description.total)
        # Partitions that a topic has got have its requirement, which has no new number for that.
        if after <= before:
            return False
        self._read, self._of, self._demands = after, description.requirements(), description.demands
        self.zones = description.zones
        return after[0] > before[0]

    def of(self, partition: PartitionId) -> Requirement | None:
        return self._of.get(partition)

    async def for_session(self, partition: PartitionId, value: PartitionValue) -> Requirement | None:
        """Return the requirement of a session that is to follow the one in `value`.

        An earlier session may have acted by a newer description than this server has read, and no requirement must be
        taken back, or missed: a server that is behind reads it again. Raises what the coordinator raises, and
        `PartitionNotReady` if it is still behind.
        """
        if not self._has_read(partition, value.required):
            self.take(await self._coordinator.describe())
            if not self._has_read(partition, value.required):
                raise PartitionNotReady("this server has not read yet how many copies a commit needs")
        return self.of(partition)

    def _has_read(self, partition: PartitionId, required: Requirement | None) -> bool:
        if partition >= self._read[1]:
            return False
        known = self.of(partition)
        return required is None or (known is not None and known.version >= required.version)

    async def follow(self, described: Callable[[], None], changed: Callable[[], None]) -> None:
        """Read the description when it changes; then call `described`, and `changed` if requirements or zones have."""
        while True:
            try:
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._coordinator.description_changed(self._version)
                except TimeoutError:
                    pass
                read = await self._coordinator.description()
                if read.version != self._version:
                    described()
                zoned = read.version > self._version and read.value.zones != self.zones
                if zoned:
                    self.zones = read.value.zones
                self._version = read.version
                self.take(read.value)
                if self._read[0] > self._followed:  # or a session's start has read it first: `changed` is still to come
                    self._followed = self._read[0]
                    for_topics = "".join(f"; to topic {name}, {told}" for name, told in self.told_of_topics.items())
                    _log.info("commits need %s%s", self.told or "a quorum, and nothing else", for_topics)
                    changed()
                elif zoned:
                    changed()
            except Closed:
                raise
            except PolonaiseError:  # whatever the coordinator says: it is no reason to end
                # Other reads of the coordinator report its trouble. What is required stays as it was read last.
                await asyncio.sleep(_AGAIN_S)

    @property
    def told(self) -> str:
        """What the whole cluster requires, for operators; empty if nothing."""
        return self._demands[""].told if "" in self._demands else ""

    @property
    def told_of_topics(self) -> dict[str, str]:
        """What is required of each topic, for operators."""
        return {topic: demand.told for topic, demand in self._demands.items() if topic and demand.told}
