"""The history that a query can read: a log or one replica of it, with or without a fragment store, or a store alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from polonaise.blocking.log import Log
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import (
    BadOption,
    BeyondLog,
    DeadlineExceeded,
    FragmentMissing,
    HistoryTrimmed,
    NotFound,
    PolonaiseError,
    SegmentDamaged,
    StoreUnavailable,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.fragments.agreement import ends_told
from polonaise.fragments.protocol.coverage import Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName, partition_prefix
from polonaise.fragments.store import ObstoreStore
from polonaise.fragments.topicrecord import recorded_topics
from polonaise.redaction import redacted, redacted_address
from polonaise.spark import clusters, fragmentfiles
from polonaise.spark.fragmentfiles import footer_from, footer_kept
from polonaise.spark.onelog import Continuation, LogBatch, OneLog, check_replica, one_log
from polonaise.spark.options import EARLIEST, FRAGMENTS, LATEST, STORAGE, Positions, ReadOptions, partitions_among
from polonaise.spark.protocol.splits import Extent, Split, cold_extents, divide, rest_of
from polonaise.spark.segmentfiles import SegmentFiles
from polonaise.terms import ClusterTopics, PartitionId, TransactionId

_log = logging.getLogger("polonaise.spark")

_LIST_S: Final = 30.0
"""Seconds for which a stream uses one listing of a store beside a log. What is not in it is read from the servers."""


class QueryHistory:
    """The history that one query can read. Connects and lists fragments when that is first needed, and keeps both. With
    `in_a_hurry`, as for a micro-batch, listings of a store beside a log may be up to `_LIST_S` seconds old."""

    def __init__(self, options: ReadOptions, *, in_a_hurry: bool = False) -> None:
        self._options = options
        self._in_a_hurry = in_a_hurry
        self._listings: dict[str, dict[FragmentName, int]] = {}
        self._of_one_log: dict[PartitionId, OneLog] = {}
        """The partitions whose fragments were compared, as they are in `_listings`."""
        self._continuations: dict[PartitionId, Continuation] = {}
        self._batches: dict[tuple[PartitionId, TransactionId], LogBatch | None] = {}

    @cached_property
    def log(self) -> Log | None:
        """The log; None if the query reads a replica, or a store alone."""
        cluster = self._options.cluster
        return None if cluster.startswith((FRAGMENTS, STORAGE)) else clusters.log_at(cluster, self._options.tls)

    @cached_property
    def replica(self) -> SegmentFiles | None:
        """The files of the one storage node that is read instead of a log; None unless the query names one."""
        cluster = self._options.cluster
        return SegmentFiles(cluster.removeprefix(STORAGE)) if cluster.startswith(STORAGE) else None

    @cached_property
    def store(self) -> ObstoreStore | None:
        """The store of fragments; None without one. Raises what `_away` returns for a directory that does not exist."""
        url = self._options.fragments
        if url is not None and "://" not in url and not Path(url).is_dir():
            raise self._away(
                NotFound(
                    f"no directory {redacted_address(url)}: mount what belongs there, or correct the address of "
                    "the fragments"
                )
            )
        return None if url is None else clusters.store_at(url)

    def _away(self, error: PolonaiseError) -> PolonaiseError:
        """Return the error for a store that is not there, or empty: `StoreUnavailable` if its key was read before."""
        alone = self._options.cluster.startswith(FRAGMENTS)
        return StoreUnavailable(error.text) if alone and self._options.log_key is not None else error

    def _empty(self) -> PolonaiseError:
        return self._away(
            BadOption(f"{self.store} holds no fragments: mount what belongs there, or correct its address")
        )

    @cached_property
    def cluster_key(self) -> bytes | None:
        """The key of the log, of the replica, or of the first fragment of a store that is read alone; None if nothing
        tells. That of a topic is its own (`Log.log_key`). Raises `WrongClusterKey` if the options say another one, and
        `StoreUnavailable` if they say one and the store is empty."""
        key, expected = self._key_there(), self._options.log_key
        if expected is not None and key is not None and key != expected:
            raise WrongClusterKey(
                f"at {redacted(self._options.cluster)} is another log, with the key {key.hex()}, than the one with "
                f"which the query began, with the key {expected.hex()}: correct the address, or mount what belongs "
                "there; a stream over another log needs a new checkpoint"
            )
        return key

    def _key_there(self) -> bytes | None:
        if self.log is not None:
            return self.log.log_key
        if self.replica is not None:
            return self.replica.cluster_key
        assert self.store is not None
        first = min(self._listing, default=None)
        if first is not None:
            return footer_kept(self.store, first, self._listing[first]).cluster_key
        if self._options.log_key is not None:
            raise self._empty()
        return None

    def key_option(self) -> dict[str, str]:
        """Return the option with which a later query refuses another log than this one; none if its key is unknown."""
        return {} if self.cluster_key is None else {"logKey": self.cluster_key.hex()}

    @property
    def _listing(self) -> dict[FragmentName, int]:
        """All fragments of a store that is read alone, with their sizes in bytes."""
        return self._listed("")

    def _listed(self, prefix: str) -> dict[FragmentName, int]:
        if prefix not in self._listings:
            assert self._options.fragments is not None
            age_s = _LIST_S if self._in_a_hurry and self.log is not None else 0.0
            try:
                listed = clusters.listed(self._options.fragments, prefix, age_s)
            except NotFound as error:
                raise self._away(error) from error
            self._listings[prefix] = {
                name: each.bytes for each in listed if (name := FragmentName.parse(each.path)) is not None
            }
        return self._listings[prefix]

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that the query names. By default all; of a store that is read alone, those in no topic. Raises
        `UnknownPartition`; `BadOption` for an invalid option, and for a replica without any partition; what `_empty`
        returns for a store without any; and what `_in_no_topic` raises."""
        named = self._options.partitions
        if self.log is not None:
            return partitions_named(named, self.log.partition_count, self.log.topic)
        if self.replica is not None:
            return self.replica.partitions(named)
        archived = {name.partition for name in self._listing}
        if not archived:
            raise self._empty()
        if named.strip() == "all":
            archived = self._in_no_topic(archived)
        return partitions_among(named, archived, f"{self.store} has fragments of the partitions")

    def _in_no_topic(self, archived: set[PartitionId]) -> set[PartitionId]:
        """Return those of a store's partitions that are the log's own, as an address without a topic means them. Raises
        `BadOption` if there are none, and what `recorded_topics` raises, such as `FragmentDamaged`."""
        topics = self._topics
        own = archived if topics is None else {partition for partition in archived if partition < topics.partitions}
        if not own and topics is not None:
            named = "; ".join(f"{name}: {', '.join(map(str, ids))}" for name, ids in sorted(topics.topics.items()))
            raise BadOption(
                f"{self.store} holds fragments of topics only: name their partitions by ids, such as "
                f"partitions={min(archived)}. The ids of its topics' partitions, in order: {named}"
            )
        return own

    @cached_property
    def _topics(self) -> ClusterTopics | None:
        """The topics that a store which is read alone has on record; None if it has none."""
        store, key = self.store, self.cluster_key
        assert store is not None
        assert key is not None
        return clusters.wait(lambda: recorded_topics(store, key))

    def fragments(self, partition: PartitionId) -> dict[FragmentName, int]:
        """Return the partition's fragments, with their sizes in bytes; none if the query names no store. Raises
        `history_incomplete` if some overlap and are not of one log."""
        if self.store is None:
            return {}
        if self.log is None and self.replica is None:
            found = {name: size for name, size in self._listing.items() if name.partition == partition}
        else:
            found = self._listed(partition_prefix(partition))
        if partition not in self._of_one_log:
            compared = one_log(self.store, partition, found)
            compared.check(self.cluster_key)
            self._of_one_log[partition] = compared
        return found

    def check_read(self, partition: PartitionId, span: Span) -> None:
        """Raise `history_incomplete` if fragments that hold these ids are not of one log with those around them. Raises
        `LogForked` or `FragmentsAhead` if they are not of the log beside which they are read."""
        if self.store is not None:
            pieces = cover(self.fragments(partition), span).pieces
            self._of_one_log[partition].check(self.cluster_key, [piece.fragment for piece in pieces])
            if self.log is not None:
                self._continuation(self.log, partition).check_read(pieces)

    def _continuation(self, log: Log, partition: PartitionId) -> Continuation:
        if partition not in self._continuations:
            assert self.store is not None
            _ = self.fragments(partition)
            age_s = _LIST_S if self._in_a_hurry else 0.0
            one = self._of_one_log[partition]
            self._continuations[partition] = Continuation(log, self.store, partition, one, age_s, self._batch_at)
        return self._continuations[partition]

    def _batch_at(self, partition: PartitionId, id: TransactionId) -> LogBatch | None:
        """Return what is wanted of the batch with this id, read once; None behind the end. Or `HistoryTrimmed`."""
        if (partition, id) not in self._batches:
            assert self.log is not None
            timeout = self._options.timeout_s
            with self.log.read_batches(partition, after=id - 1, until=id, timeout=timeout) as first:
                batch = next(first, None)
            told = None if batch is None else LogBatch(ends_told(batch), batch.count, batch.length)
            self._batches[partition, id] = told
        return self._batches[partition, id]

    def ends(self) -> dict[PartitionId, TransactionId]:
        """Return the next id of each partition read, after all that is committed, archived, or in the replica."""
        log = self.log
        if self._options.log_key is not None:
            _ = self.cluster_key
        if log is None:
            return {
                partition: max(
                    0 if self.replica is None else self.replica.end(partition),
                    max((name.last for name in self.fragments(partition)), default=-1) + 1,
                )
                for partition in self.partitions
            }
        marks = log.high_water_marks(self.partitions, timeout=self._options.timeout_s)
        return {partition: mark + 1 for partition, mark in marks.items()}

    def wait_beyond(self, ends: Mapping[PartitionId, TransactionId], wait_s: float) -> dict[PartitionId, TransactionId]:
        """Wait until a partition grows beyond its id in `ends`; return the new ends of partitions that did so first.
        The result is empty if none grows within `wait_s` seconds. If an owner does not answer, the ends of all
        partitions are requested. A store alone is listed after the wait."""
        if self.log is None:
            time.sleep(wait_s)
            self._listings.clear()
            self._of_one_log.clear()
            vars(self).pop("cluster_key", None)  # the next listing may be of another store: the key goes with it
        else:
            try:
                grown = self.log.wait_committed({partition: end - 1 for partition, end in ends.items()}, timeout=wait_s)
                return {partition: mark + 1 for partition, mark in grown.items()}
            except DeadlineExceeded:
                pass  # the ends are requested within the query's own timeout
        return {partition: end for partition, end in self.ends().items() if end > ends.get(partition, 0)}

    def holes(
        self, next_ids: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId]
    ) -> dict[PartitionId, Span]:
        """Return, by partition, the first range from its next id to its end that no fragment holds. A stream over a
        store alone waits for these ids, which an archiver may write. The result is empty if the query reads a log, or
        if missing ids are to be skipped (`failOnDataLoss` false)."""
        if self.log is not None or not self._options.fail_on_data_loss:
            return {}
        covered = {
            partition: cover(self.fragments(partition), Span(next_ids.get(partition, 0), end - 1))
            for partition, end in ends.items()
        }
        return {partition: coverage.holes[0] for partition, coverage in covered.items() if coverage.holes}

    # ------------------------------------------------------------------ which range

    def wanted(self) -> dict[PartitionId, Span]:
        """Return the range of each partition that the options ask for. An empty one has `last` below `first`. Raises
        `BeyondLog` for a position after the log's end, `BadOption` for a range that ends before it starts,
        `UnknownPartition` for a range of a partition that the query does not read, and what `first_at` raises."""
        options, ends = self._options, self.ends()
        unknown = sorted({*options.starting.by_partition, *options.ending.by_partition} - set(ends))
        if unknown:
            raise UnknownPartition(
                f"a range names partition {unknown[0]}, which the query does not read: it reads {list(ends)}"
            )
        spans: dict[PartitionId, Span] = {}
        for partition, end in ends.items():
            start = self._position("starting", options.starting, options.starting_time_us, partition, end)
            stop = self._position("ending", options.ending, options.ending_time_us, partition, end)
            if stop < start:
                raise BadOption(
                    f"the range of partition {partition} ends at {stop}, before its start {start}: swap them"
                )
            spans[partition] = Span(start, stop - 1)
        return spans

    def _position(
        self, side: str, positions: Positions, time_us: int | None, partition: PartitionId, end: TransactionId
    ) -> TransactionId:
        if time_us is not None:
            return (self.start_at if side == "starting" else self.first_at)(partition, time_us, end)
        position = positions.of(partition)
        if position in (EARLIEST, LATEST):
            return 0 if position == EARLIEST else end
        if position > end:
            advice = "write latest to read to the end" if side == "ending" else f"give an id up to {end}, or earliest"
            raise BeyondLog(
                f"{side}Transactions: {position} in partition {partition}, whose next transaction will be {end}: "
                f"{advice}"
            )
        return position

    def first_at(self, partition: PartitionId, time_us: int, end: TransactionId) -> TransactionId:
        """Return the first id committed at a time (microseconds UTC) or later, or `end`: a range up to then ends there.
        Raises `HistoryTrimmed` if it was dropped, and can't be read from fragments. If it may be among ids that are
        missing, these are in the range, which `splits` refuses then."""
        return self._sought(partition, time_us, end).last

    def start_at(self, partition: PartitionId, time_us: int, end: TransactionId) -> TransactionId:
        """Return the id from which a range of all transactions since a time begins. Otherwise as `first_at`."""
        return self._sought(partition, time_us, end).first

    def _sought(self, partition: PartitionId, time_us: int, end: TransactionId) -> Span:
        """Return the ids of which one is the first committed at `time_us` or later: several if it may be missing."""
        if self.replica is not None:
            held = self.replica.first_at(partition, time_us, end)
            if held.first <= self.replica.begin(partition):
                # All that the replica can read is late enough: an earlier one, which was trimmed, may be so too.
                held = Span(0, held.last)
            elif held.first == held.last < self.replica.end(partition):
                return held
            if self.store is None:
                return held
            # The archive may have what the replica lacks, and may reach farther.
            in_store = self._first_archived_at(partition, time_us, held.last)
            return Span(max(in_store.first, held.first), max(in_store.last, held.first))
        if self.log is None:
            return self._first_archived_at(partition, time_us, end)
        try:
            with self.log.read_time(partition, since=time_us, timeout=self._options.timeout_s) as transactions:
                first = next(iter(transactions), None)
        except HistoryTrimmed as error:
            if self.store is None:
                raise self._trimmed(error) from error
            # Archived history has no gap at its beginning: what the servers still hold begins at its end, or before.
            archived = archived_up_to(self.fragments(partition))
            return self._first_archived_at(partition, time_us, min(archived + 1, end))
        found = end if first is None else min(first.id, end)
        return Span(found, found)

    def _first_archived_at(self, partition: PartitionId, time_us: int, end: TransactionId) -> Span:
        assert self.store is not None
        return fragmentfiles.first_at(self.store, self.fragments(partition), time_us, end, self.cluster_key)

    # ------------------------------------------------------------------ tasks

    def splits(self, spans: Mapping[PartitionId, Span]) -> list[Split]:
        """Divide these ranges into tasks. Raises `FragmentMissing` if a store is read alone and lacks part of a range,
        `SegmentDamaged` if a replica does; with `failOnDataLoss` false that part is left out with a warning. Raises
        `HistoryTrimmed` for a range that is archived in a place not known here: it is not lost, and never left out.
        Raises `BeyondLog` if the log ends before a range, `WrongClusterKey` for fragments of another log, and what
        `check_read` raises."""
        extents = [each for partition, span in sorted(spans.items()) for each in self._extents(partition, span)]
        splits = divide(extents, self._options.split_bytes_max, self._options.partitions_min)
        return [split._replace(cluster_key=self.cluster_key) for split in splits]

    def _extents(self, partition: PartitionId, span: Span) -> list[Extent]:
        if span.last < span.first:
            return []
        extents: list[Extent] = []
        if self.store is not None:
            extents = cold_extents(self.fragments(partition), partition, span)
            self._check_fragment(extents)
            self.check_read(partition, span)
        if self.replica is not None:
            return self._with_replica(self.replica, extents, partition, span)
        for rest in rest_of(extents, span):
            if self.log is None:
                self._missing(f"no fragment in {self.store} holds {rest.first} to {rest.last} of partition {partition}")
            else:
                extents.append(self._hot_extent(self.log, partition, rest))
        return sorted(extents, key=lambda each: each.span)

    def _with_replica(
        self, replica: SegmentFiles, extents: list[Extent], partition: PartitionId, span: Span
    ) -> list[Extent]:
        """Return the archived extents, and the rest from one storage node's files. Raises `HistoryTrimmed` or
        `SegmentDamaged` for ids that neither holds, `LogForked` if one does not continue the other."""
        extents += [each for rest in rest_of(extents, span) for each in replica.extents(partition, rest, self.store)]
        for lacking in rest_of(extents, span):
            if self._options.fail_on_data_loss:
                raise SegmentDamaged(replica.missing(partition, lacking))
            _log.warning("%s", replica.left_out(partition, lacking))
        extents = sorted(extents, key=lambda each: each.span)
        if self.store is not None:
            check_replica(replica, self.store, partition, extents)
        return extents

    def _check_fragment(self, extents: Sequence[Extent]) -> None:
        """Raise `WrongClusterKey` if the first fragment is of another log. Tasks check each fragment that they open."""
        fragment = next((extent for extent in extents if extent.fragment is not None), None)
        if fragment is not None and fragment.fragment is not None and self.store is not None:
            footer_from(self.store, fragment.fragment, fragment.fragment_bytes, self.cluster_key)

    def _hot_extent(self, log: Log, partition: PartitionId, span: Span) -> Extent:
        """Return the extent of a range that the servers have, after reading its first batch, to estimate its size."""
        try:
            batch = self._batch_at(partition, span.first)
        except HistoryTrimmed as error:
            raise self._trimmed(error) from error
        if batch is None:
            raise BeyondLog(
                f"partition {partition} ends before {span.first}, and the query reads from there up to {span.last}: "
                "the log is another one now, or an older copy of it: correct the address, and make the query again"
            )
        if self.store is not None:
            self._continuation(log, partition).check_below(span.first)
        return Extent(partition, span, None, span.length * batch.bytes // batch.transactions)

    def _trimmed(self, refused: HistoryTrimmed) -> HistoryTrimmed:
        """Return the error for a range that the servers have dropped, with what the query can do about it."""
        if self.store is None:
            return HistoryTrimmed(f"{refused.text}, in Spark by .option('fragments', its address)")
        return HistoryTrimmed(
            f"{refused.text}; the option fragments names {self.store}, which does not hold them either"
        )

    def _missing(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise FragmentMissing(
                f"{what}: archive it from the cluster, restore it from a copy, or read around it with "
                "failOnDataLoss=false"
            )
        _log.warning("%s: it is left out, because failOnDataLoss is false", what)
