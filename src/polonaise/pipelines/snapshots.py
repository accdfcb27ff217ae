"""A part of a log that several queries of a job read: all of them see the same transactions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines.logs import full_address
from polonaise.spark.options import FRAGMENTS, read_options
from polonaise.spark.query import read
from polonaise.spark.queryhistory import QueryHistory
from polonaise.terms import PartitionId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PLACES: Final = frozenset(
    {
        "partitions", "startingtransactions", "endingtransactions", "startingoffsets", "endingoffsets",
        "startingtimestamp", "endingtimestamp",
    }
)  # fmt: skip
"""Options that select transactions, and are evaluated only once."""


class Snapshot:
    """The transactions that options of the source `polonaise` select now, the same however often they are read.

    Raises what planning a query raises: `BadOption`, `BeyondLog`, `UnknownPartition`, `NotInitialized` and others.
    """

    def __init__(self, spark: SparkSession, cluster: str, options: Mapping[str, str] | None = None) -> None:
        """`cluster` is the address of a log, or `fragments:URL` for a store without one."""
        self.spark = spark
        self.cluster = cluster if cluster.startswith(FRAGMENTS) else full_address(cluster)
        given = dict(options or {})
        self.spans: Mapping[PartitionId, Span] = QueryHistory(read_options({"cluster": self.cluster, **given})).wanted()
        """First and last id of each partition; the last is below the first if the partition has nothing."""
        self._options = {name: value for name, value in given.items() if name.lower() not in _PLACES}
        self._options["partitions"] = ",".join(map(str, self.spans))
        self._options["startingTransactions"] = _ids({number: span.first for number, span in self.spans.items()})
        self._options["endingTransactions"] = _ids({number: span.last + 1 for number, span in self.spans.items()})

    @property
    def transactions(self) -> int:
        """The number of transactions, with any header."""
        return sum(span.last - span.first + 1 for span in self.spans.values())

    def read(self, *, where: str | None = None, schema: str | None = None) -> DataFrame:
        """Return the transactions as `polonaise.spark.read` does. `schema` names the wanted columns, in DDL."""
        options: Mapping[str, object] = self._options
        return read(self.spark, self.cluster, where=where, schema=schema, **options)

    def query(self, sql: str, *, where: str | None = None, schema: str | None = None) -> pa.Table:
        """Run SQL in which `{log}` stands for the log. The result has to fit into this process's memory."""
        return self.spark.sql(sql, log=self.read(where=where, schema=schema)).toArrow()


def _ids(ids: Mapping[PartitionId, int]) -> str:
    return json.dumps({str(partition): id for partition, id in ids.items()})
