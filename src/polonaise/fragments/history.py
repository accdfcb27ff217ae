"""A log's history out of its fragments, for servers: batches by their ids, byte for byte, with bounded memory.

A fragment is read through once and compared with the digest in its name before anything of it is given out. After that,
a row group at a time is fetched, and every batch made again is compared with the CRC that it had. Hashing and Parquet's
work are done in other threads than the event loop's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from polonaise.errors import (
    FragmentDamaged,
    FragmentMissing,
    NotFound,
    PolonaiseError,
    StoreUnavailable,
    UnsupportedFormat,
    WrongClusterKey,
    fault,
)
from polonaise.fragments.agreement import MOVE_OUT, agree, beside_each
from polonaise.fragments.groups import last_time_us_of_group, parts_for_ends, parts_for_group
from polonaise.fragments.markedstore import MarkedStore, told
from polonaise.fragments.objects import (
    MEND,
    OpenFragment,
    decoded_end,
    decoded_group,
    fragments_of,
    made_again,
    of_fragment,
    opened_by_end,
    span_of,
)
from polonaise.fragments.protocol.coverage import BatchEnd, Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import FOOTER_BYTES, Range
from polonaise.fragments.store import LateStore, MendableStore
from polonaise.log.batch import Batch
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_log = logging.getLogger(__name__)
Follows: TypeAlias = Callable[[], Awaitable[BatchEnd]]
"""Tells the end of a batch that lies above the ids that are read, as the log itself has it."""

_TRAILER_BYTES: Final = 8
_PIECE_BYTES: Final = 1024 * 1024
"""Bytes fetched at a time of a fragment that is only checked, by the scrub."""
_OPENING_MAX: Final = 16
"""How many fragments are opened at a time before a trim relies upon them."""
_OPENED_MAX: Final = 256
"""The number of fragments whose metadata is kept, some tens of kilobytes each."""


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """Bounds on reading and repairing fragments: in bytes, and in seconds for names that end with `_s` or `_s_max`."""

    cache_bytes_max: int = 128 * 1024 * 1024
    """The size of the cache of row groups that were read last; one row group at least is kept."""
    chunk_bytes: int = 8 * 1024 * 1024
    """How much is fetched at a time of a fragment that is read through before anything of it is given out."""
    footer_bytes: int = FOOTER_BYTES
    """How much is fetched of a fragment's end to read its footer."""
    listing_s: float = 1.0
    """The least time between two listings of one partition that reads of missing ids cause, however many there are."""
    damaged_s: float = 10.0
    """How long reads pass over a fragment that was found damaged, before it is read through again."""
    store_s_max: float = 30.0
    """The deadline of one call to the store."""
    rewrite_s_max: float = 600.0
    """The deadline of writing one fragment again: enough for one of the default size over a slow line."""


@dataclass(slots=True)
class _Listing:
    """A partition's fragments, and how many bytes each has."""

    fragments: Mapping[FragmentName, int]
    at_s: float
    """When the listing was made, on the event loop's clock."""
    beside: Mapping[FragmentName, Sequence[FragmentName]] | None = None
    """The others that each fragment has to agree with; None before one was compared."""
    agreed_up_to: dict[FragmentName, TransactionId] = field(default_factory=dict)
    """The last id up to which fragments are of the log, of those that were compared with the others."""
    walked: _Walked | None = None
    """None while no fragment was found that may not be of the log."""


class _Walked(NamedTuple):
    """A range of ids over which fragments were proved to be of the log, one by one, from what the log itself holds."""

    top: TransactionId
    """The last id of the range; what is above, the log held when it was walked."""
    follows: BatchEnd
    """The end of the batch in front of the range."""


class _Refused(Exception):
    """A fragment can't be used, and is among the refused ones from now on."""


class _SearchAgain(Exception):
    """What a search by time goes by has changed meanwhile."""


class FragmentHistory:
    """The fragments of one cluster in one store. Shared by all partitions of a server. Keeps the batches of the row
    groups that were read last. Each call may raise `AccessDenied`, `StoreUnavailable`, also for a mark that is missing
    or unreadable, and `WrongClusterKey` for a mark or a fragment of another cluster."""

    def __init__(self, store: MendableStore, cluster_key: bytes, settings: HistorySettings | None = None) -> None:
        self._settings = settings or HistorySettings()
        self._store = MarkedStore(store, cluster_key, self._settings.store_s_max)
        self._cluster_key = cluster_key
        self._listings: dict[PartitionId, _Listing] = {}
        self._opened: OrderedDict[FragmentName, OpenFragment] = OrderedDict()
        self._groups: OrderedDict[tuple[FragmentName, int], list[Batch]] = OrderedDict()
        self._groups_bytes = 0
        self._damaged: dict[FragmentName, tuple[float, PolonaiseError]] = {}
        """When each damaged fragment was found, on the event loop's clock, and what is wrong with it."""
        self._doubted: dict[FragmentName, TransactionId] = {}
        """The fragments that could not be used, each with the least id whose read proves that it can be used again."""
        self.failed: dict[PartitionId, tuple[TransactionId, str]] = {}
        """The first id of the latest read that failed by a mistake of our own, and why, until that id was read."""
        self.on_refused: Callable[[FragmentName, TransactionId, str], None] = lambda name, transaction, why: None
        """Called when a read, or a trim, can't use a fragment: with the id that it wanted, and with what is wrong."""
        self.on_sound: Callable[[FragmentName], None] = lambda name: None
        """Called when a fragment that could not be used was read, after it was looked at anew."""
        self.on_missing: Callable[[PartitionId, str], None] = lambda partition, why: None
        """Called when no fragment holds an id that is to be read: with what is to be told."""
        self._verifying = asyncio.Lock()
        """Held while a fragment is read through for a read: one at a time. The scrub does not take it."""
        self._decoding = asyncio.Lock()
        """Held while a row group is fetched: one at a time is in memory beside those that are kept."""

    def __str__(self) -> str:
        return str(self._store)

    # ------------------------------------------------------------------ what it reaches

    async def look(self) -> None:
        """Read the store's mark. Raises `StoreUnavailable` if it is missing or can't be read."""
        await self._store.check_mark()

    async def highest(self, partition: PartitionId, closing: TransactionId) -> TransactionId:
        """Return the highest id of the partition in the store, by a new listing; -1 if it has no fragments. If it is
        above `closing`, reads the footer of the fragment with that id. Raises `FragmentDamaged`, `UnsupportedFormat` or
        `NotFound` if that fails."""
        listing = await self._listed(partition)
        if not listing.fragments:
            return NO_TRANSACTION
        name = max(listing.fragments, key=lambda each: each.last)
        # The names alone tell that no more was archived: rot in a footer must not keep a partition from starting. That
        # more was committed, a name does not prove: another cluster's fragment has the same kind of name.
        if name.last > closing:
            await self._open(name, listing.fragments[name])
        return name.last

    async def up_to(self, partition: PartitionId) -> TransactionId:
        """Return the id up to which all of the partition is in fragments, by a listing; -1 for nothing."""
        listing = self._listings.get(partition) or await self._listed(partition)
        return archived_up_to(listing.fragments)

    async def covering(self, partition: PartitionId, last: TransactionId) -> tuple[FragmentName, ...]:
        """Return the fragments with everything from 0 up to `last`, newly listed. Raises `not_archived` for a hole."""
        listing = await self._listed(partition)
        covered = cover(listing.fragments, Span(0, last))
        if covered.holes:
            hole = covered.holes[0]
            raise fault(
                "not_archived",
                f"{self} has no fragment with ids {hole.first} to {hole.last} of partition {partition}: "
                "archive them, or restore the fragment",
            )
        return tuple(piece.fragment for piece in covered.pieces)

    async def lacks(self, partition: PartitionId, wanted: Span) -> Span | None:
        """Return the first ids of these that no fragment holds, by a new listing; None if all are there."""
        holes = cover((await self._listed(partition)).fragments, wanted).holes
        return holes[0] if holes else None

    async def check_opens(self, partition: PartitionId, names: Sequence[FragmentName]) -> None:
        """Raise `not_archived` for a fragment that, by its footer, lacks ids or bytes that it must have."""
        refused = self._refused_lately()
        sizes = (self._listings.get(partition) or await self._listed(partition)).fragments

        async def check(name: FragmentName) -> None:
            try:
                if name in refused:
                    raise refused[name]
                await self._open(name, sizes.get(name, 0))
            except (FragmentDamaged, UnsupportedFormat, NotFound) as error:
                self._tell(name, name.first, error)
                raise fault(
                    "not_archived",
                    f"nothing was trimmed: a fragment in {self}, the store that this server uses, can't be used, "
                    f"whatever a copy of that store holds: {error.text}",
                ) from error

        for start in range(0, len(names), _OPENING_MAX):
            await asyncio.gather(*(check(name) for name in names[start : start + _OPENING_MAX]))

    # ------------------------------------------------------------------ reading

    async def read(
        self,
        partition: PartitionId,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        after_time_us: int = 0,
        follows: Follows | None = None,
    ) -> list[Batch]:
        """Return batches of one row group, beginning with the one that holds `first`. None of them ends above `last`.

        At most `bytes_max` bytes, but the first batch even if it is larger; nothing if that one ends above `last`. With
        `after_time_us` (microseconds UTC), batches before the first one with that commit time or a later one are left
        out.

        Raises `FragmentMissing` for an id that no fragment holds; `FragmentDamaged` or `UnsupportedFormat` if no
        fragment that holds the id can be read. A mistake of our own is a `StoreUnavailable`, and in `failed`: it would
        end one owner after the other.
        """
        try:
            batches = await self._read(partition, first, last, bytes_max, after_time_us, follows)
        except PolonaiseError:
            raise
        except Exception as error:
            why = f"reading ids from {first} on out of {self} failed by a mistake of Polonaise: {told(error)}"
            if self.failed.get(partition) != (first, why):
                _log.exception("partition %d: %s", partition, why)
            self.failed[partition] = first, why
            raise StoreUnavailable(f"{why}; the server's log has more: report that") from error
        if self.failed.get(partition, (NO_TRANSACTION,))[0] == first:
            del self.failed[partition]
        return batches

    async def _read(
        self,
        partition: PartitionId,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        after_time_us: int,
        follows: Follows | None,
    ) -> list[Batch]:
        refused = self._refused_lately()
        while True:
            name, size = await self._holding(partition, first, refused)
            try:
                if after_time_us:
                    first_at_time = await self._first_at(partition, first, after_time_us, refused, follows)
                    if first_at_time is None:
                        return []
                    if first_at_time > first:
                        first = first_at_time
                        continue
                with self._refusing(name, refused, first):
                    opened = await self._verified(name, size)
                    up_to = await self._agreed_up_to(opened, first, refused, follows)
                    number = max(bisect_right(opened.firsts, first) - 1, 0)
                    batches = await self._group(opened, number)
            except (_Refused, _SearchAgain):
                # Another fragment may hold the same ids. If none does, `_holding` raises the error in the next round.
                continue
            # Not by a read that had opened it before it was found damaged.
            if name in self._doubted and first >= self._doubted[name] and self._opened.get(name) is opened:
                del self._doubted[name]
                self.on_sound(name)
            return span_of(batches, first, min(last, up_to), bytes_max, after_time_us)

    async def _holding(
        self, partition: PartitionId, transaction: TransactionId, refused: Mapping[FragmentName, PolonaiseError]
    ) -> tuple[FragmentName, int]:
        """Return the fragment to read an id from, and its size; the listing is renewed if it has none. `refused` are
        fragments not to read from, each with the error that was met in it. If one of them holds the id, and is not
        merely gone, raises that error; otherwise `FragmentMissing`."""
        now = asyncio.get_running_loop().time()
        listing = self._listings.get(partition)
        for look in range(2):
            if listing is None or (look and now - listing.at_s >= self._settings.listing_s):
                listing = await self._listed(partition)
            good = [name for name in listing.fragments if name not in refused]
            pieces = cover(good, Span(transaction, transaction)).pieces
            if pieces:
                return pieces[0].fragment, listing.fragments[pieces[0].fragment]
        holding = [
            (name, error)
            for name, error in refused.items()
            if name.partition == partition
            and name.first <= transaction <= name.last
            and not isinstance(error, NotFound)
        ]
        for name, error in holding:  # one that another one contradicts is told only here, where no other one is read
            self._tell(name, transaction, error)
        if holding:
            raise holding[0][1]
        missing = FragmentMissing(
            f"{self} has no fragment with id {transaction} of partition {partition}, and the storage nodes no longer "
            "hold it: restore that fragment, or correct the address of the store"
        )
        self.on_missing(partition, missing.text)
        raise missing

    async def _first_at(
        self,
        partition: PartitionId,
        first: TransactionId,
        time_us: int,
        refused: dict[FragmentName, PolonaiseError],
        follows: Follows | None,
    ) -> TransactionId | None:
        """Return the first id of the first row group from `first` on with a batch of this commit time or later, or
        None. Goes by metadata alone, so that few fragments are read. Raises `_Refused` if one of them can't be used,
        and `_SearchAgain`. Where a fragment may not be of the log, looks only at ids that the fragments were proved to
        have of the log: times of another life are before and after these."""
        listing = self._listings[partition]
        good = [name for name in listing.fragments if name not in refused]
        last = max(name.last for name in good)
        bounded = listing.walked is not None
        if bounded and follows is not None:
            last = min(last, (await follows()).last)
        covered = cover(good, Span(first, last))
        hole = covered.holes[0].first if covered.holes else None
        pieces = [piece for piece in covered.pieces if hole is None or piece.span.first < hole]
        low, high = 0, len(pieces)
        while low < high:
            middle = (low + high) // 2
            name = pieces[middle].fragment
            with self._refusing(name, refused, pieces[middle].span.first):
                opened = await self._open(name, listing.fragments[name])
                await self._agreed_up_to(opened, pieces[middle].span.last, refused, follows)
            if self._listings.get(partition) is not listing or bounded != (listing.walked is not None):
                raise _SearchAgain
            if last_time_us_of_group(opened.metadata, len(opened.firsts) - 1) < time_us:
                low = middle + 1
            else:
                high = middle
        if low == len(pieces):
            # The batch that is sought may be among the missing ids: raise, unless a new listing has them. Then the
            # reader, which goes on behind what is archived without a gap by the old listing, meets them there.
            if hole is not None:
                await self._holding(partition, hole, refused)
            return None
        name = pieces[low].fragment
        with self._refusing(name, refused, pieces[low].span.first):
            opened = await self._open(name, listing.fragments[name])
        reaches = [last_time_us_of_group(opened.metadata, number) >= time_us for number in range(len(opened.firsts))]
        return max(opened.firsts[reaches.index(True)], pieces[low].span.first)

    # ------------------------------------------------------------------ fragments that contradict each other

    async def _agreed_up_to(
        self,
        opened: OpenFragment,
        first: TransactionId,
        refused: dict[FragmentName, PolonaiseError],
        follows: Follows | None,
    ) -> TransactionId:
        """Return the last id up to which a fragment is of the log, which is its own last one unless another says not.
        If another one says not, and the log does not go on from its batches from `first` on, adds it to `refused` and
        raises `_Refused`. After a restored backup or a reset, fragments of two lives of a log may have the same ids and
        footers."""
        name = opened.name
        listing = self._listings.get(name.partition) or await self._listed(name.partition)
        if listing.agreed_up_to.get(name, NO_TRANSACTION) < first:
            doubt = await self._doubt(opened, listing)
            if not doubt:
                listing.agreed_up_to[name] = name.last
            else:
                if follows is not None:
                    await self._follow_down(listing, first, follows)
                if listing.agreed_up_to.get(name, NO_TRANSACTION) < first:
                    refused[name] = FragmentDamaged(
                        f"{doubt}, and the log does not go on from the first: {MOVE_OUT}, and put back those that are "
                        "missing"
                    )
                    raise _Refused
        return listing.agreed_up_to[name]

    async def _doubt(self, opened: OpenFragment, listing: _Listing) -> str:
        """Return why a fragment may not be of the log, by those that overlap it or meet it; empty if it surely is. One
        that can't be used tells nothing. But where both hold the same ids, no other may tell of these."""
        name, doubt = opened.name, ""
        if listing.beside is None:
            listing.beside = await asyncio.to_thread(beside_each, listing.fragments)
        if name not in listing.beside:
            raise NotFound(f"{name.path} is gone: there is a listing without it by now")
        for other in listing.beside[name]:
            last = min(name.last, other.last)
            await self._look_up(opened, last)
            try:
                beside = await self._open(other, listing.fragments[other])
                await self._look_up(beside, last)
            except (NotFound, WrongClusterKey):
                continue
            except (FragmentDamaged, UnsupportedFormat) as error:
                if other.first <= name.last and name.first <= other.last:
                    doubt = f"{name.path} overlaps {other.path}, which can't be used ({error.text})"
                continue
            if not agree(opened.facts, beside.facts):
                return f"{name.path} and {other.path} contradict each other"
        return doubt

    async def _follow_down(self, listing: _Listing, first: TransactionId, follows: Follows) -> None:
        """Go down to `first`, from what the log itself holds, over fragments each of which the one above goes on from.
        Notes up to which id each is of the log. Goes on where it ended before, unless that began below `first`."""
        walked = listing.walked
        if walked is None or walked.top < first:
            end = await follows()
            walked = _Walked(end.last, end)
        while (at := walked.follows).last >= first:
            for name in sorted(listing.fragments):  # the one that reaches down farthest
                if not name.first <= at.last <= name.last:
                    continue
                try:
                    opened = await self._open(name, listing.fragments[name])
                    await self._look_up(opened, at.last)
                    if opened.facts.crc_at(at.last) != at.crc:
                        continue
                except (FragmentDamaged, UnsupportedFormat, NotFound, WrongClusterKey):
                    continue
                listing.agreed_up_to[name] = max(listing.agreed_up_to.get(name, NO_TRANSACTION), at.last)
                walked = walked._replace(follows=BatchEnd(name.first - 1, opened.footer.previous_crc))
                break
            else:
                break
        listing.walked = walked

    async def _look_up(self, opened: OpenFragment, last: TransactionId) -> None:
        """Fetch whether a batch ends at an id of a fragment, unless the footer tells, or it is known."""
        if last in opened.ends or not opened.footer.first <= last < opened.footer.last:
            return
        number = bisect_right(opened.firsts, last) - 1
        parts = await self._fetched(opened.name, parts_for_ends(opened.metadata, number))
        with of_fragment(opened.name):
            opened.ends[last] = await asyncio.to_thread(decoded_end, opened, number, parts, last)

    # ------------------------------------------------------------------ the scrub

    async def held(self, partition: PartitionId | None = None) -> Mapping[FragmentName, int]:
        """Return the fragments of a partition, or of all, by a new listing, and how many bytes each has."""
        # Before and after: a store that is mounted or unmounted in between would give a listing of another directory.
        await self._store.check_mark()
        fragments = await self._store.asked(fragments_of(self._store.store, partition))
        await self._store.check_mark()
        return fragments

    async def check(self, name: FragmentName, size: int, pause: Callable[[int], Awaitable[None]]) -> None:
        """Read a fragment through, a little at a time; `pause` is awaited with the length of each piece. Raises
        `FragmentDamaged` when its bytes do not have the digest in its name: then none of them is given out until the
        fragment was found good again. Raises `NotFound`, and for one that still can't be opened what is wrong, such as
        `UnsupportedFormat`."""
        try:
            await self._check_digest(name, size, _PIECE_BYTES, pause)
        except FragmentDamaged as error:
            self._forget(name, error)
            raise
        self._sound_again(name)
        await self._open(name, size)

    async def mend(self, name: FragmentName, batches: AsyncIterable[Batch]) -> int:
        """Write a damaged fragment again from the log's batches, and return how many bytes it has. Raises what
        `made_again` and the store raise, and `StoreUnavailable` for a store without its mark, which is not touched, or
        after `rewrite_s_max` seconds of writing."""
        # A store that is not mounted would get the fragment into the directory that is left in its place.
        await self._store.check_mark()
        # Without a deadline: the caller decides how slowly it gives the batches.
        raw = await made_again(self._cluster_key, name, batches)
        try:
            async with asyncio.timeout(self._settings.rewrite_s_max):
                await self._store.store.replace(name.path, raw)
        except TimeoutError:
            limit_s = self._settings.rewrite_s_max
            raise StoreUnavailable(
                f"writing the damaged {name.path} again took longer than {limit_s:g} s: see that {self} can be reached"
            ) from None
        self._listings.pop(name.partition, None)  # it has the length of the damaged object
        return len(raw)

    # ------------------------------------------------------------------ fragments

    async def _listed(self, partition: PartitionId) -> _Listing:
        listing = self._listings[partition] = _Listing(await self.held(partition), asyncio.get_running_loop().time())
        return listing

    def _refused_lately(self) -> dict[FragmentName, PolonaiseError]:
        """Return the damaged fragments that are not to be read through again yet, each with what is wrong with it."""
        now = asyncio.get_running_loop().time()
        for name in [name for name, bad in self._damaged.items() if now - bad[0] >= self._settings.damaged_s]:
            self._sound_again(name)
        return {name: error for name, (_, error) in self._damaged.items()}

    @contextmanager
    def _refusing(
        self, name: FragmentName, refused: dict[FragmentName, PolonaiseError], transaction: TransactionId
    ) -> Iterator[None]:
        """If this fragment can't be used to read `transaction`, note the error in `refused`, and raise `_Refused`."""
        try:
            yield
        except (FragmentDamaged, UnsupportedFormat, NotFound) as error:
            refused[name] = error
            self._forget(name, error)
            self._tell(name, transaction, error)
            raise _Refused from error

    def _tell(self, name: FragmentName, transaction: TransactionId, error: PolonaiseError) -> None:
        """Tell that a fragment can't be used; one that does not exist is missing, if no other one holds its ids."""
        if not isinstance(error, NotFound):
            self._doubted.setdefault(name, transaction)
            self.on_refused(name, transaction, error.text)

    def _sound_again(self, name: FragmentName) -> None:
        """Take a fragment that was found damaged for sound: it may have another size than when it was listed."""
        if self._damaged.pop(name, None) is not None:
            self._listings.pop(name.partition, None)

    def _forget(self, name: FragmentName, error: PolonaiseError) -> None:
        """Forget what was read of a fragment; remember it as damaged, unless the error is that it does not exist."""
        if not isinstance(error, NotFound):
            self._damaged[name] = asyncio.get_running_loop().time(), error
            self._doubted[name] = name.first
        self._opened.pop(name, None)
        for key in [key for key in self._groups if key[0] == name]:
            self._groups_bytes -= _bytes(self._groups.pop(key))

    async def _open(self, name: FragmentName, size: int) -> OpenFragment:
        opened = self._opened.get(name)
        if opened is None or opened.size != size:
            end = await self._end_of(name, size)
            opened = await asyncio.to_thread(opened_by_end, name, size, end, self._cluster_key)
            self._opened[name] = opened
            if len(self._opened) > _OPENED_MAX:
                self._opened.popitem(last=False)
        self._opened.move_to_end(name)
        return opened

    async def _fetched(self, name: FragmentName, parts: Iterable[Range]) -> dict[int, bytes]:
        return {part.start: await self._store.get(name, part.start, part.stop - part.start) for part in parts}

    async def _end_of(self, name: FragmentName, size: int) -> bytes:
        length = min(size, self._settings.footer_bytes)
        end = await self._store.get(name, size - length, length)
        needed = int.from_bytes(end[-_TRAILER_BYTES:][:4], "little") + _TRAILER_BYTES
        return end if needed <= length or needed > size else await self._store.get(name, size - needed, needed)

    async def _verified(self, name: FragmentName, size: int) -> OpenFragment:
        """Return an open fragment whose bytes have the digest in its name. Reads them through the first time."""
        opened = await self._open(name, size)
        if opened.verified:
            return opened
        async with self._verifying:
            if opened.verified:
                return opened
            await self._check_digest(name, size, self._settings.chunk_bytes)
            opened.verified = True
        return opened

    async def _check_digest(
        self, name: FragmentName, size: int, piece_bytes: int, pause: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        digest = hashlib.sha256()
        for offset in range(0, size, piece_bytes):
            piece = await self._store.get(name, offset, min(piece_bytes, size - offset))
            await asyncio.to_thread(digest.update, piece)
            if pause is not None:
                await pause(len(piece))
        if digest.hexdigest() != name.digest:
            raise FragmentDamaged(f"{name.path}: its SHA-256 is not the one in its name: {MEND}")

    async def _group(self, opened: OpenFragment, number: int) -> list[Batch]:
        key = opened.name, number
        batches = self._groups.get(key)
        if batches is None:
            async with self._decoding:
                batches = self._groups.get(key) or await self._decoded(opened, number)
            self._keep(key, batches)
        self._groups.move_to_end(key)
        return batches

    async def _decoded(self, opened: OpenFragment, number: int) -> list[Batch]:
        parts = await self._fetched(opened.name, parts_for_group(opened.metadata, number))
        with of_fragment(opened.name):
            return await asyncio.to_thread(decoded_group, opened, number, parts)

    def _keep(self, key: tuple[FragmentName, int], batches: list[Batch]) -> None:
        if key not in self._groups:
            self._groups_bytes += _bytes(batches)
        self._groups[key] = batches
        while self._groups_bytes > self._settings.cache_bytes_max and len(self._groups) > 1:
            self._groups_bytes -= _bytes(self._groups.popitem(last=False)[1])


def open_history(url: str, cluster_key: bytes) -> FragmentHistory:
    """Return the history in the store at this URL, which need not exist yet: see `LateStore`. Raises `BadOption`."""
    return FragmentHistory(LateStore(url), cluster_key)


def _bytes(batches: list[Batch]) -> int:
    return sum(batch.length for batch in batches)
