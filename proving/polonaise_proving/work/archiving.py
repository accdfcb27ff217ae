"""The archive of a schedule: adds a store, an archivist, and servers that read fragments.

Few schedules have an archive, and only those load Parquet.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from polonaise.admin.archive import archive
from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.errors import PolonaiseError
from polonaise.fragments import objects
from polonaise.fragments.cutting import cut_fragments
from polonaise.fragments.format import FragmentWriter
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.mark import MARK, mark_of
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.protocol.names import FragmentName, fingerprint, partition_prefix
from polonaise.host import Host
from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.fragmentaudit import batches_below
from polonaise_proving.record.observations import History, ReaderRecord
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY, Cluster, Node
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from polonaise_proving.stages.simulated.observer import SCRUB_S

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
                    self._history.refused(error, "the archivist")
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
        reading = ReaderRecord(self._history, "the archivist's last reading", partition, -1)
        async for tx in log.read(partition, timeout=5.0):
            reading.take(tx)
        self._history.read_all(reading, known)


# Each trim verifies every fragment that it relies upon, and most find the bytes that the one before has found: what
# these two make of bytes is remembered, but for the errors. They would take a third of the time of such a schedule.
for _name in ("open_bytes", "_check_batches"):
    setattr(objects, _name, lru_cache(maxsize=512)(getattr(objects, _name)))


def _scrubbing(cluster: Cluster) -> ServerSettings:
    """Return server settings with a scrub of the fragments that begins a round every few seconds, amid other faults."""
    source = cluster.world.random("scrub of the fragments")
    return replace(
        cluster.knobs.server,
        scrub_first_s=source.uniform(0.1, 2.0),
        scrub_every_s=source.uniform(0.5, 5.0),
        scrub_bytes_per_s=source.choice((5_000, 1_000_000)),
        scrub_again_s=source.uniform(0.1, 1.0),
    )


class Archiving:
    """The archive of one schedule's cluster."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self.store = SimulatedStore(cluster.world)
        self.store.put_now(MARK, mark_of(CLUSTER_KEY))
        self.archivist = Archivist(cluster, self.store, history)
        cluster.open_history = self.archivist.open_history
        cluster.knobs = replace(cluster.knobs, server=_scrubbing(cluster))
        self.node = Node(cluster, "archivist-0", self.archivist.run)
        cluster.others.append(self.node)

    @property
    def scrub_s(self) -> float:
        """Virtual seconds within which rot in the store must be found.

        It is `SCRUB_S` plus the time that two rounds of the scrub take to read the store: the round under way may have
        passed the fragment before it was damaged.
        """
        stored = sum(map(len, self.store.fragments().values()))
        return SCRUB_S + 2 * stored / self._cluster.knobs.server.scrub_bytes_per_s

    def rot_is_found(self) -> bool:
        """Whether each damaged object was mended by a server's scrub, or health says why it is not mended."""
        scrubs = [server.health()["fragments_scrub"] for server in self._cluster.running_servers]
        told = {damage["path"] for scrub in scrubs if scrub for damage in scrub["damages"] if damage["why"]}
        return told.issuperset(self.store.damaged)

    # ------------------------------------------------------------------ the log

    def batches_below(self, partition: PartitionId, first: TransactionId) -> list[Batch]:
        """Return the batches below `first`, which replicas have trimmed, from the fragments. Raises `Violation`."""
        return batches_below(self.store.fragments(), partition, first)

    # ------------------------------------------------------------------ resets of the head

    def whole(self, partition: PartitionId, replica: DiskReplica) -> FinalLog:
        """Return the log as this replica holds it; what is trimmed there, from fragments. Raises `Violation`."""
        trimmed = self.batches_below(partition, replica.first) if replica.first else []
        return FinalLog(partition, trimmed + replica.batches)

    def may_end_at(self, partition: PartitionId, last: TransactionId) -> bool:
        """Whether no replica has trimmed the transaction `last`: the log can end there. It always can be emptied."""
        return last == NO_TRANSACTION or all(node.replica(partition).first <= last for node in self._cluster.storage)

    async def cut(self, partition: PartitionId, last: TransactionId) -> None:
        """End the fragments at `last`, as `FragmentsAhead` says."""
        await cut_fragments(self.store, partition, last)

    # ------------------------------------------------------------------ a disaster

    def overtake(self, logs: Sequence[FinalLog], unmounted: bool) -> None:
        """Put a fragment above the end of each partition's log, as if the replicas had gone back to an earlier day.

        If `unmounted`, put an empty directory in the store's place, too, so that no fragment is seen.
        """
        self.store.unmounted = unmounted
        for log in logs:
            columns = Columns()
            columns.add(1, 1, 0, 0, b"acknowledged, and gone from every replica")
            last = log.batches[-1] if log.batches else None
            raw = seal(
                columns, partition=log.partition, first=len(log), session=last.session if last else 1, generation=1,
                commit_time_us=last.commit_time_us if last else 1, previous_crc=last.crc if last else 0,
            )  # fmt: skip
            writer = FragmentWriter(CLUSTER_KEY)
            writer.add(Batch.parse(raw))
            written = writer.finish()[1]
            name = FragmentName(log.partition, len(log), len(log), hashlib.sha256(written).hexdigest())
            self.store.put_now(name.path, written)
