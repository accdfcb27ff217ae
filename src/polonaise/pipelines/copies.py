"""Copies of a partition's batches: the servers', in fragments, and in the directories of storage nodes.

The first two are values that travel to Spark's tasks and are read there. A storage node's directory is read only in the
process of the driver, whose machine it is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from polonaise.errors import FragmentDamaged
from polonaise.fragments.format import batches_in
from polonaise.fragments.objects import open_bytes
from polonaise.fragments.protocol.coverage import FragmentRange, Span
from polonaise.log.batch import Batch
from polonaise.redaction import redacted, redacted_address, redacted_repr
from polonaise.spark import clusters
from polonaise.storage.files import Files, evidence_in, find
from polonaise.storage.offline import dump, each_unwaited
from polonaise.terms import PartitionId, TransactionId


class PartitionCopy(Protocol):
    """A copy of a partition, or of a part of it."""

    @property
    def where(self) -> str:
        """The copy's place, for people."""

    def batches(self, span: Span) -> Iterator[Batch]:
        """Yield the copy's batches that begin in the span, in order, unverified. Raises what reading them raises."""


@redacted_repr
class ServedCopy(NamedTuple):
    """A partition as the servers give it to readers."""

    address: str
    partition: PartitionId
    timeout_s: float

    @property
    def where(self) -> str:
        return "servers"

    def batches(self, span: Span) -> Iterator[Batch]:
        log = clusters.log_at(self.address)
        reading = log.read_batches(self.partition, after=span.first - 1, until=span.last, timeout=self.timeout_s)
        with reading as batches:
            for batch in batches:
                if span.first <= batch.first <= span.last:
                    yield batch


@redacted_repr
class FragmentCopy(NamedTuple):
    """A partition as its fragments in a store hold it: pieces of fragments, in the order of ids."""

    url: str
    pieces: tuple[FragmentRange, ...]

    @property
    def where(self) -> str:
        return f"fragments in {redacted_address(self.url)}"

    def batches(self, span: Span) -> Iterator[Batch]:
        store = clusters.store_at(self.url)
        for name, piece in self.pieces:
            first, last = max(span.first, piece.first), min(span.last, piece.last)
            if first > last:
                continue
            raw = clusters.wait(lambda path=name.path: store.get(path))  # type: ignore[misc]
            open_bytes(raw, name)
            try:
                for encoded in batches_in(raw):
                    batch = Batch.parse(encoded, verify=False)
                    if first <= batch.first <= last:
                        yield batch
            except FragmentDamaged as error:
                raise FragmentDamaged(f"{name.path}: {error.text}") from error


@redacted_repr
class StorageCopy(NamedTuple):
    """A partition in a storage node's directory on this machine. The node may be running."""

    directory: str
    partition: PartitionId

    @property
    def where(self) -> str:
        return f"storage node {redacted(self.directory)}"

    def batches(self, span: Span) -> Iterator[Batch]:
        for files in self._files():
            for dumped in each_unwaited(dump(files)):
                if dumped.batch.first > span.last:
                    return
                if dumped.batch.first >= span.first:
                    yield dumped.batch

    def synced(self) -> TransactionId:
        """Return the last id that the node has synced, by its own evidence; -1 for none."""
        return max((evidence_in(files).last for files in self._files()), default=-1)

    def _files(self) -> list[Files]:
        return [files for files in find(self.directory) if files.partition == self.partition]
