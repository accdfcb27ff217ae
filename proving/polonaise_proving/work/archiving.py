"""The archive of a schedule: adds a store, an archivist, servers that read fragments, and checks of all these.

Few schedules have an archive, and only those load Parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polonaise.fragments.cutting import cut_fragments
from polonaise.fragments.format import FragmentWriter, batches_in
from polonaise.fragments.mark import MARK, mark_of
from polonaise.fragments.protocol.coverage import Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.observations import History, Violation
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY, Cluster, Node
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from polonaise_proving.stages.simulated.observer import SCRUB_S
from polonaise_proving.work.archivist import Archivist


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
        self._marks: dict[tuple[str, PartitionId], TransactionId] = {}
        """The confirmed marks that `check_marks` has looked at, by node and partition."""

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

    # ------------------------------------------------------------------ the verdict

    def check_trims(self) -> Iterator[Violation]:
        """Check P1, spares left out: no replica has dropped an id that is not archived or not below its confirmed mark.

        A session may begin right after that mark, and never lower, so a replica keeps the transaction at the mark.
        """
        fragments = self.store.fragments()
        for partition in range(self._cluster.knobs.partitions):
            archived = archived_up_to([name for name in fragments if name.partition == partition])
            for node in self._cluster.storage:
                copy = node.promised(partition)
                if copy is None or not copy.trimmed.first:
                    continue
                first, confirmed = copy.trimmed.first, copy.promises.confirmed
                seen = f"{node.name} has dropped everything below {first} of partition {partition}"
                if first > archived + 1:
                    expected = f"nothing to be trimmed above {archived}, where the archive ends"
                    yield Violation("P1 durability", expected, seen)
                if first > confirmed:
                    expected = f"nothing to be trimmed from {confirmed} on, the confirmed mark"
                    yield Violation("P1 durability", expected, seen)

    def check_marks(self) -> Iterator[Violation]:
        """Check P11: no replica's confirmed mark lies within a batch, as batches are cut whole."""
        for node in self._cluster.storage:
            for partition in range(self._cluster.knobs.partitions):
                copy = node.promised(partition)
                mark = copy.promises.confirmed if copy is not None else NO_TRANSACTION
                if self._marks.get((node.name, partition), NO_TRANSACTION) == mark:
                    continue
                self._marks[node.name, partition] = mark
                for batch in node.replica(partition).batches:
                    if batch.first <= mark < batch.last:
                        expected = f"{node.name} to have a mark of partition {partition} at which it can be cut"
                        yield Violation("P11 availability", expected, f"{mark}, within {batch.first}..{batch.last}")

    def batches_below(self, partition: PartitionId, first: TransactionId) -> list[Batch]:
        """Return the batches below `first`, which replicas have trimmed, from the fragments.

        Raises `Violation` if one of their ids is in no fragment.
        """
        fragments = {name: raw for name, raw in self.store.fragments().items() if name.partition == partition}
        covered = cover(fragments, Span(0, first - 1))
        if covered.holes:
            seen = f"no fragment has {covered.holes}"
            raise Violation("P1 durability", f"partition {partition} below {first}, which was trimmed", seen)
        batches: dict[TransactionId, Batch] = {}
        for piece in covered.pieces:
            for raw in batches_in(fragments[piece.fragment]):
                batch = Batch.parse(raw)
                batches[batch.first] = batch
        return [batch for _, batch in sorted(batches.items()) if batch.last < first]

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """Check P2: fragments hold the log's own batches, byte by byte, and nothing else."""
        batches = {batch.first: bytes(batch.view) for batch in log.batches}
        for name, written in self.store.fragments().items():
            if name.partition != log.partition:
                continue
            for raw in batches_in(written):
                first = Batch.parse(raw).first
                if batches.get(first) != raw:
                    yield Violation("P2 agreement", f"the log's own bytes in {name.path}", f"others from {first} on")
                    break

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
