"""The watch of how far the archive is behind the log: an archiver that no longer runs is noticed by the servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from polonaise.errors import PolonaiseError
from polonaise.fragments.protocol.coverage import archived_up_to
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.partitionreader import PartitionReader
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_log = logging.getLogger(__name__)


class ArchiveLag(NamedTuple):
    """How far the archive was behind the partitions of a server, when it looked last."""

    transactions: int
    """The most committed transactions of a partition that no fragment held."""
    oldest_us: int | None
    """When the oldest of these was committed, of all partitions, in µs UTC; 0 if no fragment lacks any, None if not
    known."""


class ArchiveWatch:
    """Looks at the store every now and then, and compares it with what this server's partitions have committed.

    Times are those of commits, so that a new owner knows them as well as the one before it.
    """

    def __init__(
        self,
        history: ArchivedHistory,
        look_s: float,
        readers: Callable[[], Mapping[PartitionId, PartitionReader]],
    ) -> None:
        """`readers` returns the readers of the partitions owned now; a look is taken every `look_s` seconds."""
        self._history = history
        self._look_s = look_s
        self._readers = readers
        self._times: dict[PartitionId, tuple[TransactionId, int]] = {}
        """By partition the first id that was found in no fragment, and when its batch was committed, in µs UTC."""
        self.lag: ArchiveLag | None = None
        """None before the first look that has succeeded."""

    async def run(self) -> None:
        """Look for ever. A store that can't be read is told of by the scrub: what was seen last stands."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._look(await self._history.held())
            except PolonaiseError as error:
                _log.debug("how far the archive is can't be seen: %s", error)

    async def _look(self, fragments: Iterable[FragmentName]) -> None:
        by_partition: dict[PartitionId, list[FragmentName]] = {}
        for name in fragments:
            by_partition.setdefault(name.partition, []).append(name)
        lacking, known, oldest_us = 0, True, 0
        times: dict[PartitionId, tuple[TransactionId, int]] = {}
        for partition, reader in self._readers().items():
            committed, first = reader.owner.committed, archived_up_to(by_partition.get(partition, ())) + 1
            if committed == NO_TRANSACTION or first > committed:
                continue
            lacking = max(lacking, committed + 1 - first)
            if (time_us := await self._committed_us(reader, first, committed)) is None:
                known = False
                continue
            times[partition] = first, time_us
            oldest_us = min(time_us, oldest_us or time_us)
        self._times = times
        self.lag = ArchiveLag(lacking, oldest_us if known else None)

    async def _committed_us(self, reader: PartitionReader, first: TransactionId, last: TransactionId) -> int | None:
        """Return when the batch with the first of these ids was committed, in µs UTC; None if it can't be read now."""
        known = self._times.get(reader.owner.partition)
        if known is not None and known[0] == first:
            return known[1]
        try:
            raw = await reader.read_history(first, last, 1, with_data=False)
            return Batch.parse(raw, verify=False).commit_time_us if raw else None
        except PolonaiseError as error:
            _log.debug("partition %d: transaction %d can't be read: %s", reader.owner.partition, first, error)
            return None
