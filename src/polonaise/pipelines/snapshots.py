"""A part of a log that several queries of a job read: all of them see the same transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines.job import full_address
from polonaise.spark.options import FRAGMENTS, RANGE_OPTIONS, range_options, read_options
from polonaise.spark.query import read
from polonaise.spark.queryhistory import QueryHistory
from polonaise.terms import PartitionId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Snapshot:
    """The transactions that options of the source `polonaise` select now, the same however often they are read. Reading
    raises `WrongClusterKey` if another log is at the address by then. Raises what planning a query raises: `BadOption`,
    `BeyondLog`, `UnknownPartition`, `NotInitialized` and others."""

    def __init__(self, spark: SparkSession, cluster: str, options: Mapping[str, str] | None = None) -> None:
        """`cluster` is the address of a log, or `fragments:URL` for a store of fragments without its log."""
        self.spark = spark
        self.cluster = cluster if cluster.startswith(FRAGMENTS) else full_address(cluster)
        given = dict(options or {})
        parsed = read_options({"cluster": self.cluster, **given})
        self.any_header = parsed.headers is None
        """Whether transactions with any header are read; False with the option `headers`."""
        history = QueryHistory(parsed)
        self.spans: Mapping[PartitionId, Span] = history.wanted()
        """First and last id of each partition; the last is below the first if the partition has nothing."""
        # What was selected by time or as "latest" is evaluated only once.
        others = {name: value for name, value in given.items() if name.lower() not in RANGE_OPTIONS}
        self._options = {**others, **range_options(self.spans), **history.key_option()}

    @property
    def transactions(self) -> int:
        """The number of ids in the spans: transactions with any header, and the library's own ones, too."""
        return sum(span.length for span in self.spans.values())

    def read(self, *, where: str | None = None, schema: str | None = None) -> DataFrame:
        """Return the transactions for which `where` holds, in the columns of `schema`, as `spark.read` does."""
        options: Mapping[str, object] = self._options
        return read(self.spark, self.cluster, where=where, schema=schema, **options)

    def query(self, sql: str, *, where: str | None = None, schema: str | None = None) -> pa.Table:
        """Run SQL in which `{log}` stands for what `read` returns. The result has to fit into this process's memory."""
        return self.spark.sql(sql, log=self.read(where=where, schema=schema)).toArrow()
