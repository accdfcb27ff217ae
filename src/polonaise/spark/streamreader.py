"""A stream over the log: where it starts, what is new, and what one micro-batch reads.

An offset is JSON: the next id of each partition. While nothing happens Spark asks for the latest offset every few
milliseconds. So the servers hold the answer back until there is something new. Each request delays a micro-batch: where
that answer tells the ends of all partitions, no further one is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from polonaise.errors import BadOption, BeyondLog, PolonaiseError, WrongClusterKey, fresh
from polonaise.fragments.protocol.coverage import Span
from polonaise.node.addresses import LOG_FORMS
from polonaise.spark.options import STORAGE, UP_TO_LATEST, ReadOptions
from polonaise.spark.protocol.splits import admitted
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.taskreader import input_partitions, projection_of, read_split
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("polonaise.spark")

_WAIT_S: Final = 1.0
"""Seconds for which a request for the latest offset waits for something new, or until a store alone is listed again."""

_LOG: Final = "log"
"""Key of the entry of an offset that names its log, by the log's key (`Log.log_key`) in hexadecimal."""

Offset: TypeAlias = dict[str, Any]
"""The next id of each partition, by the partition as text; and the log's key under `_LOG`, if it is known."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("polonaise")`: each transaction once per query, in order per partition. An
    offset, once planned, always reads the same transactions, whatever happens to the cluster, unless `failOnDataLoss`
    is false. Passing faults are waited out; one that outlasts the option `timeout` ends the query with its reason."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        _check_endless(options)
        self._options = options
        self._projection = projection_of(options, schema)
        self._target: Mapping[PartitionId, TransactionId] | None = None
        """The ends at which the query stops, with the trigger AvailableNow; None without it."""
        self._initial: Offset | None = None
        self._ends: Mapping[PartitionId, TransactionId] = {}
        """The ids up to which partitions could be read lately, exclusive: their ends, or the first missing ids."""
        self._warned_holes: Mapping[PartitionId, Span] = {}
        """By partition, the ids in no fragment that the last poll found."""
        self._key: bytes | None = None
        """The key of the log with which this stream began, for offsets that do not have it; None until it is known."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        if self._initial is None:  # Spark asks twice, and has to get the same answer
            history = QueryHistory(self._options)
            next_ids = {partition: span.first for partition, span in history.wanted().items()}
            self._initial = _offset(next_ids, history.cluster_key)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows = self._options.transactions_per_trigger_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._ends = self._target = QueryHistory(self._options).ends()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        next_ids = _next_ids(start)
        history = self._history(start)
        if self._target is None:
            self._ends = self._ends_after(next_ids, history)
        self._key = history.cluster_key
        _check_grown(next_ids, self._ends)
        # With AvailableNow the target stays: waiting for missing ids might never end, so the query fails instead.
        if self._target is None:
            self._ends = self._before_holes(next_ids, history)
        # A partition that this stream has not read yet is read from its beginning.
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        starts = {partition: next_ids.get(partition, 0) for partition in self._ends}
        reached = admitted(starts, self._ends, rows_max)
        if history.log is None:
            # Before an offset is told, which Spark plans again after a restart: ids of a life of the log that was given
            # up may be none of the log's. Beside a log the ends are the log's own, and the plan is checked.
            for partition, end in reached.items():
                history.check_read(partition, Span(starts[partition], end - 1))
        return _offset(reached, _key_in(start))

    def _ends_after(
        self, next_ids: Mapping[PartitionId, TransactionId], history: QueryHistory
    ) -> Mapping[PartitionId, TransactionId]:
        """Return the partitions' ends. If `next_ids` are all of these, first waits up to `_WAIT_S` seconds for more."""
        known = bool(self._ends) and not self._has_grown(history)
        if known and all(next_ids.get(partition) == end for partition, end in self._ends.items()):
            grown = history.wait_beyond(self._ends, _WAIT_S)
            # With one partition the answer is complete; with several, others may have grown meanwhile.
            if not self._has_grown(history) and (not grown or len(self._ends) == 1):
                return {**self._ends, **grown}
        return history.ends()

    def _has_grown(self, history: QueryHistory) -> bool:
        """Whether the topic has partitions whose ends no request for the known ones would tell."""
        return history.log is not None and bool(history.log.topic) and self._ends.keys() != {*history.partitions}

    def _before_holes(
        self, next_ids: Mapping[PartitionId, TransactionId], history: QueryHistory
    ) -> Mapping[PartitionId, TransactionId]:
        """Return the ends, each lowered to the first id that is in no fragment; warn once of missing ids."""
        holes = history.holes(next_ids, self._ends)
        for partition, hole in holes.items():
            if self._warned_holes.get(partition) != hole:
                _log.warning(
                    "no fragment in %s holds %d to %d of partition %d: waiting for it", history.store, *hole, partition
                )
        self._warned_holes = holes
        return {
            partition: holes[partition].first if partition in holes else end for partition, end in self._ends.items()
        }

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        return {str(partition): end for partition, end in sorted(self._ends.items())}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        next_ids = _next_ids(start)
        spans = {
            partition: Span(next_ids.get(partition, 0), stop - 1)
            for partition, stop in _next_ids(end).items()
            if stop > next_ids.get(partition, 0)
        }
        history = self._history(end, in_a_hurry=True)
        self._key = history.cluster_key
        return input_partitions(history.splits(spans))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self._options, self._projection, partition.value)

    def _history(self, offset: Offset, *, in_a_hurry: bool = False) -> QueryHistory:
        """Return the history at the address, for the log with which the query began: the offset's. Its `cluster_key`
        raises `WrongClusterKey` if another log is there now. Raises that error itself if the option `logKey` names
        another log than the offset."""
        key = _key_in(offset) or self._key or self._options.log_key
        if key is not None and self._options.log_key not in (None, key):
            raise WrongClusterKey(
                f"the checkpoint is of another log, with the key {key.hex()}, than the option logKey says: correct the "
                "option, or begin with a new checkpoint"
            )
        return QueryHistory(replace(self._options, log_key=key), in_a_hurry=in_a_hurry)

    def commit(self, end: Offset) -> None:
        """Do nothing: the log keeps everything, and nothing is to be released."""

    def stop(self) -> None:
        """Do nothing: Spark never calls this."""


def _offset(next_ids: Mapping[PartitionId, TransactionId], key: bytes | None) -> Offset:
    offset: Offset = {str(partition): next_id for partition, next_id in sorted(next_ids.items())}
    return offset if key is None else {**offset, _LOG: key.hex()}


def _next_ids(offset: Mapping[str, Any]) -> dict[PartitionId, TransactionId]:
    return {int(partition): int(next_id) for partition, next_id in offset.items() if partition != _LOG}


def _key_in(offset: Mapping[str, Any]) -> bytes | None:
    return bytes.fromhex(offset[_LOG]) if _LOG in offset else None


def _check_grown(next_ids: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId]) -> None:
    for partition, next_id in next_ids.items():
        if partition not in ends:
            raise BadOption(
                f"the checkpoint has read partition {partition}, and this query reads {sorted(ends)}: let it read the "
                "same partitions and more, or begin with a new checkpoint"
            )
        if next_id > ends[partition]:
            raise BeyondLog(
                f"the checkpoint says that partition {partition} was read up to {next_id - 1}, and the log ends at "
                f"{ends[partition] - 1}: it is another log, or an older copy of it; begin with a new checkpoint"
            )


def _check_endless(options: ReadOptions) -> None:
    """Raise `BadOption` for options that no stream can have: an end, and a single replica as `cluster`."""
    if options.cluster.startswith(STORAGE):
        raise BadOption(
            "cluster: one replica can't be followed: what it holds may be cut again; read it with spark.read, or "
            f"stream from the log, {LOG_FORMS}"
        )
    if options.ending is not UP_TO_LATEST or options.ending_time_us is not None:
        raise BadOption(
            "endingTransactions and endingTimestamp are for batch queries: a stream has no end; "
            "trigger(availableNow=True) ends one after what is committed when it starts"
        )


class RefusedStream(DataSourceStreamReader):
    """A stream that can't start. Its methods raise the reason: Spark hides what a constructor raises."""

    def __init__(self, error: PolonaiseError) -> None:
        self._error = error

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        raise fresh(self._error)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        raise fresh(self._error)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        raise fresh(self._error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise fresh(self._error)
