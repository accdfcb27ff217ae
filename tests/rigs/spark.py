"""Tools for the tests of reading: an embedded log, fragments of it, and readers that are called without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

import polonaise
import polonaise.blocking
from polonaise.admin.archive import archive
from polonaise.fragments.store import open_store
from polonaise.spark import clusters
from polonaise.spark.batchreader import SparkBatchReader
from polonaise.spark.decoders import Decoder
from polonaise.spark.options import read_options
from polonaise.spark.streamreader import StreamReader
from polonaise.spark.taskreader import projection_of

REQUEST = StructType([
    StructField("client_id", IntegerType()), StructField("generation", IntegerType()),
    StructField("sequence", LongType()),
])  # fmt: skip
COLUMNS = StructType([
    StructField("partition", IntegerType()), StructField("transaction_id", LongType()),
    StructField("timestamp", TimestampType()), StructField("header", IntegerType()),
    StructField("data", BinaryType()), StructField("request", REQUEST),
])  # fmt: skip
"""All columns of the source, as Spark makes them of its DDL."""

BATCH = 25
"""The most transactions of a batch."""

Row: TypeAlias = dict[str, Any]


class Filled:
    """An embedded log with two partitions, open in this process, and a store for its fragments."""

    def __init__(self, directory: Path, log: polonaise.blocking.Log) -> None:
        self.log = log
        self.address = f"embedded:{directory / 'log'}"
        self.store = str(directory / "fragments")

    def append(self, count: int, partition: int = 0, body: bytes = b"%d") -> None:
        """Append so many transactions, with headers 0, 1, 2 in turn and their ids in their bodies."""
        first = self.log.high_water_mark(partition) + 1
        for id in range(first, first + count):
            data = body % id if b"%d" in body else body
            self.log.append(data, partition, header=id % 3)
            if id % BATCH == BATCH - 1:
                self.log.flush(partition)
        self.log.flush(partition)

    def archive(self, partition: int = 0, *, fragment_bytes: int = 2_000) -> None:
        """Archive all that is committed, in fragments of about this size."""
        asyncio.run(_archive(self.address, self.store, partition, fragment_bytes))


async def _archive(address: str, store: str, partition: int, fragment_bytes: int) -> None:
    async with polonaise.connect(address) as log:
        made = archive(log, open_store(store), partition, fragment_bytes=fragment_bytes, rest=True)
        async for _ in made:
            pass


@contextmanager
def filled(directory: Path, *counts: int) -> Iterator[Filled]:
    """Yield an embedded log with so many transactions in each partition."""
    address = f"embedded:{directory / 'log'}?partitions={max(len(counts), 1)}"
    with polonaise.blocking.connect(address) as log:
        made = Filled(directory, log)
        for partition, count in enumerate(counts):
            made.append(count, partition)
        try:
            yield made
        finally:
            forget()


def forget() -> None:
    """Close the connections that the source made in this process, and would keep as long as the process lives."""
    for log in clusters._logs.values():
        log.close()
    clusters._logs.clear()
    clusters._stores.clear()
    clusters._listings.clear()


def batch_reader(cluster: str, schema: StructType = COLUMNS, **options: object) -> SparkBatchReader:
    return SparkBatchReader(read_options(texts(cluster, options)), schema)


def stream_reader(cluster: str, schema: StructType = COLUMNS, **options: object) -> StreamReader:
    return StreamReader(read_options(texts(cluster, options)), schema)


def texts(cluster: str, options: Mapping[str, object]) -> dict[str, str]:
    """Return options as Spark hands them over; write `__` for a dot in a name."""
    said = {name.replace("__", "."): str(value) for name, value in options.items()}
    return {"cluster": cluster, **{key: value.lower() if value in ("True", "False") else value
                                   for key, value in said.items()}}  # fmt: skip


def table(reader: SparkBatchReader | StreamReader, planned: list[InputPartition]) -> pa.Table:
    batches = [batch for each in planned for batch in reader.read(each)]
    return pa.Table.from_batches(batches, reader._projection.schema)


def rows(cluster: str, schema: StructType = COLUMNS, **options: object) -> list[Row]:
    """All rows of a batch query."""
    reader = batch_reader(cluster, schema, **options)
    return table(reader, list(reader.partitions())).to_pylist()


def ids(cluster: str, **options: object) -> list[tuple[int, int]]:
    """Partition and id of all rows of a batch query."""
    return [(row["partition"], row["transaction_id"]) for row in rows(cluster, **options)]


def columns(**types: pa.DataType) -> StructType:
    """Return nullable columns by name."""
    return from_arrow_schema(pa.schema(list(types.items())))


def decoded_rows(bodies: Sequence[bytes], schema: StructType, **options: Any) -> list[Row]:
    """Return what a decoder, JSON by default, makes of these bodies of partition 4, whose ids begin at 100."""
    said = read_options(texts("embedded:x", {"decoder": "json", "decoderSchema": "id long", **options}))
    projection = projection_of(said, schema)
    count = len(bodies)
    batch = pa.RecordBatch.from_pydict(
        {"data": pa.array(bodies, pa.binary()), "partition": [4] * count, "transaction_id": range(100, 100 + count)}
    )
    read, made = Decoder(said, projection).decoded(batch)
    assert {len(column) for column in made.values()} <= {read.num_rows}
    columns = [made[name] if name in made else read.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema.names).to_pylist()
