"""The reader of a batch query: a snapshot of the log, planned once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from polonaise.spark.options import ReadOptions
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.taskreader import input_partitions, projection_of, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SparkBatchReader(DataSourceReader):
    """The reader of `spark.read.format("polonaise")`: what was committed when Spark planned the first action on it. The
    DataFrame has the same rows however often it is used, in the order of ids within a partition. All are committed,
    unless a single replica is read: its column `standing` tells which. Takes no filters from Spark, which would apply
    those of one query to others on the same DataFrame (`docs/spark.md`)."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = projection_of(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        history = QueryHistory(self._options)
        return input_partitions(history.splits(history.wanted()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self._options, self._projection, partition.value)
