"""A stream over the log: where it begins, what is new, and what one micro-batch reads.

Offsets are the next id of each partition, as JSON. Spark asks for the latest one every few milliseconds while nothing
happens, so the answer waits at the servers for something new; it never tells this reader to stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from polonaise.errors import BeyondLog
from polonaise.fragments.protocol.coverage import Span
from polonaise.spark.admission import admitted
from polonaise.spark.history import History
from polonaise.spark.options import ReadOptions
from polonaise.spark.reading import input_partitions, read_split
from polonaise.spark.schemas import Projection
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_WAIT_S: Final = 1.0
"""How long an answer waits for something new: long enough to cost little, short enough to see new partitions."""

Offset = dict[str, TransactionId]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("polonaise")`: each transaction once per query, in order within a partition.

    Promises: an offset once planned always reads the same transactions, whatever happens to the cluster meanwhile.
    Faults that pass are waited out; what does not pass within the option `timeout` ends the query with its reason.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = Projection(options, schema)
        self._target: Mapping[PartitionId, TransactionId] | None = None
        """With the trigger AvailableNow: where the query ends."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        spans = History(self._options).wanted()
        return {str(partition): span.first for partition, span in sorted(spans.items())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows = self._options.transactions_per_trigger_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = History(self._options).ends()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        places = _places(start)
        ends = self._target if self._target is not None else self._ends_after(places)
        _check_grown(places, ends)
        # A partition that was not there before begins at its beginning.
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = admitted({partition: places.get(partition, 0) for partition in ends}, ends, rows_max)
        return {str(partition): place for partition, place in sorted(reached.items())}

    def _ends_after(self, places: Mapping[PartitionId, TransactionId]) -> Mapping[PartitionId, TransactionId]:
        history = History(self._options)
        ends = history.ends()
        if all(places.get(partition) == end for partition, end in ends.items()) and history.wait_beyond(ends, _WAIT_S):
            ends = history.ends()
        return ends

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        return {str(partition): end for partition, end in sorted(History(self._options).ends().items())}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        places = _places(start)
        spans = {
            partition: Span(places.get(partition, 0), stop - 1)
            for partition, stop in _places(end).items()
            if stop > places.get(partition, 0)
        }
        return input_partitions(History(self._options).splits(spans))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self._options, self._projection, partition.value)

    def commit(self, end: Offset) -> None:
        """The log keeps everything; nothing is to be released."""

    def stop(self) -> None:
        """Spark never calls this."""


def _places(offset: Mapping[str, Any]) -> dict[PartitionId, TransactionId]:
    return {int(partition): int(place) for partition, place in offset.items()}


def _check_grown(places: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId]) -> None:
    for partition, place in places.items():
        if place > ends.get(partition, 0):
            raise BeyondLog(
                f"the checkpoint says that partition {partition} was read up to {place - 1}, and the log there ends at "
                f"{ends.get(partition, 0) - 1}: it is another log, or an older copy of it; begin with a new checkpoint"
            )
