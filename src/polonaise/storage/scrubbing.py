"""The scrub of a storage node: it reads all segments in the background, to find rot before they are needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.log.segment import DamageFound
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.storage.protocol.scrubschedule import Rest, Scrub, Scrubbed
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PartitionId

_log = logging.getLogger(__name__)

_LOOK_BYTES: Final = 256 * 1024
"""The bytes that are read at a time: little enough that other reads do not notice."""
_REPAIR_S: Final = 2.0


class Scrubbing:
    """Carries out what `Scrub` decides, until it is cancelled."""

    def __init__(
        self,
        host: Host,
        settings: StorageSettings,
        partitions: Callable[[], Collection[PartitionId]],
        replica: Callable[[PartitionId], PartitionReplica],
        given_up: Callable[[], Collection[PartitionId]],
    ) -> None:
        """`partitions` returns all that are read, and `given_up` those of them whose copies nobody repairs."""
        self._clock = host.clock
        self._directory = settings.directory
        self._partitions = partitions
        self._replica = replica
        self._given_up = given_up
        first_s = self._clock.monotonic_s() + settings.scrub_first_s * host.random.uniform(0.5, 1.5)
        self._scrub = Scrub(settings.scrub_bytes_per_s, settings.scrub_every_s, first_s)

    @property
    def scrubbed(self) -> Scrubbed:
        """The scrub's progress and findings, with the repairs that `look_for_repairs` has seen."""
        return self._scrub.scrubbed

    @property
    def to_be_repaired(self) -> Scrubbed:
        """What `scrubbed` has, but for damages of copies that were given up: nobody repairs or misses them."""
        return self._scrub.found_outside(self._given_up())

    def look_for_repairs(self) -> None:
        """Note which damaged copies are whole again: the sessions of their owners repair them."""
        for partition in sorted(self._scrub.unrepaired):
            if self._replica(partition).whole:
                self._scrub.repaired(self._clock.wall_us(), partition)
                _log.warning(
                    "scrub of %s: partition %d is repaired", self._directory, partition, extra={"partition": partition}
                )

    async def run(self) -> None:
        scrub, clock = self._scrub, self._clock
        while True:
            step = scrub.next(clock.monotonic_s(), clock.wall_us(), self._partitions())
            if isinstance(step, Rest):
                self.look_for_repairs()
                await asyncio.sleep(min(step.seconds, _REPAIR_S) if scrub.unrepaired else step.seconds)
                continue
            try:
                seen, following = await self._replica(step.partition).scrub(step.first, _LOOK_BYTES)
            except DamageFound as error:
                scrub.damaged(clock.wall_us(), error.text)
                _log.warning(
                    "scrub of %s, partition %d: %s. %s; if it happens again, replace this disk",
                    self._directory,
                    step.partition,
                    error.text,
                    "This copy was given up, and is not repaired (`polonaise storage clean` frees its room)"
                    if step.partition in self._given_up()
                    else "It is repaired from the other replicas",
                    extra={"partition": step.partition},
                )
            except PolonaiseError as error:
                _log.info(
                    "scrub of %s skips partition %d: %s", self._directory, step.partition, error,
                    extra={"partition": step.partition},
                )  # fmt: skip
                scrub.skip(clock.wall_us())
                await asyncio.sleep(0)
            else:
                scrub.looked(clock.monotonic_s(), clock.wall_us(), seen, following)
