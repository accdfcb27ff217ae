"""One partition's log on one disk, open: append, read, cut, and the truth about what may have been lost.

Promises: an append that returned is on the disk; what is read was checked against every CRC; nothing is cut before
the control file says so; bytes that were good once and are not any more are reported, never skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from polonaise.checksum import crc32
from polonaise.errors import (
    BatchDamaged,
    Closed,
    DiskFull,
    HistoryTrimmed,
    LogForked,
    NotFound,
    OutOfOrder,
    PartitionUnavailable,
    PolonaiseError,
    RegistersFull,
    SegmentDamaged,
)
from polonaise.host import Disk, File, Host
from polonaise.log import registers, segment
from polonaise.log.batch import Batch
from polonaise.log.control import ControlSlot
from polonaise.log.gate import Gate
from polonaise.log.index import Index
from polonaise.log.promises import SyncEvidence, TrimMark
from polonaise.log.recovery import recover, remove_segment, segments_in
from polonaise.log.segment import (
    BATCH_BYTES_MAX,
    PREAMBLE_BYTES_MAX,
    DamageFound,
    Segment,
    SegmentHeader,
    check_registers,
)
from polonaise.log.segmentreader import Opened, Reader, SegmentCache, removed
from polonaise.log.tail import Tail
from polonaise.terms import NO_TRANSACTION, UNRESOLVED, TransactionId

_first = attrgetter("first")


@dataclass(frozen=True, slots=True)
class LogSettings:
    segment_bytes_max: int = 256 * 1024 * 1024
    """A segment that has grown to this takes no further batches."""
    segment_batches_max: int = 262_144
    """Nor one of so many: its index is in memory while it is written."""


class PartitionLog:
    """The open log.

    `append`, `cut`, `trim`, `lose_above` and `close` are for one task, one call at a time; reads may run beside them
    and see only what is synced. After a failure that leaves the files in doubt `broken` says why, and the log has to be
    opened anew.
    """

    def __init__(
        self, host: Host, disk: Disk, directory: str, slot: ControlSlot, settings: LogSettings, cache: SegmentCache
    ) -> None:
        """Use `open`."""
        self._host = host
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._cache = cache
        self._reader = Reader(disk, directory, cache)
        self._sealed: list[Segment] = []
        self._tail: Tail | None = None
        self._opened_tail: Opened | None = None
        self._gate = Gate()
        self.slot = slot
        self.broken: PolonaiseError | None = None
        self.damage = ""
        """What was found wrong when the log was opened or read last; empty when nothing was."""

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
        """Open what is there, or make the first segment.

        A torn tail is cut. Damage is recorded in the control file, and the bytes are left as they are until `cut`.
        Logs of one node share a `cache`, and a `disk` that bounds how many files they have open.
        """
        disk = host.disk if disk is None else disk  # empty ones are false, too
        cache = SegmentCache() if cache is None else cache
        log = cls(host, disk, directory, slot, settings or LogSettings(), cache)
        await disk.make_directory(directory)
        # It may have been made before by a process that died before the name was durable.
        await disk.sync_directory(directory.rpartition("/")[0] or ".")
        try:
            await log._load()
        except BaseException:  # cancelled too: nobody else knows of the files that are open by now
            await log._forget_all()
            raise
        return log

    async def _load(self) -> None:
        recovered = await recover(self._disk, self._directory, self.slot)
        self._sealed = recovered.sealed
        promises = self.slot.promises
        self.damage = recovered.damage
        if recovered.tail is not None:
            whole = not self.damage and not promises.untrusted
            self._adopt(await self._renewed(recovered.tail) if whole else recovered.tail)
        elif not self.damage and not promises.untrusted:
            await self._begin()
        if self.damage or (promises.untrusted and self.last < promises.untrusted_above):
            await self.slot.record_loss(self.last)
        elif not promises.untrusted:
            self._note()

    # ------------------------------------------------------------------ what it holds

    @property
    def first(self) -> TransactionId:
        """The first id it holds, or would: what is below was trimmed."""
        return self.slot.trimmed.first

    @property
    def last(self) -> TransactionId:
        """The last id it holds, synced and believed."""
        return self._tail.found.last if self._tail else NO_TRANSACTION

    @property
    def last_crc(self) -> int:
        """CRC of the batch that ends there; 0 for an empty log."""
        return self._tail.found.last_crc if self._tail else 0

    @property
    def untrusted(self) -> bool:
        """Bytes above `last` have to be cut before anything is appended."""
        return self.slot.promises.untrusted

    @property
    def segments(self) -> list[Segment]:
        return [*self._sealed, self._tail.segment] if self._tail else []

    def registers_snapshot(self) -> bytes:
        """The registers after `last`."""
        return registers.snapshot(self._tail.found.registers) if self._tail else b""

    # ------------------------------------------------------------------ writing

    async def append(self, batches: Sequence[Batch]) -> None:
        """Append the batches with one write and one sync. On return they are durable; otherwise none is in the log.

        Raises `OutOfOrder` and `LogForked` for batches that do not follow, with nothing changed; `DiskFull` with the
        partial bytes removed; `DiskFailed` after which nothing above `last` is believed, and it takes nothing until it
        was cut there. Nothing is lost by that: what was not synced was not acknowledged.
        """
        tail = self._appendable()
        self._check_follow(batches)
        tail = await self._room(tail)
        try:
            await tail.write(batches)
        except DiskFull:
            try:
                await tail.take_back()
            except PolonaiseError:
                await self.slot.record_failed_sync(self.last)
            raise
        except PolonaiseError:
            await self.slot.record_failed_sync(self.last)
            raise
        self._note()

    def _check_whole(self) -> None:
        if self.broken is not None:
            raise PartitionUnavailable(f"the log has to be opened anew after: {self.broken.text}")

    def _appendable(self) -> Tail:
        self._check_whole()
        if self._tail is None or self.untrusted:
            raise PartitionUnavailable(f"bytes above {self.last} are not to be believed: cut it there first")
        return self._tail

    def _check_follow(self, batches: Sequence[Batch]) -> None:
        last, crc = self.last, self.last_crc
        for batch in batches:
            if batch.partition != self.slot.partition or batch.first != last + 1:
                raise OutOfOrder(f"batch {batch.first}..{batch.last} of partition {batch.partition} after {last}")
            if batch.previous_crc != crc:
                raise LogForked(f"the batch from {batch.first} on follows another batch than the one held here")
            if batch.length > BATCH_BYTES_MAX or not batch.has_data:
                raise BatchDamaged(f"a batch of {batch.length} bytes that can't be stored")
            check_registers(batch)
            last, crc = batch.last, batch.crc

    async def _room(self, tail: Tail) -> Tail:
        """The segment to write to: a new one when this one is full."""
        count, settings = len(tail.index), self._settings
        if not count or (tail.end < settings.segment_bytes_max and count < settings.segment_batches_max):
            return tail
        preamble = registers.snapshot(tail.found.registers)
        if len(preamble) > PREAMBLE_BYTES_MAX:
            raise RegistersFull(f"{len(preamble)} bytes of registers: no segment that begins with them could be opened")
        try:
            await tail.seal()
        except PolonaiseError:
            # Its length may be another one after a crash than the header of the next segment would say.
            await self.slot.record_failed_sync(self.last)
            raise
        header = self._header(preamble, tail)
        fresh = await self._create(header, preamble)
        # In one step: whoever reads meanwhile sees a log that has all it ever had.
        full, self._opened_tail = self._opened_tail, None
        self._sealed.append(tail.segment)
        self._adopt(fresh)
        if full is not None:
            await self._cache.release(full)
        return fresh

    def _header(self, preamble: bytes = b"", before: Tail | None = None) -> SegmentHeader:
        """Of the segment that goes on from `before`, which has batches; or of the first one."""
        slot = self.slot
        return SegmentHeader(
            created_us=self._host.clock.wall_us(),
            cluster_key=slot.cluster_key,
            partition=slot.partition,
            previous_crc=before.found.last_crc if before else 0,
            first=before.found.last + 1 if before else 0,
            previous_first=before.header.first if before else NO_TRANSACTION,
            previous_last=before.index.offsets[-1] if before else 0,
            previous_end=before.end if before else 0,
            preamble_bytes=len(preamble),
            preamble_crc=crc32(preamble),
        )

    async def _begin(self) -> None:
        """The first segment of an empty log."""
        self._adopt(await self._create(self._header(), b""))

    async def _renewed(self, tail: Tail) -> Tail:
        """The tail; made anew if it is empty: the sync of its name may have failed, and no other makes up for that."""
        if len(tail.index):
            return tail
        try:
            preamble = await segment.read_preamble(tail.file, tail.header)
            return await self._create(tail.header, preamble)
        finally:
            await tail.file.close()

    async def _create(self, header: SegmentHeader, preamble: bytes) -> Tail:
        file = await segment.create(self._disk, self._directory, header, preamble)
        return await self._tail_of(header, file)

    async def _tail_of(self, header: SegmentHeader, file: File, limit: TransactionId | None = None) -> Tail:
        try:
            return await Tail.load(self._disk, self._directory, header, file, limit)
        except BaseException:  # cancelled too: nobody else knows of the file
            await file.close()
            raise

    def _adopt(self, tail: Tail) -> None:
        self._tail = tail
        self._opened_tail = Opened(tail.file, tail.index, written=True)
        self._cache.put(self._reader.path(tail.segment), self._opened_tail)

    def _note(self) -> None:
        assert self._tail is not None
        self.slot.note(SyncEvidence(self._tail.header.first, self._tail.end, self.last))

    # ------------------------------------------------------------------ trimming

    def may_trim(self, before: TransactionId) -> bool:
        """Whether the oldest segment is sealed and lies wholly below `before`."""
        return bool(self._sealed) and self._sealed[0].last < before

    async def trim(self, before: TransactionId) -> None:
        """Drop the oldest segment for good, if it `may_trim` that. Only ever asked for by somebody.

        The control file says so first, durably: a crash on the way leaves a file that the next opening removes. One at
        a time, so that whoever waits for the log never waits long.
        """
        self._check_whole()
        if self.untrusted:
            raise PartitionUnavailable(f"bytes above {self.last} are not to be believed: nothing is trimmed")
        if not self.may_trim(before):
            return
        oldest, following = self.segments[0], self.segments[1].header
        await self.slot.begin_trim(TrimMark(following.first, following.previous_crc))
        async with self._gate.closed():
            del self._sealed[0]
            await self._cache.drop([self._reader.path(oldest)])
            await remove_segment(self._disk, self._directory, oldest.first)

    # ------------------------------------------------------------------ cutting

    async def cut(self, last: TransactionId) -> None:
        """Remove everything above `last`, durably; a crash on the way leaves less removed, never a hole.

        Raises `OutOfOrder`, with nothing changed, unless a batch ends there, and `DamageFound` for bytes below.
        """
        self._check_whole()
        last = min(last, self.last)
        if last == self.last and not self.untrusted:
            return
        async with self._gate.closed():
            try:
                target, count, crc = await self._target(last)
            except DamageFound as error:
                error.cuts = self.slot.cuts
                raise
            # Until the end nobody may believe what is in memory, also if the task is cancelled on the way.
            self.broken = PartitionUnavailable(f"a cut at {last} was broken off")
            try:
                await self._cut_at(target, count, last, crc)
            except BaseException as error:
                if isinstance(error, PolonaiseError):
                    self.broken = error
                if target is not None and target is not self._tail:
                    await target.file.close()
                raise
            if self.untrusted:
                await self.slot.save(replace(self.slot.promises, untrusted_above=UNRESOLVED))
            self.broken = None
            self.damage = ""
            self._note()

    async def _cut_at(self, target: Tail | None, count: int, last: TransactionId, crc: int) -> None:
        first = target.header.first if target else NO_TRANSACTION
        end = target.offset_at(count) if target else 0
        await self.slot.begin_cut(SyncEvidence(max(first, 0), end, last))
        await self._remove_above(target, first)
        if target is None:
            await self._begin()
            return
        try:
            await target.cut(self._directory, count, last, crc)
        except DamageFound as error:
            await self.slot.record_loss(error.last_good)
            raise
        self._retake(target)

    async def _target(self, last: TransactionId) -> tuple[Tail | None, int, int]:
        """The segment that will be the tail, how many of its batches stay, and the CRC of the last one."""
        if self._tail is None:
            return None, 0, 0
        segments = self.segments
        position = max(bisect_right(segments, last + 1, key=_first) - 1, 0)
        chosen = segments[position]
        if position == len(segments) - 1:
            count = self._tail.place_of_end(last)
            if count is None:
                raise OutOfOrder(f"no batch ends at {last}")
            if not count:
                return self._tail, 0, chosen.header.previous_crc
            if count == len(self._tail.index):
                return self._tail, count, self.last_crc
            held = await self._reader.read(chosen, last, last, 0)
            return self._tail, count, held[0].crc
        path = self._reader.path(chosen)
        try:
            file = await self._disk.open(path)
        except NotFound as error:
            raise removed(path, chosen.first) from error
        try:
            tail = await self._tail_of(chosen.header, file, limit=last)
        except SegmentDamaged as error:
            raise DamageFound(error.text, chosen.first - 1) from error
        if tail.found.last != last:
            bad = tail.found.bad
            try:
                # A scan takes zeros for the end; before that of a sealed segment they were batches.
                if not bad and await segment.end_of_bytes(file, tail.end, chosen.end) == tail.end < chosen.end:
                    bad = f"zeros at offset {tail.end}"
            finally:
                await file.close()
            if bad:
                raise DamageFound(bad, tail.found.last)
            raise OutOfOrder(f"no batch ends at {last}")
        return tail, len(tail.index), tail.found.last_crc

    async def _remove_above(self, target: Tail | None, first: TransactionId) -> None:
        """Remove the segments after the target, the last one first, so that those left always follow each other."""
        if target is not self._tail:
            await self._forget_tail()
            dropped = [each for each in self._sealed if each.first >= first]
            self._sealed = self._sealed[: len(self._sealed) - len(dropped)]
            await self._cache.drop(self._reader.path(each) for each in dropped)
        for other in reversed(await segments_in(self._disk, self._directory)):
            if other > first:
                await remove_segment(self._disk, self._directory, other)

    def _retake(self, tail: Tail) -> None:
        """Go on with a segment that was cut."""
        if tail is self._tail and self._opened_tail is not None:
            self._opened_tail.index = tail.index
        else:
            self._adopt(tail)

    async def _forget_all(self) -> None:
        try:
            await self._cache.drop(self._reader.path(each) for each in self._sealed)
        finally:
            await self._forget_tail()

    async def _forget_tail(self) -> None:
        opened, self._opened_tail, self._tail = self._opened_tail, None, None
        if opened is not None:
            await self._cache.give_up(opened)

    async def lose_above(self, last: TransactionId, why: str) -> None:
        """A read met damage: record it, and believe nothing above `last` from now on."""
        await self.slot.record_loss(last)
        async with self._gate.closed():
            self.broken = PartitionUnavailable(f"it is being read again because of damage above {last}")
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
        """Batches from the one that holds `first` on, as far as one segment goes, none that ends above `last`.

        With `after_time_us`, not from before the first batch of that commit time or a later one. With `part_last`, only
        those that begin at `first` or above and at that id or below. Raises `DamageFound`, and `HistoryTrimmed` when
        what is asked for begins, or by its time may begin, below what is left.
        """
        async with self._gate.open():
            self._check_whole()
            cuts = self.slot.cuts
            try:
                if after_time_us:
                    found = await self._first_at(after_time_us)
                    # The first batch that is left may not be the first one of its time.
                    first = max(first, found) if found > self.first or not self.first else first
                last = min(last, self.last)
                if first > last or first < 0:
                    return []
                if first < self.first:
                    raise HistoryTrimmed(f"ids below {self.first} were trimmed here", self.first)
                return await self._reader.read(self._segment_of(first), first, last, bytes_max, part_last)
            except DamageFound as error:
                error.cuts = cuts
                raise

    async def check_beginning(self, first: TransactionId) -> int:
        """Verify header and preamble of the segment that begins with `first`: their bytes, 0 if none begins there."""
        async with self._gate.open():
            self._check_whole()
            cuts = self.slot.cuts
            if not self.first <= first <= self.last or (segment := self._segment_of(first)).first != first:
                return 0
            try:
                return await self._reader.check_beginning(segment)
            except DamageFound as error:
                error.cuts = cuts
                raise

    async def check_tail_in_place(self) -> None:
        """Raises `DamageFound` when the file of the segment that is written was removed: it can still be written.

        For whoever changes the log, between two changes.
        """
        if self._tail is None or self.broken is not None:
            return
        path, first = self._reader.path(self._tail.segment), self._tail.header.first
        if await self._disk.identity(path) is None:
            raise removed(path, first, self.slot.cuts)

    def _segment_of(self, transaction: TransactionId) -> Segment:
        if self._tail is not None and transaction >= self._tail.header.first:
            return self._tail.segment
        return self._sealed[bisect_right(self._sealed, transaction, key=_first) - 1]

    async def _first_at(self, time_us: int) -> TransactionId:
        """First id of the first batch with this commit time or a later one; above `last` when there is none."""
        segments = self.segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            times = (await self._index_of(segments[middle])).times
            if not times or times[0] >= time_us:
                high = middle
            else:
                low = middle + 1
        # The segment before may hold the time in its middle; if not, the next one begins with it.
        for each in segments[max(low - 1, 0) : low + 1]:
            index = await self._index_of(each)
            position = index.position_at_time(time_us)
            if position < len(index):
                return index.firsts[position]
        return self.last + 1

    async def _index_of(self, listed: Segment) -> Index:
        """The index of a segment that was listed a while ago: it may have grown since, or be sealed by now."""
        return await self._reader.index(self._segment_of(listed.first))

    async def close(self) -> None:
        """Close the files. Everything appended is durable already; from now on nothing is read or written."""
        async with self._gate.closed():
            try:
                if self._tail is not None and self.broken is None:
                    await self._tail.finish()
            finally:
                self.broken = Closed("the log was closed")
                await self._forget_all()
