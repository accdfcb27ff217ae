"""Read a storage node's directory without asking the node: find what it holds, and yield its batches by range.

A task reads one segment from its beginning to the end of the task's range, so that every CRC up to there is checked. A
running node may cut or trim files after the query was planned and before its tasks read them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from polonaise.errors import BadOption, BeyondLog, HistoryTrimmed, NotFound, SegmentDamaged, WrongClusterKey
from polonaise.fragments.agreement import ends_told
from polonaise.fragments.protocol.coverage import BatchEnd, Span
from polonaise.host.files import ReadOnlyFile
from polonaise.log.batch import Batch
from polonaise.log.segment import SegmentRemoved, walk
from polonaise.redaction import redacted
from polonaise.spark.fragmentfiles import tell_future
from polonaise.spark.options import partitions_among
from polonaise.spark.protocol.splits import Extent, Split
from polonaise.storage.files import Files, evidence_in, find, find_partition, first_of, found_again, trimmed_in
from polonaise.storage.offline import bounds_in, caution, each_unwaited, header_of, opened, unwaited
from polonaise.storage.protocol.standing import Bounds, Standing
from polonaise.terms import PartitionId, TransactionId

T = TypeVar("T")

_log = logging.getLogger("polonaise.spark")

_ATTEMPTS: Final = 3
"""To open files that a trim may have removed since they were listed."""


class SegmentFile(NamedTuple):
    """A segment whose header, at least, can be read."""

    path: str
    span: Span
    """Its ids: up to the next segment's first, if that continues this one, else to the last that can be read."""
    bytes: int
    """Size of the file."""


class PartitionFiles(NamedTuple):
    """The files of one partition in a directory, and what they hold."""

    files: Files
    cluster_key: bytes | None
    bounds: Bounds
    segments: tuple[SegmentFile, ...]
    end: TransactionId
    """The id after the last one that the partition holds, or should hold by its own evidence of sync. Damaged bytes
    after the last readable transaction count as one more."""

    @property
    def begin(self) -> TransactionId:
        """The first id that was not trimmed."""
        return trimmed_in(self.files).first


class SegmentFiles:
    """One storage directory, or one partition's directory in it. Each partition's files are examined once per query."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._partitions_examined: dict[PartitionId, PartitionFiles] = {}
        self._cautioned: set[PartitionId] = set()

    def __str__(self) -> str:
        return f"the storage directory {redacted(self._path)}"

    @cached_property
    def _files(self) -> dict[PartitionId, Files]:
        """The files of each partition, found by their names, the control file and, if need be, a segment's header.
        Raises `BadOption` for a file instead of a directory, and for files that do not tell their partition, and what
        `find` raises."""
        if os.path.isfile(self._path):
            raise BadOption(
                f"{redacted(self._path)} is a file: name the storage directory, or one partition's directory in it"
            )
        return {_partition_of(files): files for files in find(self._path)}

    def _examined(self, partition: PartitionId) -> PartitionFiles:
        """Return what the directory holds of a partition, examined once; what a trim has removed is sought again."""
        files = self._files[partition]
        for look in range(_ATTEMPTS):
            if partition in self._partitions_examined:
                break
            try:
                self._partitions_examined[partition] = _examine(files)
            except NotFound:
                if look + 1 == _ATTEMPTS:
                    raise
                files = found_again(files)
        return self._partitions_examined[partition]

    @property
    def cluster_key(self) -> bytes | None:
        """The cluster key in the control file or in a segment of the first partition; None if nothing tells."""
        for partition, files in self._files.items():
            return self._examined(partition).cluster_key if files.control is None else files.control.cluster_key
        return None

    def partitions(self, named: str) -> list[PartitionId]:
        """Return the partitions that a query names. Raises `UnknownPartition`, `BadOption`, and what `find` raises."""
        if not self._files:
            raise BadOption(f"{self} has no partitions yet: check the path")
        return partitions_among(named, self._files, f"{self} has the partitions")

    def end(self, partition: PartitionId) -> TransactionId:
        """Return the next id of a partition. See `PartitionFiles.end`."""
        return self._examined(partition).end

    def begin(self, partition: PartitionId) -> TransactionId:
        """Return the first id of a partition that was not trimmed."""
        return self._examined(partition).begin

    def extents(self, partition: PartitionId, span: Span, archive: object | None) -> list[Extent]:
        """Return the parts of a range that are in files, in order. What is in no file is missing from the result.
        `archive` is the store that the query names, which lacks the range, or None. The first call for a partition logs
        a warning of what one replica alone can't prove. Raises `HistoryTrimmed` if the range begins with trimmed
        ids."""
        examined = self._examined(partition)
        if span.first < examined.begin:
            advice = "name its archive with the option fragments"
            if archive is not None:
                lacking = f"{span.first} to {min(span.last, examined.begin - 1)}"
                advice = f"the option fragments names {archive}, which lacks {lacking}: restore them there from a copy"
            raise HistoryTrimmed(
                f"{self} has dropped what is below {examined.begin} of partition {partition}: {advice}, or read from "
                f'there on with startingTransactions={{"{partition}": {examined.begin}}}'
            )
        if partition not in self._cautioned:
            self._cautioned.add(partition)
            _log.warning("%s", caution(partition, self._path, examined.bounds, examined.begin))
        extents: list[Extent] = []
        for segment in examined.segments:
            part = Span(max(span.first, segment.span.first), min(span.last, segment.span.last))
            if part.first <= part.last:
                size = segment.bytes * part.length // segment.span.length
                extents.append(Extent(partition, part, None, size, bounds=examined.bounds))
        return extents

    def ends_at(self, partition: PartitionId, id: TransactionId) -> tuple[BatchEnd, BatchEnd] | None:
        """Return the ends that the batch with this id tells, see `ends_told`; None if it can't be read."""
        examined = self._examined(partition)
        for segment in examined.segments:
            if segment.span.first <= id <= segment.span.last:
                try:
                    for batch in _walked(segment.path, examined.files, Span(id, id)):
                        return ends_told(batch)
                except (SegmentDamaged, NotFound):
                    pass
        return None

    def proves(self, partition: PartitionId, id: TransactionId) -> bool:
        """Whether the replica by itself proves that a transaction with this id, if it holds one, is committed."""
        return self._examined(partition).bounds.standing_of(id) is Standing.COMMITTED

    def missing(self, partition: PartitionId, span: Span) -> str:
        """Return the error message for a range that should be in the files, and is not."""
        return (
            f"{self} does not hold {span.first} to {span.last} of partition {partition}, as `polonaise segment verify "
            f"{self._path}` tells: take another replica, or read what is there with endingTransactions and "
            "startingTransactions around it, or all that is there with failOnDataLoss=false"
        )

    def left_out(self, partition: PartitionId, span: Span) -> str:
        """Return the warning for a range that is not in the files, with `failOnDataLoss` false."""
        return (
            f"{self} does not hold {span.first} to {span.last} of partition {partition}: it is left out, because "
            "failOnDataLoss is false"
        )

    def first_at(self, partition: PartitionId, time_us: int, end: TransactionId) -> Span:
        """Return the ids of which one is the first below `end` committed at `time_us` (microseconds UTC) or later. That
        is one id, or `end` if there is none; and those right before it which can't be read, because nobody knows their
        times. Raises `SegmentDamaged` for damage before what it looks for, in the segment that it reads."""
        examined = self._examined(partition)
        segments = examined.segments
        early = len(segments) - 1
        while early >= 0 and _first_time(segments[early].path, examined.files) >= time_us:
            early -= 1
        if early >= 0:
            for batch in _walked(segments[early].path, examined.files, segments[early].span):
                if batch.commit_time_us >= time_us:
                    tell_future(partition, batch.first, batch.commit_time_us)
                    found = min(batch.first, end)
                    return Span(found, found)
        # All that can be read below this id is earlier; what can be read from the next segment on is late enough.
        searched = segments[early].span.last + 1 if early >= 0 else examined.begin
        found = min(segments[early + 1].span.first, end) if early + 1 < len(segments) else end
        if found < end:
            tell_future(partition, found, _first_time(segments[early + 1].path, examined.files))
        return Span(min(searched, found), found)


def read_segments(path: str, split: Split, *, fail_on_data_loss: bool) -> Iterator[Batch]:
    """Yield the batches that hold a split, in order. Raises `SegmentDamaged` at the first one that can't be read; with
    `fail_on_data_loss` false, ends there with a warning. Raises `BeyondLog` if the node has cut or trimmed what was
    there when the query was planned, and `WrongClusterKey` if files of another cluster are there now."""
    files = find_partition(path, split.partition)
    holding = [] if files is None else [each for each in files.paths if first_of(each) <= split.span.first]
    last = split.span.first - 1
    if files is not None and holding:
        try:
            for batch in _walked(holding[-1], files, split.span, split.cluster_key):
                last = batch.last
                yield batch
        except NotFound:
            _log.info("%s was trimmed", holding[-1])
        except SegmentDamaged as error:
            if fail_on_data_loss:
                raise SegmentDamaged(
                    f"{error.text}: end before that with endingTransactions, begin behind it with "
                    "startingTransactions, or read all that can be read with failOnDataLoss=false"
                ) from error
            _log.warning(
                "%s: the rest up to %d is left out, because failOnDataLoss is false", error.text, split.span.last
            )
            return
    if last < split.span.last:
        raise BeyondLog(
            f"{path} does not hold {last + 1} to {split.span.last} of partition {split.partition} any more, which it "
            "did when the query was planned: its node has cut or trimmed it; make the query again"
        )


def standings(ids: pa.Array, bounds: Bounds | None) -> pa.Array:
    """Return a column of the standing of each id, as `Bounds.standing_of` tells; all are committed without bounds."""
    if bounds is None:
        return pa.repeat(pa.scalar(Standing.COMMITTED.value), len(ids))
    values = ids.to_numpy()
    standing = np.where(values <= bounds.confirmed, Standing.COMMITTED.value, Standing.UNPROVED.value)
    if bounds.trusted is not None:
        standing = np.where(values > bounds.trusted, Standing.UNTRUSTED.value, standing)
    return pa.array(standing, pa.string())


def _partition_of(files: Files) -> PartitionId:
    """Return the partition of some files, from the directory's name or else a segment's header. Raises `BadOption`."""
    for path in files.paths if files.partition is None else ():
        with ReadOnlyFile(path) as file:
            try:
                return unwaited(header_of(file, path, files)).partition
            except SegmentDamaged:
                continue
    if files.partition is None:
        raise BadOption(f"can't tell to which partition {files.paths} belong: name a storage directory")
    return files.partition


def _examine(files: Files) -> PartitionFiles:
    """Examine a partition: read the headers of all segments, and the whole of each that the next does not continue."""
    key: bytes | None = None if files.control is None else files.control.cluster_key
    segments: list[SegmentFile] = []
    end = trimmed_in(files).first
    for index, path in enumerate(files.paths):
        following = files.paths[index + 1] if index + 1 < len(files.paths) else None
        with ReadOnlyFile(path) as file:
            try:
                header = unwaited(header_of(file, path, files))
            except SegmentRemoved:
                continue
            except SegmentDamaged:
                end = max(end, first_of(path) + 1)
                continue
            key = key or header.cluster_key
            size = file.size()
        if following is not None and _goes_on(following, files, header.first):
            last = first_of(following) - 1
        else:
            last, readable_to_end = _scanned(path, files)
            # Nobody knows how much follows bytes that can't be read: one transaction at least.
            end = max(end, last + (1 if readable_to_end else 2))
        end = max(end, last + 1)
        if last >= header.first:
            segments.append(SegmentFile(path, Span(header.first, last), size))
    end = max(end, evidence_in(files).last + 1)
    return PartitionFiles(files, key, bounds_in(files), tuple(segments), end)


def _goes_on(path: str, files: Files, first: TransactionId) -> bool:
    """Whether the header of the segment at `path` says that it continues the segment that begins with id `first`."""
    with ReadOnlyFile(path) as file:
        try:
            return unwaited(header_of(file, path, files)).previous_first == first
        except SegmentDamaged:
            return False


def _scanned(path: str, files: Files) -> tuple[TransactionId, bool]:
    """Return the last readable id of a segment, and whether at most an unfinished write follows it."""
    last = first_of(path) - 1
    try:
        for batch in _walked(path, files, Span(last + 1, 2**63 - 1)):
            last = batch.last
    except SegmentDamaged:
        return last, False
    return last, True


def _first_time(path: str, files: Files) -> int:
    """Return the commit time of a segment's first batch, microseconds UTC; 0 if it can't be read."""
    first = first_of(path)
    try:
        return next((batch.commit_time_us for batch in _walked(path, files, Span(first, first))), 0)
    except SegmentDamaged:
        return 0


def _walked(path: str, files: Files, span: Span, key: bytes | None = None) -> Iterator[Batch]:
    """Yield the batches of one segment that hold this range. Ends at an unfinished write. Raises `SegmentDamaged` for
    damage before the range's end, `NotFound` if the file is gone, or its node is removing it, and `WrongClusterKey` if
    it has another cluster key than `key`."""
    return each_unwaited(_batches(path, files, span, key))


async def _batches(path: str, files: Files, span: Span, key: bytes | None) -> AsyncGenerator[Batch, None]:
    with ReadOnlyFile(path) as file:
        try:
            scan, header = await opened(file, path, files)
        except SegmentRemoved as error:
            # A node overwrites the header, and then removes the file: who comes between the two finds it gone as well.
            raise NotFound(f"{path}: {error.text}") from error
        if key is not None and header.cluster_key != key:
            raise WrongClusterKey(
                f"{path} belongs to another cluster than what was there when the query was planned: correct the "
                "address, or put back what belongs there, and make the query again"
            )
        async with aclosing(walk(file, header, scan, file.size())) as batches:
            async for _, batch in batches:
                if batch.last >= span.first:
                    yield batch
                if batch.last >= span.last:
                    return
        if scan.bad and not scan.torn:
            raise SegmentDamaged(f"{path}: {scan.bad}; the first transaction that can't be had is {scan.last + 1}")
