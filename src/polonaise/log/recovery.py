"""Opening a partition's files after whatever happened to them: which of them are the log, and where it ends.

Bad bytes end the log either way; the question is what they say of the ids above. Bytes that were never synced were
never acknowledged: a *torn tail*, which is cut, and the replica says "has not". Bytes below any evidence of a sync
may have been acknowledged: *damage*, and the replica says "may have lost" until it has been repaired from others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise

from polonaise.errors import (
    DiskFailed,
    NotFound,
    PolonaiseError,
    SegmentDamaged,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.host import Disk
from polonaise.log import segment
from polonaise.log.control import ControlSlot
from polonaise.log.promises import SyncEvidence, TrimMark
from polonaise.log.segment import Segment, SegmentHeader, SegmentRemoved
from polonaise.log.tail import Tail
from polonaise.terms import NO_TRANSACTION, TransactionId


@dataclass(slots=True)
class Recovered:
    """The log as it was found."""

    sealed: list[Segment]
    tail: Tail | None
    """None for a log without a usable segment: new, or with its first segment damaged."""
    damage: str
    """Why it may have lost what is above its end; empty when it has not."""


async def recover(disk: Disk, directory: str, slot: ControlSlot) -> Recovered:
    """Find the log. Cuts a torn tail; touches nothing else that could be part of it.

    Raises `UnsupportedFormat` and `WrongClusterKey` for the files of somebody else, `DiskFailed`.
    """
    promises, evidence = slot.promises, slot.evidence
    limit = promises.untrusted_above if promises.untrusted else None
    await _sweep(disk, directory)
    firsts = await segments_in(disk, directory)
    chain, damage = await _chain(disk, directory, slot, firsts, limit)
    while chain:
        header = chain[-1]
        file = await disk.open(_path(directory, header.first))
        try:
            tail = await Tail.load(disk, directory, header, file, limit)
        except BaseException as error:  # cancelled too: nobody else knows of the file
            await file.close()
            if not isinstance(error, SegmentDamaged):
                raise
            damage = error.text
            chain.pop()
            continue
        if limit is None and not damage:
            damage = _damage_of(tail, evidence)
        await _settle(slot, tail, cut_above=limit is None and not damage)
        return Recovered(_sealed(chain), tail, damage)
    if not damage and (evidence.offset or evidence.last != NO_TRANSACTION or slot.trimmed.first):
        damage = "no segment is left"
    return Recovered([], None, damage)


async def segments_in(disk: Disk, directory: str) -> list[TransactionId]:
    """First ids of the segment files, rising."""
    names = await disk.list(directory)
    return sorted(int(name[:-4]) for name in names if name.endswith(".seq") and name[:-4].isdecimal())


async def remove_segment(disk: Disk, directory: str, first: TransactionId) -> None:
    """Durably: its contents first, so that a name that comes back, because its sync failed, names nothing.

    Then its index, so that none ever speaks of a segment that was written later.
    """
    with contextlib.suppress(NotFound):
        file = await disk.open(_path(directory, first))
        try:
            await file.write(0, [segment.REMOVED], sync=True)
        finally:
            await file.close()
    for suffix in ("idx", "seq"):
        with contextlib.suppress(NotFound):
            await disk.remove(f"{directory}/{segment.name(first, suffix)}")
    await disk.sync_directory(directory)


async def _sweep(disk: Disk, directory: str) -> None:
    """Remove segments that were never finished, and indexes without a segment."""
    names = await disk.list(directory)
    there = set(names)
    for name in names:
        if name.endswith(".seq.new") or (name.endswith(".idx") and f"{name[:-4]}.seq" not in there):
            await disk.remove(f"{directory}/{name}")
    # What is here may have been named by a process that died before it synced the directory.
    await disk.sync_directory(directory)


async def _chain(
    disk: Disk, directory: str, slot: ControlSlot, firsts: list[TransactionId], limit: TransactionId | None
) -> tuple[list[SegmentHeader], str]:
    """The headers of the segments that follow each other from the log's beginning on, and what broke the chain.

    The control file says where that is: only what it knows to be trimmed is not missed, and if it is still there, a
    trim was broken off and is ended now.

    Each begins exactly where the file before it ends, and goes on from the last batch there. One that does not is of
    another life of the log; when it follows another batch, either of the two may be, and neither is believed.
    """
    chain: list[SegmentHeader] = []
    size = 0
    for first in firsts:
        if first < slot.trimmed.first:
            await remove_segment(disk, directory, first)
            continue
        if limit is not None and first > limit + 1:
            break
        try:
            header, length = await _header_of(disk, directory, slot, first)
        except SegmentRemoved:
            await remove_segment(disk, directory, first)
            continue
        except SegmentDamaged as error:
            return chain, error.text
        if chain and (header.previous_first != chain[-1].first or header.previous_end != size):
            return chain, f"the file before segment {segment.name(first)} does not end where that begins"
        if not chain and not begins(header, slot.trimmed):
            return chain, f"segment {segment.name(slot.trimmed.first)}, with which the log began, is not there"
        if chain and (limit is None or first <= limit):
            try:
                if not await _follows(disk, directory, chain[-1], header):
                    return chain[:-1], f"segment {segment.name(first)} follows another batch than the one before it"
            except SegmentDamaged as error:
                return chain, error.text
        chain.append(header)
        size = length
    return chain, ""


def begins(header: SegmentHeader, trimmed: TrimMark) -> bool:
    """Whether the log begins with this segment: all of it, or what a trim has left."""
    if not trimmed.first:
        return header.previous_first == NO_TRANSACTION and header.previous_end == 0
    return (header.first, header.previous_crc) == trimmed


async def _header_of(disk: Disk, directory: str, slot: ControlSlot, first: TransactionId) -> tuple[SegmentHeader, int]:
    """The header of a segment, and the length of its file."""
    path = _path(directory, first)
    file = await disk.open(path)
    try:
        return await segment.read_header(file, slot.partition, slot.cluster_key, first), await file.size()
    except (UnsupportedFormat, WrongClusterKey) as error:  # the whole partition can't be used: an operator looks for it
        raise type(error)(f"{path}: {error.text}") from error
    finally:
        await file.close()


async def _follows(disk: Disk, directory: str, before: SegmentHeader, header: SegmentHeader) -> bool:
    file = await disk.open(_path(directory, before.first))
    try:
        return await segment.follows(file, before, header)
    finally:
        await file.close()


def _damage_of(tail: Tail, evidence: SyncEvidence) -> str:
    """Why what lies above the end of the scan may have been acknowledged; empty for a torn tail or a whole log."""
    found = tail.found
    if found.bad and not found.torn:
        return found.bad
    synced = max(found.synced, evidence.offset if evidence.segment_first == tail.header.first else 0)
    if synced > found.end:
        return f"{found.bad or 'it ends'}, and offset {synced} had been synced"
    if evidence.last > found.last:
        return f"{found.bad or 'it ends'} after {found.last}, and {evidence.last} had been synced"
    return ""


async def _settle(slot: ControlSlot, tail: Tail, *, cut_above: bool) -> None:
    """Make sure that what was read is on the disk, and not only in the memory that a dead process left behind.

    Its sync may have failed before it could say so. Then a sync of ours would prove nothing: what nobody has proved
    to be synced is written once more, and a cut is made once more, also when nothing is left to be seen above it:
    otherwise bytes that were cut could come back after the copy was told to be clean.

    If that fails, ids that an earlier life may have acknowledged are in doubt. Otherwise it is done again next time.
    """
    evidence = slot.evidence
    proved = max(tail.found.synced, evidence.offset if evidence.segment_first == tail.header.first else 0)
    in_doubt = False
    try:
        unproved = await tail.read_again(proved)
        if cut_above:
            await tail.file.truncate(tail.end)
        in_doubt = bool(unproved) and tail.found.last > evidence.last
        await tail.file.write(tail.end - len(unproved), [unproved], sync=True)
    except BaseException as error:  # cancelled too: nobody else knows of the file
        with contextlib.suppress(PolonaiseError):
            await tail.file.close()
        if in_doubt and isinstance(error, DiskFailed):
            await slot.record_loss(evidence.last)
        raise


def _sealed(chain: list[SegmentHeader]) -> list[Segment]:
    return [Segment(header, after.previous_end, after.first - 1) for header, after in pairwise(chain)]


def _path(directory: str, first: TransactionId) -> str:
    return f"{directory}/{segment.name(first)}"
