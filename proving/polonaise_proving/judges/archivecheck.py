"""The check of the archive: replicas drop nothing that they have to keep, and fragments hold what the log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from polonaise.fragments.format import batches_in
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.log.control import PromiseSector
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.fragmentaudit import archived_up_to


class TrimmedCopies(Protocol):
    """The copies that one storage node has on its disk, of which it may have trimmed something."""

    @property
    def name(self) -> str: ...

    def promised(self, partition: PartitionId) -> PromiseSector | None: ...

    def replica(self, partition: PartitionId) -> DiskReplica: ...


def check_fragments(log: FinalLog, fragments: Mapping[FragmentName, bytes]) -> Iterator[Violation]:
    """P2: fragments hold the log's own batches, byte by byte, and nothing else."""
    batches = {batch.first: bytes(batch.view) for batch in log.batches}
    for name, written in fragments.items():
        if name.partition != log.partition:
            continue
        for raw in batches_in(written):
            first = Batch.parse(raw).first
            if batches.get(first) != raw:
                yield Violation("P2 agreement", f"the log's own bytes in {name.path}", f"others from {first} on")
                break


class ArchiveCheck:
    """Looks at the fragments of one cluster, at what replicas have trimmed, and at the marks up to which they may."""

    def __init__(
        self, fragments: Callable[[], Mapping[FragmentName, bytes]], storage: Sequence[TrimmedCopies], partitions: int
    ) -> None:
        """`fragments` returns what was written; `storage` are the nodes that are looked at: spares are left out."""
        self._fragments = fragments
        self._storage = storage
        self._partitions = range(partitions)
        self._marks: dict[tuple[str, PartitionId], TransactionId] = {}
        """The confirmed marks that `check_marks` has looked at, by node and partition."""

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """Check the fragments of a partition against its log: see `check_fragments`."""
        return check_fragments(log, self._fragments())

    def check_trims(self) -> Iterator[Violation]:
        """P1: no replica has dropped an id that is not archived or not below its confirmed mark.

        A session may begin right after that mark, and never lower, so a replica keeps the transaction at the mark.
        """
        fragments = self._fragments()
        for partition in self._partitions:
            archived = archived_up_to(fragments, partition)
            for node in self._storage:
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
        """P11: no replica's confirmed mark lies within a batch, as batches are cut whole."""
        for node in self._storage:
            for partition in self._partitions:
                copy = node.promised(partition)
                mark = copy.promises.confirmed if copy is not None else NO_TRANSACTION
                if self._marks.get((node.name, partition), NO_TRANSACTION) == mark:
                    continue
                self._marks[node.name, partition] = mark
                for batch in node.replica(partition).batches:
                    if batch.first <= mark < batch.last:
                        expected = f"{node.name} to have a mark of partition {partition} at which it can be cut"
                        yield Violation("P11 availability", expected, f"{mark}, within {batch.first}..{batch.last}")
