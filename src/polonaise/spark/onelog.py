"""Whether all that a query reads of a partition is of one log: a store's fragments, and the log or replica beside them.

Fragments are chosen by names alone, and names do not tell a life of a log that was given up, such as by a reset of its
head, from the one that goes on. Where two fragments share ids, or meet, the batches in them tell.

Nor does the key of a log or a replica tell whether it goes on from the fragments: a copy that was put back has it as
well, and so has a log whose head was reset. Fragments that lie side by side, and agree, are of the log if its next
batch names the CRC of the last batch of the highest one.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from polonaise.blocking.log import Log
from polonaise.errors import (
    FragmentDamaged,
    FragmentsAhead,
    HistoryTrimmed,
    LogForked,
    NotFound,
    PolonaiseError,
    UnsupportedFormat,
    fault,
)
from polonaise.fragments.agreement import MOVE_OUT, FragmentFacts, beside_each, contradictions, ids_to_compare
from polonaise.fragments.objects import looked_at
from polonaise.fragments.protocol.coverage import BatchEnd, FragmentRange, Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import clusters
from polonaise.spark.fragmentfiles import footer_from, footer_kept
from polonaise.spark.protocol.splits import Extent
from polonaise.spark.segmentfiles import SegmentFiles
from polonaise.terms import PartitionId, TransactionId

_READING_MAX: Final = 16
_TOLD_MAX: Final = 3

_KEPT_MAX: Final = 256
"""The number of partitions of stores of which a process keeps what it has compared."""

_Pair: TypeAlias = tuple[FragmentName, FragmentName]

_kept: dict[str, OneLog] = {}
"""By a partition's folder in a store, what this process has compared there."""


def one_log(store: ObstoreStore, partition: PartitionId, sizes: Mapping[FragmentName, int]) -> OneLog:
    """Return what is known of a partition's fragments; `sizes` are all that the store has now, with sizes in bytes."""
    folder = f"{store}/{partition}"
    kept = _kept.pop(folder, None)
    if kept is None or kept.store is not store or kept.sizes != sizes:
        kept = OneLog(store, sizes, () if kept is None else kept.agreeing)
    while len(_kept) >= _KEPT_MAX:
        _kept.pop(next(iter(_kept)), None)
    _kept[folder] = kept
    return kept


class OneLog:
    """The fragments of one partition in a store, by one listing: `check` compares those that have to agree."""

    def __init__(self, store: ObstoreStore, sizes: Mapping[FragmentName, int], agreeing: Collection[_Pair]) -> None:
        """`agreeing` are pairs that were compared, by whatever listing: a name holds the digest of what it names."""
        self.store = store
        self.sizes = sizes
        self.agreeing = {pair for pair in agreeing if pair[0] in sizes and pair[1] in sizes}
        self._beside = beside_each(sizes)
        self._overlapping = {
            (name, other)
            for name, others in self._beside.items()
            for other in others
            if name < other and other.first <= name.last
        }

    def check(self, cluster_key: bytes | None, read: Iterable[FragmentName] = ()) -> None:
        """Raise `history_incomplete`, with their names, if fragments are not of one log. Compares all that overlap, and
        those of `read` with their neighbours, unless they were compared before. Raises `FragmentDamaged` or
        `UnsupportedFormat` for one that can't be read and overlaps another. One that has another cluster key proves
        nothing about others; a task that is to read it refuses it."""
        meeting = ((min(name, other), max(name, other)) for name in read for other in self._beside[name])
        due = {each for each in (*self._overlapping, *meeting) if each not in self.agreeing}
        if not due:
            return
        names = {name for each in due for name in each}
        found = clusters.wait(lambda: self._looked_at(names))
        facts = [each for each in found.facts if cluster_key in (None, each.footer.cluster_key)]
        if wrong := contradictions(facts):
            told = "; ".join(each.what for each in wrong[:_TOLD_MAX])
            more = f" (and {len(wrong) - _TOLD_MAX} more)" if len(wrong) > _TOLD_MAX else ""
            raise fault(
                "history_incomplete",
                f"the fragments in {self.store} are not of one log: {told}{more}: {MOVE_OUT}; polonaise archive "
                "verify STORE names all",
            )
        for each in due & self._overlapping:
            for bad, other in (each, each[::-1]):
                if error := found.bad.get(bad):
                    raise type(error)(
                        f"{error.text}. It overlaps {other.path}, and may be of the log in place of that one"
                    )
        good = {each.name for each in facts}
        # Another set: a thread may be reading this one.
        self.agreeing = self.agreeing | {each for each in due if good.issuperset(each)}

    async def _looked_at(self, names: Iterable[FragmentName]) -> _LookedAt:
        ids = ids_to_compare(names)
        limit = asyncio.Semaphore(_READING_MAX)
        found = _LookedAt([], {})

        async def look(name: FragmentName) -> None:
            async with limit:
                try:
                    found.facts.append(await looked_at(self.store, name, self.sizes[name], ids[name]))
                except NotFound:
                    pass
                except (FragmentDamaged, UnsupportedFormat) as error:
                    found.bad[name] = error

        await asyncio.gather(*map(look, ids))
        return found


class _LookedAt(NamedTuple):
    """What is to be compared of fragments, and what is wrong with those that can't be read."""

    facts: list[FragmentFacts]
    bad: dict[FragmentName, PolonaiseError]


_ADVICE: Final = (
    "a log was put back to an older copy, or its head was reset, and has gone on differently since. Leave the option "
    "fragments out to read what is the log now, or move the fragments that are not of it out of the store"
)

_compared: WeakKeyDictionary[Log, dict[FragmentName, float]] = WeakKeyDictionary()
"""By connection, the fragments from which the log went on, each with the monotonic time at which it was asked."""


class LogBatch(NamedTuple):
    ends: tuple[BatchEnd, BatchEnd]
    """See `ends_told`."""
    transactions: int
    bytes: int


class Continuation:
    """The comparison of one partition of a log with its fragments in a store. Each has to be asked for once only."""

    def __init__(
        self,
        log: Log,
        store: ObstoreStore,
        partition: PartitionId,
        one: OneLog,
        age_s_max: float,
        batch_at: Callable[[PartitionId, TransactionId], LogBatch | None],
    ) -> None:
        """`one` are the partition's fragments; an answer of the log holds for `age_s_max` seconds. `batch_at` returns
        None if the log ends before that id, and raises `HistoryTrimmed`."""
        self._log = log
        self._store = store
        self._partition = partition
        self._one = one
        self._age_s_max = age_s_max
        self._batch_at = batch_at
        self._good: set[FragmentName] = set()

    def check_read(self, pieces: Sequence[FragmentRange]) -> None:
        """Raise `LogForked` or `FragmentsAhead` if fragments that are to be read are not of the log. Those that lie
        side by side have to agree: of these only the highest one is compared."""
        for number, piece in enumerate(pieces, 1):
            if number == len(pieces) or pieces[number].span.first > piece.span.last + 1:
                self._check(piece.fragment)

    def check_below(self, first: TransactionId) -> None:
        """Raise `LogForked` if a log that is read from this id on does not go on from the fragments that end below it.
        A stream has read these perhaps. One that can't be read, or has another cluster key, proves nothing about the
        log."""
        last = max((name.last for name in self._one.sizes if name.last < first), default=None)
        for name in sorted(name for name in self._one.sizes if name.last == last):
            try:
                if footer_kept(self._store, name, self._one.sizes[name]).cluster_key != self._log.log_key:
                    continue
            except (FragmentDamaged, UnsupportedFormat, NotFound):
                continue
            # The batch is read in any case if it is the next one.
            self._check(name, anew=name.last == first - 1)

    def _check(self, name: FragmentName, *, anew: bool = False) -> None:
        """Raise `LogForked` or `FragmentsAhead` unless the log goes on from this fragment."""
        if name in self._good or (not anew and self._is_known(name)):
            return
        end = BatchEnd(name.last, self._crc(name))
        try:
            # That with the next id, as the fragment's own last batch may be trimmed. There is none if both end there.
            batch = self._batch_at(self._partition, name.last + 1) or self._batch_at(self._partition, name.last)
        except HistoryTrimmed:
            self._check_above(name)
        else:
            if batch is None:
                raise FragmentsAhead(
                    f"partition {self._partition}: the fragments in {self._store} reach up to {name.last}, and the log "
                    f"ends before that: acknowledged transactions are gone from it, or {_ADVICE}"
                )
            if end not in batch.ends:
                raise _forked(self._partition, self._store, name, "the log")
        self._good.add(name)
        if self._age_s_max > 0:
            _note(self._log, name, self._age_s_max)

    def _check_above(self, name: FragmentName) -> None:
        """Compare the fragments above this one, up to the first behind which the log still holds what is next."""
        highest = max(each.last for each in self._one.sizes)
        above: list[FragmentName] = []
        following = name.last + 1
        for fragment, span in cover(self._one.sizes, Span(following, highest)).pieces:
            if span.first != following:
                break
            above.append(fragment)
            following = span.last + 1
        held = bisect_left(above, True, key=lambda each: not self._is_trimmed(each.last + 1))
        # Behind the last one the log does not tell, and holds nothing that could be read beside these fragments.
        if held < len(above):
            self._one.check(self._log.log_key, above[: held + 1])
            self._check(above[held])

    def _is_trimmed(self, id: TransactionId) -> bool:
        try:
            self._batch_at(self._partition, id)
        except HistoryTrimmed:
            return True
        return False

    def _crc(self, name: FragmentName) -> int:
        size = self._one.sizes[name]
        footer = footer_kept(self._store, name, size)
        if footer.cluster_key != self._log.log_key:
            footer_from(self._store, name, size, self._log.log_key)  # raises, as for whatever is to be read
        return footer.last_crc

    def _is_known(self, name: FragmentName) -> bool:
        asked_s = _compared.get(self._log, {}).get(name)
        return asked_s is not None and time.monotonic() - asked_s <= self._age_s_max


def check_replica(
    replica: SegmentFiles, store: ObstoreStore, partition: PartitionId, extents: Sequence[Extent]
) -> None:
    """Raise `LogForked` if a replica and the fragments beside it, which these extents are read from, do not continue.
    Compares them where one is read right behind the other, or where the replica proves that it holds what is committed
    right behind. What can't be read proves nothing about other bytes."""
    for number, (_, span, name, _, size, _) in enumerate(extents):
        if name is None:
            continue
        footer = footer_kept(store, name, size)
        before = extents[number - 1] if number > 0 else None
        if before is not None and before.fragment is None and before.span.last == name.first - 1:
            ends = replica.ends_at(partition, before.span.last)
            if ends is not None and BatchEnd(before.span.last, footer.previous_crc) not in ends:
                raise _forked(partition, store, name, str(replica))
        behind = extents[number + 1] if number + 1 < len(extents) else None
        if behind is not None and behind.span.first == span.last + 1 and behind.fragment is not None:
            continue  # the fragments agree
        is_wanted = behind is not None and behind.span.first == name.last + 1
        for id in (name.last + 1, name.last):
            ends = replica.ends_at(partition, id) if is_wanted or replica.proves(partition, id) else None
            if ends is not None and BatchEnd(name.last, footer.last_crc) not in ends:
                raise _forked(partition, store, name, str(replica))
            if ends is not None:
                break


def _forked(partition: PartitionId, store: ObstoreStore, name: FragmentName, other: str) -> LogForked:
    return LogForked(
        f"partition {partition}: the fragments in {store} reach up to {name.last} ({name.path}), and {other} has other "
        f"transactions there: {_ADVICE}"
    )


def _note(log: Log, name: FragmentName, age_s_max: float) -> None:
    """Remember that the log goes on from this fragment; forget what was asked too long ago."""
    now_s = time.monotonic()
    kept = {each: asked_s for each, asked_s in _compared.get(log, {}).items() if now_s - asked_s <= age_s_max}
    _compared[log] = {**kept, name: now_s}
