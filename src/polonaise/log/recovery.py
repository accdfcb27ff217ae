"""Find the log in a partition's files, whatever happened to them: which files are the log, and where it ends.

Bad bytes end the log in any case. Bytes that were never synced were never acknowledged: a *torn tail*, which is cut,
and the replica says "has not". Bytes below any evidence of a sync may have been acknowledged: *damage*, and the replica
says "may have lost" until it has been repaired from others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise

from polonaise.errors import DiskFailed, NotFound, PolonaiseError, SegmentDamaged, UnsupportedFormat, WrongClusterKey
from polonaise.host import Disk, opened_file
from polonaise.log import segment
from polonaise.log.control import ControlSlot, SyncEvidence, TrimMark
from polonaise.log.segment import Segment, SegmentHeader, SegmentRemoved
from polonaise.log.tail import Tail
from polonaise.terms import NO_TRANSACTION, TransactionId


@dataclass(slots=True)
class Recovered:
    """The log that was recovered from the files."""

    sealed: list[Segment]
    """The segments before the tail, in order."""
    tail: Tail | None
    """The last segment, open. None without a usable one: the log is new, or its first segment damaged or gone."""
    damage: str
    """Why the log may have lost ids above its end, by its files; empty if they don't say so, as for a recorded loss."""


async def recover(disk: Disk, directory: str, slot: ControlSlot) -> Recovered:
    """Find the log in `directory`. Cut a torn tail; change nothing else that could be part of the log.

    What no evidence proves to be synced is written once more, to be durable from then on. Raises `UnsupportedFormat`
    and `WrongClusterKey` for files of another version or cluster, and `DiskFailed`.
    """
    promises, evidence = slot.promises, slot.evidence
    # Above the limit nothing is even read: after a failed sync, bytes may read well and not be on the disk.
    limit = promises.untrusted_above if promises.untrusted else None
    await _sweep(disk, directory)
    firsts = await segments_in(disk, directory)
    chain, damage = await _chain(disk, directory, slot, firsts, limit)
    # Normally one turn. When the beginning of the last segment can't be read, the one before it becomes the tail, and
    # the log ends there, damaged.
    while chain:
        header = chain[-1]
        file = await disk.open(_path(directory, header.first))
        try:
            tail = await Tail.load(disk, directory, header, file, limit)
        except SegmentDamaged as error:
            damage = error.text
            chain.pop()
            continue
        # With a limit, evidence above it is expected to be missed, and an end below it is judged by the caller.
        if limit is None and not damage:
            damage = _damage_of(tail, evidence)
        # Only a torn tail is cut here. Nothing that was ever synced is cut before a session has decided where this copy
        # ends: it may be the last one of something.
        await _make_durable(slot, tail, cut_above=limit is None and not damage)
        return Recovered(_sealed(chain), tail, damage)
    # A new log has never been synced or trimmed. One that has, and has no file now, has lost everything.
    if not damage and (evidence.offset or evidence.last != NO_TRANSACTION or slot.trimmed.first):
        damage = "no segment file is left"
    return Recovered([], None, damage)


async def segments_in(disk: Disk, directory: str) -> list[TransactionId]:
    """Return the first ids of the segment files in the directory, in ascending order."""
    names = await disk.list(directory)
    return sorted(int(name[:-4]) for name in names if name.endswith(".seq") and name[:-4].isdecimal())


async def remove_segment(disk: Disk, directory: str, first: TransactionId) -> None:
    """Remove a segment and its index, durably.

    The header is overwritten first: if the sync of the removed name fails, the name may come back, and must then name
    no segment. The index goes before the segment: none may ever speak of a segment that was written later.
    """
    with contextlib.suppress(NotFound):
        async with opened_file(disk, _path(directory, first)) as file:
            await file.write(0, [segment.REMOVED], sync=True)
    for suffix in ("idx", "seq"):
        with contextlib.suppress(NotFound):
            await disk.remove(f"{directory}/{segment.name(first, suffix)}")
    await disk.sync_directory(directory)


async def _sweep(disk: Disk, directory: str) -> None:
    names = await disk.list(directory)
    there = set(names)
    for name in names:
        if name.endswith(".seq.new") or (name.endswith(".idx") and f"{name[:-4]}.seq" not in there):
            await disk.remove(f"{directory}/{name}")
    # The process that made these names may have died before it synced the directory: what is read here as part of the
    # log must not be gone after the next loss of power.
    await disk.sync_directory(directory)


async def _chain(
    disk: Disk, directory: str, slot: ControlSlot, firsts: list[TransactionId], limit: TransactionId | None
) -> tuple[list[SegmentHeader], str]:
    """Return the headers of segments that follow each other from the log's beginning, and what broke the chain, or "".

    A segment belongs to the chain if it begins exactly where the file before it ends, and names the CRC of the last
    batch there. If the place is wrong, the chain ends before the segment. If only the CRC is wrong, either of the two
    segments may be a leftover of another life of the log, and neither is believed. What a trim has left is removed.
    """
    chain: list[SegmentHeader] = []
    size = 0
    for first in firsts:
        if first < slot.trimmed.first:
            await remove_segment(disk, directory, first)
            continue
        # The segment that begins right after the limit is still read: without batches it may be the log's tail.
        if limit is not None and first > limit + 1:
            break
        try:
            header, length = await _header_of(disk, directory, slot, first)
        except SegmentRemoved:  # its removal was broken off, or its name came back: no damage
            await remove_segment(disk, directory, first)
            continue
        except SegmentDamaged as error:
            return chain, error.text
        # The length is compared with the file's, not with a scan: it costs nothing, and a lost end of a sealed segment
        # shows at once. What rots within one is found when it is read.
        if chain and (header.previous_first != chain[-1].first or header.previous_end != size):
            return chain, f"the segment before {segment.name(first)} does not end where this one begins"
        if not chain and not begins_log(header, slot.trimmed):
            return chain, f"segment {segment.name(slot.trimmed.first)}, the first of the log, is missing"
        # A stale segment may fit by its length alone: so its header must also name the CRC of the last batch before.
        # Not for a segment that begins right after the limit: none of its batches is believed, and it must cast no
        # doubt on those below.
        if chain and (limit is None or first <= limit):
            try:
                async with opened_file(disk, _path(directory, chain[-1].first)) as file_before:
                    if not await segment.follows(file_before, chain[-1], header):
                        return chain[:-1], f"segment {segment.name(first)} follows another batch than the one before it"
            except SegmentDamaged as error:
                return chain, error.text
        chain.append(header)
        size = length
    return chain, ""


def begins_log(header: SegmentHeader, trimmed: TrimMark) -> bool:
    """Tell whether this segment is where the log begins: the very first one, or the one that the trim mark names."""
    if not trimmed.first:
        return header.previous_first == NO_TRANSACTION and header.previous_end == 0
    return (header.first, header.previous_crc) == trimmed


async def _header_of(disk: Disk, directory: str, slot: ControlSlot, first: TransactionId) -> tuple[SegmentHeader, int]:
    path = _path(directory, first)
    async with opened_file(disk, path) as file:
        try:
            return await segment.read_header(file, slot.partition, slot.cluster_key, first), await file.size()
        except (UnsupportedFormat, WrongClusterKey) as error:
            # The whole partition can't be used, and an operator has to find the file: the message names it.
            raise type(error)(f"{path}: {error.text}") from error


def _damage_of(tail: Tail, evidence: SyncEvidence) -> str:
    """Return why bytes above the end of the scan may have been acknowledged; empty for a torn tail or a whole log."""
    scanned = tail.scanned
    # Frames after the bad bytes say that these had been synced; or a good batch does not follow the one before.
    if scanned.bad and not scanned.torn:
        return scanned.bad
    # The frames can't tell of the last sync, after which no frame was written: the control file's evidence does, by the
    # offset, and by the id, which also covers a last segment that is missing as a whole.
    synced = max(scanned.synced, evidence.offset if evidence.segment_first == tail.header.first else 0)
    if synced > scanned.end:
        return f"{scanned.bad or f'the last segment ends at offset {scanned.end}'}; it had been synced up to {synced}"
    if evidence.last > scanned.last:
        return f"{scanned.bad or 'the log ends'} after id {scanned.last}; ids up to {evidence.last} had been synced"
    return ""


async def _make_durable(slot: ControlSlot, tail: Tail, *, cut_above: bool) -> None:
    """Make sure that what was read is on the disk, and not only in the memory that a dead process left behind.

    That process's sync may have failed, and then another sync proves nothing. So bytes that no evidence proves to be
    synced are written once more; and a cut is made once more, because bytes that were cut could come back. If the disk
    fails in the writing, ids that the dead process may have acknowledged are in doubt, and the loss is recorded.
    """
    evidence = slot.evidence
    proved = max(tail.scanned.synced, evidence.offset if evidence.segment_first == tail.header.first else 0)
    in_doubt = False
    try:
        unproved = await tail.read_again(proved)
        # Before the write, whose sync covers the cut as well: also when nothing is unproved, and it writes no byte.
        if cut_above:
            await tail.file.truncate(tail.end)
        # Set before the write, not after: the moment it begins, the old bytes may be gone.
        in_doubt = bool(unproved) and tail.scanned.last > evidence.last
        await tail.file.write(tail.end - len(unproved), [unproved], sync=True)
    except BaseException as error:  # also when cancelled: only this call can close the file
        with contextlib.suppress(PolonaiseError):
            await tail.file.close()
        if in_doubt and isinstance(error, DiskFailed):
            await slot.record_loss(evidence.last)
        raise


def _sealed(chain: list[SegmentHeader]) -> list[Segment]:
    """Return the segments before the last one. The header of the next segment says where each ends."""
    return [Segment(header, after.previous_end, after.first - 1) for header, after in pairwise(chain)]


def _path(directory: str, first: TransactionId) -> str:
    return f"{directory}/{segment.name(first)}"
