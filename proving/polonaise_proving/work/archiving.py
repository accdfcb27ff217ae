"""The archive of a schedule: adds a store, an archivist, and servers that read fragments.

Few schedules have an archive, and only those load Parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from polonaise.fragments import objects
from polonaise.fragments.cutting import cut_fragments
from polonaise.fragments.format import FragmentWriter
from polonaise.fragments.mark import MARK, mark_of
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.fragmentaudit import batches_below
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY, Cluster, Node
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from polonaise_proving.stages.simulated.observer import SCRUB_S
from polonaise_proving.work.archivist import Archivist

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
