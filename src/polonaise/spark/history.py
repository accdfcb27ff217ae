"""What there is to read: a log, a fragment store, or both; asked by whoever plans a query, before its tasks run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from polonaise.blocking.log import Log
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, BeyondLog, FragmentMissing, UnknownPartition
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName, partition_prefix
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import clusters
from polonaise.spark.options import EARLIEST, FRAGMENTS, LATEST, Places, ReadOptions
from polonaise.spark.splits import Extent, Split, cold_extents, divide, rest_of
from polonaise.spark.times import first_at
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.spark")

_LIST_FROM: Final = 100_000
"""Transactions from which on it is worth to look for fragments: fewer are quickly had from the servers."""
_BYTES_GUESSED: Final = 256
"""Of a transaction that nobody has looked at."""


class History:
    """One query's view of what is there. Nothing is asked before it is needed, and nothing twice."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._listed: dict[PartitionId, dict[FragmentName, int]] = {}

    @cached_property
    def log(self) -> Log | None:
        """The log; None when there is only a store."""
        cluster = self._options.cluster
        return None if cluster.startswith(FRAGMENTS) else clusters.log_at(cluster)

    @cached_property
    def store(self) -> ObstoreStore | None:
        url = self._options.fragments
        return None if url is None else clusters.store_at(url)

    @cached_property
    def partitions(self) -> list[PartitionId]:
        """The partitions that the query names. Raises `UnknownPartition`, `BadOption`."""
        named = self._options.partitions
        if self.log is not None:
            return partitions_named(named, self.log.partition_count)
        assert self.store is not None
        store = self.store
        names = [FragmentName.parse(each.path) for each in clusters.wait(store.list)]
        there = sorted({name.partition for name in names if name is not None})
        if not there:
            raise BadOption(f"{store} holds no fragments: check its address")
        chosen = there if named.strip() == "all" else partitions_named(named, max(there) + 1)
        missing = [partition for partition in chosen if partition not in there]
        if missing:
            raise UnknownPartition(f"partition {missing[0]} has no fragments in {store}")
        return chosen

    def fragments(self, partition: PartitionId) -> dict[FragmentName, int]:
        """The partition's fragments, and how many bytes each has."""
        if self.store is None:
            return {}
        if partition not in self._listed:
            store = self.store
            listed = clusters.wait(lambda: store.list(partition_prefix(partition)))
            self._listed[partition] = {
                name: each.bytes for each in listed if (name := FragmentName.parse(each.path)) is not None
            }
        return self._listed[partition]

    def ends(self) -> dict[PartitionId, TransactionId]:
        """The next id of each partition: what is committed, or with a store alone what is archived, ends before it."""
        log = self.log
        if log is None:
            return {
                partition: max((name.last for name in self.fragments(partition)), default=-1) + 1
                for partition in self.partitions
            }
        timeout = self._options.timeout_s
        return {partition: log.high_water_mark(partition, timeout=timeout) + 1 for partition in self.partitions}

    def wait_beyond(self, ends: Mapping[PartitionId, TransactionId], wait_s: float) -> bool:
        """Whether there is more than this within so many seconds."""
        if self.log is None or not ends:
            return False
        return bool(self.log.wait_committed({partition: end - 1 for partition, end in ends.items()}, timeout=wait_s))

    # ------------------------------------------------------------------ which range

    def wanted(self) -> dict[PartitionId, Span]:
        """The range of each partition that the options ask for; may be empty (`last` below `first`).

        Raises `BeyondLog` for a place that is not there, and `BadOption` for a range that ends before it starts.
        """
        options, ends = self._options, self.ends()
        unknown = sorted({*options.starting.by_partition, *options.ending.by_partition} - set(ends))
        if unknown:
            raise UnknownPartition(
                f"a place in partition {unknown[0]}, which the query does not read: it reads {list(ends)}"
            )
        spans: dict[PartitionId, Span] = {}
        for partition, end in ends.items():
            start = self._place("starting", options.starting, options.starting_time_us, partition, end)
            stop = self._place("ending", options.ending, options.ending_time_us, partition, end)
            if stop < start:
                raise BadOption(
                    f"partition {partition} from {start} up to {stop}: a range ends where it starts, or later"
                )
            spans[partition] = Span(start, stop - 1)
        return spans

    def _place(
        self, side: str, places: Places, time_us: int | None, partition: PartitionId, end: TransactionId
    ) -> TransactionId:
        if time_us is not None:
            return first_at(self, partition, time_us, end)
        place = places.of(partition)
        if place in (EARLIEST, LATEST):
            return 0 if place == EARLIEST else end
        if place > end:
            raise BeyondLog(
                f"{side}Transactions: {place} in partition {partition}, whose next transaction will be {end}: "
                "say latest for all there is"
            )
        return place

    # ------------------------------------------------------------------ tasks

    def splits(self, spans: Mapping[PartitionId, Span]) -> list[Split]:
        """The tasks that read these ranges.

        Raises `FragmentMissing` when part of a range is nowhere, unless `failOnDataLoss` is false: that is left out
        then, with a warning.
        """
        extents = [each for partition, span in sorted(spans.items()) for each in self._extents(partition, span)]
        return divide(extents, self._options.split_bytes_max, self._options.partitions_min)

    def _extents(self, partition: PartitionId, span: Span) -> list[Extent]:
        if span.last < span.first:
            return []
        extents: list[Extent] = []
        if self.log is None or span.last - span.first >= _LIST_FROM:
            extents = cold_extents(self.fragments(partition), partition, span)
        for rest in rest_of(extents, span):
            if self.log is None:
                self._missing(f"no fragment in {self.store} holds {rest.first} to {rest.last} of partition {partition}")
            else:
                extents.append(self._hot_extent(self.log, partition, rest))
        return sorted(extents, key=lambda each: each.span)

    def _hot_extent(self, log: Log, partition: PartitionId, span: Span) -> Extent:
        """A range that the servers are asked for; a look at its first batch tells how large it is, about."""
        count = span.last - span.first + 1
        if count < _LIST_FROM and self.store is None:
            return Extent(partition, span, None, count * _BYTES_GUESSED)
        with log.read_batches(
            partition, after=span.first - 1, until=span.first, timeout=self._options.timeout_s
        ) as first:
            batch = next(first)
        return Extent(partition, span, None, count * batch.length // batch.count)

    def _missing(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise FragmentMissing(
                f"{what}: archive it from the cluster, restore it from a copy, or read around it with "
                "failOnDataLoss=false"
            )
        _log.warning("%s: it is left out, because failOnDataLoss is false", what)
