"""The archivist of a schedule: archives and trims the log at any moment, as an operator's script does, amid all faults.

The archivist is a process like any other, which dies and starts again. Whatever it asks for, nothing may be lost: half
of its trims may ask for more than is archived, as an operator does who mistakes the id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from polonaise.admin.archive import archive
from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.errors import PolonaiseError
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.protocol.names import FragmentName, fingerprint, partition_prefix
from polonaise.host import Host
from polonaise.terms import PartitionId
from polonaise_proving.record.observations import History, ReadCheck
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.object_store import SimulatedStore

_TASK_S: Final = 30.0
"""Archiving, trimming or reading all of a partition takes less, in virtual seconds, once all is well again."""


def history_settings(source: random.Random) -> HistorySettings:
    """Draw settings for reading the archive, so small that caches overflow and listings grow old."""
    return HistorySettings(
        cache_bytes_max=source.choice((1, 2_000, 1_000_000)),
        chunk_bytes=source.choice((500, 100_000)),
        footer_bytes=source.choice((64, 4_096, 65_536)),
        listing_s=source.choice((0.0, 0.2, 1.0)),
        damaged_s=0.3,
        store_s_max=1.0,
    )


class Archivist:
    """The archivist, over all lives of its process."""

    def __init__(self, cluster: Cluster, store: SimulatedStore, history: History) -> None:
        self._cluster = cluster
        self._store = store
        self._history = history
        self._random: random.Random = cluster.world.random("archivist")
        self._history_settings = history_settings(self._random)
        self._task: Callable[[Log, PartitionId], Awaitable[None]] | None = None
        """What has to be done for each partition, once; None while it archives and trims now and then."""
        self._done: set[PartitionId] = set()
        """The partitions for which the task is done."""
        self.trims = 0
        """The number of calls of `trim` that ended without an error, whether they dropped anything or not."""

    def open_history(self, cluster_key: bytes) -> FragmentHistory:
        """Return a new reader of the fragments, for one life of a server."""
        return FragmentHistory(self._store, cluster_key, self._history_settings)

    async def run(self, node: Node, host: Host) -> None:
        """Run one life of the archivist's process: it takes steps of its work until the process dies."""
        log = Log(host, self._cluster.coordinator(node, host), settings=self._cluster.knobs.client)
        async with log:
            while True:
                await asyncio.sleep(self._random.choice((0.05, 0.3, 0.6)) * self._random.random())
                try:
                    step_s = self._random.choice((0.5, 2.0, 5.0))
                    # A task is done as a whole: what is tried again must not be broken off each time.
                    async with asyncio.timeout(step_s if self._task is None else _TASK_S):
                        await self._step(log, self._random.randrange(self._cluster.knobs.partitions))
                except PolonaiseError as error:
                    self._history.contradicted(error, "the archivist")
                except TimeoutError:
                    continue

    async def _step(self, log: Log, partition: PartitionId) -> None:
        if self._task is not None:
            if partition not in self._done:
                await self._task(log, partition)
                self._done.add(partition)
        elif self._random.random() < 0.5:
            size = self._random.choice((200, 1_000, 5_000))
            async for _ in archive(log, self._store, partition, fragment_bytes=size, rest=self._random.random() < 0.7):
                pass
        elif self._random.random() < 0.5:
            await trim(log, self._store, partition)
            self.trims += 1
        else:
            await self._ask_too_much(log, partition)

    async def _ask_too_much(self, log: Log, partition: PartitionId) -> None:
        """Ask a server for a trim without verifying any fragment, and perhaps above what is archived.

        The server itself has to find out whether it must refuse.
        """
        before = self._random.randrange(1, 2 + max(0, self._history.told[partition]))
        listed = await self._store.list(partition_prefix(partition))
        names = [name for each in listed if (name := FragmentName.parse(each.path)) is not None]
        pieces = cover(names, Span(0, before - 1)).pieces
        await log.trim(partition, before, fingerprint(piece.fragment for piece in pieces), timeout=2.0)

    # ------------------------------------------------------------------ when all is well again

    def begin_to_trim(self) -> None:
        """From now on, archive and trim each partition as far as possible, once."""
        self._task, self._done = self._trim_all, set()

    def begin_to_archive(self) -> None:
        """From now on, archive each partition, once: first in small fragments, and not to its end."""
        self._task, self._done = self._archive_some, set()

    def begin_to_read(self) -> None:
        """From now on, read each partition from its beginning to its end, once."""
        self._task, self._done = self._read_all, set()

    @property
    def done(self) -> bool:
        return len(self._done) == self._cluster.knobs.partitions

    async def _archive_some(self, log: Log, partition: PartitionId) -> None:
        size = self._random.choice((200, 1_000, 5_000))
        async for _ in archive(log, self._store, partition, fragment_bytes=size, rest=self._random.random() < 0.7):
            pass

    async def _trim_all(self, log: Log, partition: PartitionId) -> None:
        async for _ in archive(log, self._store, partition, rest=True):
            pass
        if self._history.told[partition] >= 0:
            await trim(log, self._store, partition)
            self.trims += 1

    async def _read_all(self, log: Log, partition: PartitionId) -> None:
        known = self._history.told[partition]
        reading = ReadCheck(self._history, "the archivist's last reading", partition, -1)
        async for tx in log.read(partition, timeout=5.0):
            reading.take(tx)
        if reading.last < known:
            seen = f"a reading that ended at {reading.last}"
            self._history.violated("P1 durability", f"partition {partition} up to {known} after a trim", seen)
