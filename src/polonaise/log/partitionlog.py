"""One partition's log on one disk: append, read, cut and trim, and tell what may have been lost.

Promises: an append that returned is on the disk; the CRCs of frame and batch are checked before bytes are given out;
nothing that was synced is cut before the control file says so; bytes that were good once and are not any more are
reported, never skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import (
    BatchDamaged,
    Closed,
    DiskFull,
    HistoryTrimmed,
    LogForked,
    NotFound,
    OutOfOrder,
    PolonaiseError,
    RegistersFull,
    SegmentDamaged,
    fault,
    invariant,
)
from polonaise.host import Disk, Host
from polonaise.log import registers, segment
from polonaise.log.batch import Batch
from polonaise.log.control import ControlSlot, SyncEvidence, TrimMark
from polonaise.log.recovery import recover, remove_segment, segments_in
from polonaise.log.segment import (
    BATCH_BYTES_MAX,
    PREAMBLE_BYTES_MAX,
    DamageFound,
    Index,
    Segment,
    SegmentHeader,
    check_registers,
)
from polonaise.log.segmentreader import Reader, SegmentCache, removed
from polonaise.log.tail import Tail
from polonaise.terms import NO_TRANSACTION, UNRESOLVED, TransactionId

_first = attrgetter("first")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The sizes at which a log begins a new segment."""

    segment_bytes_max: int = 256 * 1024 * 1024
    """The size in bytes from which on a segment takes no further batches."""
    segment_batches_max: int = 262_144
    """The number of batches from which on a segment takes no more: its index is in memory until it is sealed."""


class PartitionLog:
    """The open log of one partition.

    `append`, `cut`, `trim`, `lose_above` and `close` are for one task, one call at a time; reads may run beside them
    and see only what is synced. After a failed `cut` or `lose_above` the log has to be opened anew (`broken`), after a
    failed write or sync it may have to be cut (`untrusted`).
    """

    def __init__(
        self, host: Host, disk: Disk, directory: str, slot: ControlSlot, settings: LogSettings, cache: SegmentCache
    ) -> None:
        """Private: a log is opened with `open`."""
        self._host = host
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._cache = cache
        self._reader = Reader(disk, directory, cache)
        self._sealed: list[Segment] = []
        self._tail: Tail | None = None
        self._gate = Gate()
        self._numbers: dict[str, int] = {}
        """The number of each segment's file by its name, as the directory was seen last (`Disk.entries`)."""
        self.slot = slot
        """The partition's promises in the control file."""
        self.broken: PolonaiseError | None = None
        """Why the log has to be opened anew, or was closed; else None. Also set during a cut or `lose_above`."""
        self.damage = ""
        """What damage was found when the log was opened, or by a read since then; empty for none, and after a cut."""

    @classmethod
    async def open(
        cls,
        host: Host,
        directory: str,
        slot: ControlSlot,
        settings: LogSettings | None = None,
        cache: SegmentCache | None = None,
        disk: Disk | None = None,
    ) -> PartitionLog:
        """Open the log in `directory`; make the first segment of a new one.

        A torn tail is cut. Damage is recorded in the control file, and the bytes are left as they are until `cut`. Logs
        of one node share a `cache`, and a `disk` that bounds how many files they have open. Raises what
        `recovery.recover` does, and `DiskFull`.
        """
        # Not `disk or host.disk`: both kinds have a length, and one without an open file is false.
        disk = host.disk if disk is None else disk
        cache = SegmentCache() if cache is None else cache
        log = cls(host, disk, directory, slot, settings or LogSettings(), cache)
        await disk.make_directory(directory)
        # Synced even if the directory is older: the process that made it may have died before its name was durable.
        await disk.sync_directory(directory.rpartition("/")[0] or ".")
        try:
            await log._load()
        except BaseException:  # also when cancelled: only this call can close what was opened
            await log._forget_all()
            raise
        return log

    async def _load(self) -> None:
        recovered = await recover(self._disk, self._directory, self.slot)
        self._sealed, tail = recovered.sealed, recovered.tail
        # Before anything is waited for: what is adopted is closed with the log, also when this is cancelled.
        if tail is not None:
            self._adopt(tail)
        self._numbers = await self._disk.entries(self._directory)
        promises = self.slot.promises
        self.damage = recovered.damage
        # A damaged or untrusted log is left as it is. `cut` decides where it ends and which segment is its tail: until
        # then a new first segment would turn a log that has lost everything into one that never had anything.
        if not self.damage and not promises.untrusted:
            if tail is None:
                await self._begin()
            elif not len(tail.index):
                await self._renew(tail)
        # Up to `untrusted_above` everything was synced and may have been acknowledged: ending below it is a loss, even
        # if no bytes look damaged.
        if self.damage or (promises.untrusted and self.last < promises.untrusted_above):
            await self.slot.record_loss(self.last)
        elif not promises.untrusted:  # an untrusted log notes its evidence once it is cut
            self._note()

    # ------------------------------------------------------------------ what it holds

    @property
    def first(self) -> TransactionId:
        """The first id that the log holds, or would hold: every id below was trimmed."""
        return self.slot.trimmed.first

    @property
    def last(self) -> TransactionId:
        """The last id that the log holds, synced and believed; `first - 1` when it is empty, -1 without a usable
        segment.
        """
        return self._tail.scanned.last if self._tail else NO_TRANSACTION

    @property
    def last_crc(self) -> int:
        """The CRC of the batch that ends at `last`; 0 when `last` is -1."""
        return self._tail.scanned.last_crc if self._tail else 0

    @property
    def untrusted(self) -> bool:
        """Whether the files may hold bytes above `last` that have to be cut before anything is appended."""
        return self.slot.promises.untrusted

    @property
    def segments(self) -> list[Segment]:
        """The segments of the log in order, the tail last; empty while no segment can be used."""
        return [*self._sealed, self._tail.segment] if self._tail else []

    def registers_snapshot(self) -> bytes:
        """Return the registers as they are after `last`, encoded."""
        return registers.snapshot(self._tail.scanned.registers) if self._tail else b""

    # ------------------------------------------------------------------ writing

    async def append(self, batches: Sequence[Batch]) -> None:
        """Append the batches with one write and one sync. On return they are durable; after a fault none is in the log.

        Raises `OutOfOrder`, `LogForked` and `BatchDamaged` for batches that do not follow or can't be stored;
        `partition_unavailable` while the log has to be cut or opened anew first; `RegistersFull`; `DiskFull`, normally
        with the partial bytes removed; and `DiskFailed`. If the file may hold bytes above `last` then, nothing is taken
        until these are cut (`untrusted`).
        """
        tail = self._appendable()
        self._check_follow(batches)
        tail = await self._room(tail)
        try:
            await tail.write(batches)
        except DiskFull:
            # A write that found no room is no failed sync: once its partial bytes are gone, the log is as it was.
            try:
                await tail.take_back()
            except PolonaiseError:
                await self.slot.record_failed_sync(self.last)
            raise
        except PolonaiseError:
            # After a failed sync the disk may have any part of these bytes. Reading them back, or syncing again, proves
            # nothing: the system may show from memory what it has dropped.
            await self.slot.record_failed_sync(self.last)
            raise
        # Only now: evidence says that bytes were synced, and after a crash what it covers must not be missing.
        self._note()

    def check_whole(self) -> None:
        """Raise `partition_unavailable` if the log has to be opened anew."""
        if self.broken is not None:
            raise fault(
                "partition_unavailable",
                "the files can't be used until the next session start, which opens them anew, after: "
                f"{self.broken.text}",
            )

    def _appendable(self) -> Tail:
        self.check_whole()
        if self._tail is None or self.untrusted:
            raise fault("partition_unavailable", f"bytes above {self.last} are not trusted: cut the log there first")
        return self._tail

    def _check_follow(self, batches: Sequence[Batch]) -> None:
        """Raise unless the batches go on from the log's end and can be read back once they are stored."""
        last, crc = self.last, self.last_crc
        for batch in batches:
            if batch.partition != self.slot.partition or batch.first != last + 1:
                raise OutOfOrder(
                    f"batch {batch.first}..{batch.last} of partition {batch.partition} does not follow {last} of "
                    f"partition {self.slot.partition}"
                )
            # Each CRC covers the one before it, so this single comparison vouches for the whole log below.
            if batch.previous_crc != crc:
                raise LogForked(f"the batch from {batch.first} on follows another batch than this log's last one")
            # What a scan refuses to read must never be written: it would look like damage at the next opening.
            if batch.length > BATCH_BYTES_MAX or not batch.has_data:
                raise BatchDamaged(
                    f"a batch of {batch.length} bytes can't be stored: it has no data, or is larger than "
                    f"{BATCH_BYTES_MAX} bytes"
                )
            check_registers(batch)
            last, crc = batch.last, batch.crc

    async def _room(self, tail: Tail) -> Tail:
        count, settings = len(tail.index), self._settings
        # A segment without batches is never full, whatever its preamble's size: the next one would begin with the same
        # id, and so have the same name.
        if not count or (tail.end < settings.segment_bytes_max and count < settings.segment_batches_max):
            return tail
        preamble = registers.snapshot(tail.scanned.registers)
        if len(preamble) > PREAMBLE_BYTES_MAX:
            raise RegistersFull(
                f"the registers take {len(preamble)} bytes, and a segment can begin with {PREAMBLE_BYTES_MAX} at most: "
                "delete registers that are not needed"
            )
        try:
            await tail.seal()
        except PolonaiseError:
            # After a crash the file may have another length than the next segment's header would say.
            await self.slot.record_failed_sync(self.last)
            raise
        # The old segment is sealed before the new one exists: the new one's header says, for good, where the old ends.
        header = self._header(preamble, tail)
        fresh = await self._create(header, preamble)
        # No await until the new tail is adopted: a reader in between would miss the sealed segment.
        self._sealed.append(tail.segment)
        self._adopt(fresh)
        await self._cache.release(tail.opened)
        return fresh

    def _header(self, preamble: bytes = b"", before: Tail | None = None) -> SegmentHeader:
        """Return the header of the segment that goes on from `before`, which has batches; or of the first segment."""
        slot = self.slot
        return SegmentHeader(
            created_us=self._host.clock.wall_us(),
            cluster_key=slot.cluster_key,
            partition=slot.partition,
            previous_crc=before.scanned.last_crc if before else 0,
            first=before.scanned.last + 1 if before else 0,
            previous_first=before.header.first if before else NO_TRANSACTION,
            previous_last=before.index.offsets[-1] if before else 0,
            previous_end=before.end if before else 0,
            preamble_bytes=len(preamble),
            preamble_crc=crc32(preamble),
        )

    async def _begin(self) -> None:
        self._adopt(await self._create(self._header(), b""))

    async def _renew(self, tail: Tail) -> None:
        """Make an empty tail anew, and adopt that instead: the sync of its name may have failed in an earlier life."""
        preamble = await segment.read_preamble(tail.file, tail.header)
        self._adopt(await self._create(tail.header, preamble))
        await tail.file.close()

    async def _create(self, header: SegmentHeader, preamble: bytes) -> Tail:
        file = await segment.create(self._disk, self._directory, header, preamble)
        return await Tail.load(self._disk, self._directory, header, file)

    def _adopt(self, tail: Tail) -> None:
        """Make this the tail of the log, and give readers its file and its growing index."""
        self._tail = tail
        tail.opened.index = tail.index  # a cut may have made it anew
        self._cache.put(self._reader.path(tail.segment), tail.opened)

    def _note(self) -> None:
        assert self._tail is not None
        self.slot.note(SyncEvidence(self._tail.header.first, self._tail.end, self.last))

    # ------------------------------------------------------------------ trimming

    def may_trim(self, before: TransactionId) -> bool:
        return bool(self._sealed) and self._sealed[0].last < before

    async def trim(self, before: TransactionId) -> None:
        """Drop the oldest segment for good, if `may_trim` allows it; one, so that no other user of the log waits long.

        Raises `partition_unavailable` while the log has to be cut or opened anew first.
        """
        self.check_whole()
        if self.untrusted:
            raise fault(
                "partition_unavailable",
                f"bytes above {self.last} are not trusted: cut the log there before it is trimmed",
            )
        if not self.may_trim(before):
            return
        oldest, following = self.segments[0], self.segments[1].header
        # The control file first, durably: a segment that is missing without being named there is damage, and a file
        # that a crash leaves behind is removed by the next opening.
        await self.slot.begin_trim(TrimMark(following.first, following.previous_crc))
        # Reads that began before may still use the file: the gate waits for them.
        async with self._gate.closed():
            del self._sealed[0]
            await self._cache.drop([self._reader.path(oldest)])
            await remove_segment(self._disk, self._directory, oldest.first)

    # ------------------------------------------------------------------ cutting

    async def cut(self, last: TransactionId) -> None:
        """Remove everything above `last`, durably; a crash on the way may leave part of it, but never a gap.

        Of a batch that goes on above `last`, nothing is left, unless an id in it is confirmed: then all of it stays. A
        log that ends below `last` loses only what is not believed. A cut at -1, or below what was trimmed, leaves an
        empty log that begins anew at 0. Raises `DamageFound` for damaged bytes below; `SegmentDamaged` when a segment's
        preamble can't be read again; and `partition_unavailable` when the log has to be opened anew.
        """
        self.check_whole()
        last = min(last, self.last)
        if last == self.last and not self.untrusted:
            return
        async with self._gate.closed():
            try:
                target, count, last, crc = await self._target(last)
            except DamageFound as error:
                error.cuts = self.slot.cuts
                raise
            # From here on files and memory differ until all is done: a call that fails or is cancelled on the way has
            # to leave a log that nobody uses before it was opened anew.
            self.broken = fault("partition_unavailable", f"a cut at {last} was interrupted")
            try:
                await self._cut_at(target, count, last, crc)
            except BaseException as error:
                if isinstance(error, PolonaiseError):
                    self.broken = error
                if target is not None and target is not self._tail:  # else the cache has its file, and closes it
                    await target.file.close()
                raise
            # After the cut only: until the untrusted bytes are gone for good, a restart must know of them.
            if self.untrusted:
                await self.slot.save(replace(self.slot.promises, untrusted_above=UNRESOLVED))
            self.broken = None
            self.damage = ""
            self._note()

    async def _cut_at(self, target: Tail | None, count: int, last: TransactionId, crc: int) -> None:
        """Record the cut, then remove what lies above it from the end downwards, so that a crash leaves no gap."""
        first = target.header.first if target else NO_TRANSACTION
        end = target.offset_at(count) if target else 0
        await self.slot.begin_cut(SyncEvidence(max(first, 0), end, last))
        self._numbers = {}  # a segment that is written later may have the name of one that goes now
        await self._remove_above(target, first)
        if target is None:
            await self._begin()
            return
        try:
            await target.cut(self._directory, count, last, crc)
        except DamageFound as error:
            # The cut has begun, and found the batches that are to stay damaged: ids down to there may be lost.
            await self.slot.record_loss(error.last_good)
            raise
        self._adopt(target)

    async def _target(self, last: TransactionId) -> tuple[Tail | None, int, TransactionId, int]:
        """Return the segment that a cut at `last` makes the tail, its number of batches then, the last id, and its CRC.

        Changes nothing. The segment is None if none is to stay. Raises `DamageFound` as `cut` does.
        """
        segments = self.segments
        if self._tail is None or last < segments[0].first - 1:
            return None, 0, NO_TRANSACTION, 0
        # A segment that begins at `last + 1` stays, without batches: its header already says where the log ends.
        chosen = segments[bisect_right(segments, last + 1, key=_first) - 1]
        if chosen.first == self._tail.header.first:
            count = self._tail.batches_up_to(last)
            if count is None:
                return await self._target(await self._end_near(chosen, last))
            if not count:
                return self._tail, 0, last, chosen.header.previous_crc
            if count == len(self._tail.index):
                return self._tail, count, last, self.last_crc
            (kept_last,) = await self._reader.read(chosen, last, last, 0)
            return self._tail, count, last, kept_last.crc
        path = self._reader.path(chosen)
        try:
            file = await self._disk.open(path)
        except NotFound as error:
            raise removed(path, chosen.first) from error
        try:
            tail = await Tail.load(self._disk, self._directory, chosen.header, file, limit=last)
        except SegmentDamaged as error:
            raise DamageFound(error.text, chosen.first - 1) from error
        if tail.scanned.last != last:
            bad = tail.scanned.bad
            try:
                # To a scan, zeros are the end of the bytes. Before the end of a sealed segment they were batches.
                if not bad and await segment.end_of_bytes(file, tail.end, chosen.end) == tail.end < chosen.end:
                    bad = f"zeros at offset {tail.end}"
            finally:
                await file.close()
            if bad:
                raise DamageFound(bad, tail.scanned.last)
            return await self._target(await self._end_near(chosen, last))
        return tail, len(tail.index), last, tail.scanned.last_crc

    async def _end_near(self, chosen: Segment, last: TransactionId) -> TransactionId:
        """Return where a cut at `last`, an id within a batch of this segment, ends the log: behind or before it."""
        (batch,) = await self._reader.read(chosen, last, chosen.last, 0)
        # Servers of earlier versions confirmed any id, also within a batch, and had copies cut there.
        return batch.last if batch.first <= self.slot.promises.confirmed else batch.first - 1

    async def _remove_above(self, target: Tail | None, first: TransactionId) -> None:
        """Remove the segments after `target`, which begins with `first`; the last one first, so that no gap is left."""
        if target is not self._tail:
            await self._forget_tail()
            dropped = [each for each in self._sealed if each.first >= first]
            self._sealed = self._sealed[: len(self._sealed) - len(dropped)]
            await self._cache.drop(self._reader.path(each) for each in dropped)
        # From the directory, not from memory: behind damage lie files that are not part of the log as it was opened.
        for other in reversed(await segments_in(self._disk, self._directory)):
            if other > first:
                await remove_segment(self._disk, self._directory, other)

    async def _forget_all(self) -> None:
        try:
            await self._cache.drop(self._reader.path(each) for each in self._sealed)
        finally:
            await self._forget_tail()

    async def _forget_tail(self) -> None:
        """Let go of the tail and its file. The log has no tail until the next `_adopt`."""
        tail, self._tail = self._tail, None
        if tail is not None:
            await self._cache.give_up(tail.opened)

    async def lose_above(self, last: TransactionId, why: str) -> None:
        """Record that a read met damage above `last`, and `why`, and open the log again, believing nothing above."""
        # Durably before anything else: after a crash this copy must not tell that it holds what it can't read.
        await self.slot.record_loss(last)
        async with self._gate.closed():
            self.broken = fault("partition_unavailable", f"the log is being read again because of damage above {last}")
            try:
                await self._forget_all()
                await self._load()
            except PolonaiseError as error:
                self.broken = error
                raise
            self.broken = None
        self.damage = why

    # ------------------------------------------------------------------ reading

    async def read(
        self,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        after_time_us: int = 0,
        part_last: TransactionId = -1,
    ) -> list[Batch]:
        """Read batches of one segment, beginning with the one that holds `first`. None of them ends above `last`.

        At most `bytes_max` bytes, unless the first batch alone is larger. With `after_time_us` (microseconds UTC),
        batches before the first one with that commit time or a later one are left out. With `part_last`, only batches
        whose first id is between `first` and `part_last`, both included.

        Raises `DamageFound`; `partition_unavailable` when the log has to be opened anew; and `HistoryTrimmed` if
        `first` was trimmed, unless the first batch of the requested time is certainly one that is left.
        """
        async with self._gate.open():
            self.check_whole()
            # Damage is reported with the count of cuts at the start of the read: if the log is cut meanwhile, other
            # bytes are there, and the report must not be taken for one about them.
            cuts = self.slot.cuts
            try:
                if after_time_us:
                    first_at_time = await self._first_at(after_time_us)
                    # In a trimmed log, batches of that time may have lain before the first one that is left. Then
                    # `first` stays as it is, and the check below says so.
                    if first_at_time > self.first or not self.first:
                        first = max(first, first_at_time)
                last = min(last, self.last)
                if first > last or first < 0:
                    return []
                if first < self.first:
                    raise HistoryTrimmed(
                        f"ids below {self.first} were trimmed from the storage node: "
                        "read them from the archive's fragments",
                        self.first,
                    )
                return await self._reader.read(self._segment_of(first), first, last, bytes_max, part_last)
            except DamageFound as error:
                error.cuts = cuts
                raise

    async def check_beginning(self, first: TransactionId) -> int:
        """Verify header and preamble of the segment that begins with `first`; return their bytes, 0 without one.

        Raises `DamageFound` and `partition_unavailable`.
        """
        async with self._gate.open():
            self.check_whole()
            cuts = self.slot.cuts
            if not self.first <= first <= self.last or (segment := self._segment_of(first)).first != first:
                return 0
            try:
                return await self._reader.check_beginning(segment)
            except DamageFound as error:
                error.cuts = cuts
                raise

    async def check_in_place(self) -> None:
        """Raise `DamageFound` when the file of a segment was removed or replaced: nobody might read it for long.

        A sealed segment may be replaced by one that begins and ends as it did: reads check what they find. To be called
        while nobody changes the log; a broken one is not checked.
        """
        if self._tail is None or self.broken is not None:
            return
        try:
            found = await self._disk.entries(self._directory)
        except NotFound:
            found = {}
        for each in self._sealed:
            file_name = segment.name(each.first)
            number = found.get(file_name)
            # What was sealed since the last look has no number yet.
            if number is None or (
                self._numbers.setdefault(file_name, number) != number and not await self._reader.fits(each)
            ):
                raise removed(self._reader.path(each), each.first, self.slot.cuts)
        self._numbers = found
        # Its number alone would be enough, but for file systems that change numbers.
        tail = self._tail
        if tail.identity is None or found.get(segment.name(tail.header.first)) != tail.identity[1]:
            await self.check_tail_in_place()

    async def check_tail_in_place(self) -> None:
        """Raise `DamageFound` when the file of the tail was removed or replaced: writes to it still succeed."""
        if self._tail is None or self.broken is not None:
            return
        path, first = self._reader.path(self._tail.segment), self._tail.header.first
        if await self._disk.identity(path) != self._tail.identity:
            raise removed(path, first, self.slot.cuts)

    def _segment_of(self, transaction: TransactionId) -> Segment:
        if self._tail is not None and transaction >= self._tail.header.first:
            return self._tail.segment
        return self._sealed[bisect_right(self._sealed, transaction, key=_first) - 1]

    async def _first_at(self, time_us: int) -> TransactionId:
        """Return the first id of the first batch from this commit time on; `last + 1` when there is none."""
        segments = self.segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            times = (await self._index_of(segments[middle])).times
            if not times or times[0] >= time_us:
                high = middle
            else:
                low = middle + 1
        # The search was by the first time of each segment: the one before may hold the time in its middle. If it does
        # not, the next one begins with it.
        for each in segments[max(low - 1, 0) : low + 1]:
            index = await self._index_of(each)
            position = index.position_at_time(time_us)
            if position < len(index):
                return index.firsts[position]
        return self.last + 1

    async def _index_of(self, listed: Segment) -> Index:
        """Return the index of a segment that was listed a while ago: it may have grown, or be sealed by now."""
        return await self._reader.index(self._segment_of(listed.first))

    async def close(self) -> None:
        """Close the files. Everything appended is durable already; from now on nothing is read or written."""
        async with self._gate.closed():
            try:
                # Not when broken: the file may not be what memory says, and an index for it would lie.
                if self._tail is not None and self.broken is None:
                    await self._tail.finish()
            finally:
                self.broken = Closed("the log was closed")
                await self._forget_all()


class Gate:
    """A lock for many readers, or for the one task that changes what they read, for which later readers wait."""

    def __init__(self) -> None:
        self._readers = 0
        self._no_reader = asyncio.Event()
        self._no_reader.set()
        self._no_change = asyncio.Event()
        self._no_change.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold the gate open to read, once no change is under way."""
        # A loop: between the event and this task's turn another change may have begun.
        while not self._no_change.is_set():
            await self._no_change.wait()
        self._readers += 1
        self._no_reader.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._no_reader.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Hold the gate closed to change the log, once no reader is under way."""
        invariant(self._no_change.is_set(), "one task changes a log")
        self._no_change.clear()
        try:
            await self._no_reader.wait()
            yield
        finally:
            self._no_change.set()


_READ_BYTES: Final = 1024 * 1024


async def digest(log: PartitionLog, first: TransactionId, last: TransactionId) -> tuple[int, bytes]:
    """Return the CRC of the batch that ends at `last`, and SHA-256 over the CRCs of the batches from `first` to it.

    Each batch is verified; the log may be changed meanwhile. Raises `OutOfOrder` unless a batch begins at `first` and
    one ends at `last`, or if the log is cut; and what `PartitionLog.read` does. `first` above `last` is the digest of
    nothing.
    """
    total = hashlib.sha256()
    following, crc = first, 0
    cuts = log.slot.cuts
    while following <= last:
        batches = await log.read(following, last, _READ_BYTES)
        if log.slot.cuts != cuts:
            raise OutOfOrder("no digest: the log was cut while it was read: ask again")
        if not batches:
            raise OutOfOrder(f"no digest up to {last}: no batch of this copy ends there")
        if batches[0].first != following:
            raise OutOfOrder(f"no batch begins at {following}")
        for batch in batches:
            crc = batch.crc
            total.update(crc.to_bytes(4, "little"))
        following = batches[-1].last + 1
    return crc, total.digest()


async def verify_part(log: PartitionLog, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
    """Verify a part of the log, from the batch that holds `first` on. Return its size in bytes, and the id to go on
    from.

    The id is None at the end of the log. A segment's header and registers are verified with its first batch. At most
    `bytes_max` bytes of batches, unless the first one is larger; none where `first` is trimmed meanwhile. Raises
    `DamageFound`, and `partition_unavailable` when the log has to be opened anew.
    """
    try:
        first = max(first, log.first)
        beginning_bytes = await log.check_beginning(first)
        batches = await log.read(first, log.last, bytes_max)
    except HistoryTrimmed:  # trimmed since the look at `log.first`: go on with what is left
        return 0, log.first
    if not batches:
        return beginning_bytes, None
    following = batches[-1].last + 1
    return beginning_bytes + sum(batch.length for batch in batches), following if following <= log.last else None
