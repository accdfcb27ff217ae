"""Examine segments offline: whether they are as they were written, what is in them, and how much."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from polonaise.errors import BatchDamaged, DataDamaged, NotFound, SegmentDamaged
from polonaise.host.files import ReadOnlyFile
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.recovery import begins_log
from polonaise.log.segment import (
    HEADER_BYTES,
    Scan,
    SegmentHeader,
    SegmentRemoved,
    end_of_bytes,
    read_preamble,
    walk,
)
from polonaise.log.tail import empty_scan
from polonaise.storage.files import Files, evidence_in, first_of, found_again, trimmed_in
from polonaise.storage.offline import batches_of, header_of
from polonaise.terms import NO_TRANSACTION, PartitionId, Transaction, TransactionId


class SegmentDamage(NamedTuple):
    """Bytes that are not as they were written, or are missing."""

    path: str
    offset: int
    """Where they begin in the file; for a damaged body, where its batch's frame begins."""
    transaction: TransactionId
    """The first id that can't be read because of these bytes."""
    what: str


@dataclass(slots=True)
class SegmentReport:
    """One segment, read to its end or to the first bad bytes."""

    path: str
    partition: PartitionId | None
    first: TransactionId
    last: TransactionId
    """The last good id; the one before `first` if there is none."""
    bytes: int
    """Size of the file, without the space that the node has written ahead at its end."""
    batches: int = 0
    transactions: int = 0
    data_bytes: int = 0
    sessions: int = 0
    """Number of different sessions that wrote the batches."""
    registers_changed: int = 0
    """Number of batches that change registers."""
    batch_bytes_max: int = 0
    first_commit_time_us: int = 0
    last_commit_time_us: int = 0
    unsynced_bytes: int = 0
    """Bytes at the end of which no frame in this file says that they were synced: normally an unfinished write."""
    removed: bool = False
    """Whether it is no part of the log any more, and only its name came back after a crash."""
    damage: SegmentDamage | None = None


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The segments of one partition."""

    partition: PartitionId | None
    segments: tuple[SegmentReport, ...]
    damages: tuple[SegmentDamage, ...] = ()
    """Within, between and after the segments, in the order of the first id that each makes unreadable."""

    @property
    def last(self) -> TransactionId:
        """The last good id before the first damage."""
        if self.damages:
            return self.damages[0].transaction - 1
        return max((segment.last for segment in self.segments), default=NO_TRANSACTION)


async def verify(files: Files) -> PartitionReport:
    """Check that all is as it was written: every CRC, the order of ids, the chains of batches and of segments.

    Damage is reported, not raised. Where some is found, segments and control file are read a second time, because a
    write may have been under way. Raises `WrongClusterKey`, `UnsupportedFormat`, and `ControlFileDamaged`.
    """
    report = await _verify(files)
    return await _verify(found_again(files)) if report.damages else report


async def read(files: Files, after: TransactionId = NO_TRANSACTION) -> AsyncGenerator[Transaction, None]:
    """Yield the application's transactions above id `after` that one replica holds, whatever the others hold.

    For an operator without a quorum: `storage.offline.bounds_in` tells up to where they are known to be committed.
    Raises `SegmentDamaged` for the first one that should be there and can't be read, `DataDamaged` for a damaged body,
    `WrongClusterKey` and `UnsupportedFormat`.
    """
    async with aclosing(batches_of(files, after)) as batches:
        async for batch in batches:
            for tx in batch.transactions(after):
                yield tx


class _Read(NamedTuple):
    """A segment that was read, and what the next one has to continue."""

    report: SegmentReport
    header: SegmentHeader | None = None
    """None if it can't be read."""
    preamble: bytes = b""
    scan: Scan | None = None
    """None if nothing after the header can be read."""


async def _verify(files: Files) -> PartitionReport:
    damages: list[SegmentDamage] = []
    reports: list[SegmentReport] = []
    before: _Read | None = None
    for number, path in enumerate(files.paths):
        try:
            read = await _read(path, files, sealed=files.whole and number + 1 < len(files.paths))
        except NotFound:
            continue  # removed by the node meanwhile: if it is needed, the next segment says so
        reports.append(read.report)
        if read.report.removed:
            continue
        if files.whole and (gap := _gap(files, before, read)):
            first = before.report.last + 1 if before else trimmed_in(files).first
            damages.append(SegmentDamage(path, 0, first, gap))
        if read.report.damage is not None:
            damages.append(read.report.damage)
        before = read
    if files.whole and not damages:
        damages += _missing(files, before)
    return PartitionReport(files.partition, tuple(reports), tuple(sorted(damages, key=lambda d: d.transaction)))


async def _read(path: str, files: Files, *, sealed: bool) -> _Read:
    """Read one segment to its end or to the first bad bytes. Raises `NotFound` and what `header_of` raises."""
    first = first_of(path)
    with ReadOnlyFile(path) as file:
        size = file.size()
        report = SegmentReport(path, files.partition, first, first - 1, size)
        try:
            header = await header_of(file, path, files)
        except SegmentRemoved:
            report.removed = True
            return _Read(report)
        except SegmentDamaged as error:
            report.damage = SegmentDamage(path, 0, first, error.text)
            return _Read(report)
        report.partition = header.partition
        try:
            preamble = await read_preamble(file, header)
            scan = empty_scan(header, preamble)
        except (SegmentDamaged, BatchDamaged) as error:
            report.damage = SegmentDamage(path, HEADER_BYTES, first, error.text)
            return _Read(report, header)
        await _read_batches(file, report, header, scan, size)
        if not sealed:  # zeros at the end are space that the node has written ahead
            report.bytes = await end_of_bytes(file, scan.end, size)
    if report.damage is None and scan.bad:
        if scan.torn and not sealed:
            report.unsynced_bytes = report.bytes - scan.end
        else:
            report.damage = SegmentDamage(path, scan.end, scan.last + 1, scan.bad)
    return _Read(report, header, preamble, scan)


async def _read_batches(
    file: ReadOnlyFile, report: SegmentReport, header: SegmentHeader, scan: Scan, size: int
) -> None:
    sessions: set[int] = set()
    async with aclosing(walk(file, header, scan, size)) as batches:
        async for offset, batch in batches:
            report.damage = _bad_body(report.path, offset, batch)
            if report.damage is not None:
                break
            report.batches += 1
            report.transactions += batch.count
            report.data_bytes += batch.data_bytes
            report.registers_changed += bool(batch.registers_bytes)
            report.batch_bytes_max = max(report.batch_bytes_max, batch.length)
            sessions.add(batch.session)
            report.first_commit_time_us = report.first_commit_time_us or batch.commit_time_us
            report.last_commit_time_us = batch.commit_time_us
    report.sessions = len(sessions)
    report.last = report.damage.transaction - 1 if report.damage is not None else scan.last


def _bad_body(path: str, offset: int, batch: Batch) -> SegmentDamage | None:
    """Return the first body that does not fit its writer's CRC, although the batch around it is intact."""
    good = batch.first - 1
    try:
        for tx in batch.transactions(own=True):
            good = tx.id
    except DataDamaged as error:
        return SegmentDamage(path, offset, good + 1, f"the data does not fit its CRC: {error.text}")
    return None


def _gap(files: Files, before: _Read | None, read: _Read) -> str:
    """Return why a segment does not continue the one before it; empty if it does, or if that can't be known."""
    header = read.header
    if header is None:
        return ""
    if before is None:
        return "" if begins_log(header, trimmed_in(files)) else "the segment before it is missing"
    if header.previous_first != before.report.first:
        return "the segment before it is missing"
    if before.scan is None or before.report.damage is not None:
        return ""
    if header.previous_end != before.report.bytes or header.first != before.scan.last + 1:
        return "it does not begin where the segment before it ends"
    if header.previous_crc != before.scan.last_crc:
        return "it follows another batch than the last one before it"
    if read.scan is not None and read.preamble != registers.snapshot(before.scan.registers):
        return "its registers are not those at the end of the segment before it"
    return ""


def _missing(files: Files, last_read: _Read | None) -> list[SegmentDamage]:
    """Return the damage that only the control file tells of."""
    last, end, path = NO_TRANSACTION, 0, f"the directory of partition {files.partition}"
    if last_read is not None:
        last, path = last_read.report.last, last_read.report.path
        end = last_read.report.bytes - last_read.report.unsynced_bytes
    evidence = evidence_in(files)
    if evidence.last > last:
        return [SegmentDamage(path, end, last + 1, f"it ends with {last}, and {evidence.last} had been synced")]
    if files.control is not None and files.control.promises.may_have_lost:
        above = files.control.promises.lost_above
        return [SegmentDamage(path, end, above + 1, f"its node says that it may have lost what was above {above}")]
    return []
