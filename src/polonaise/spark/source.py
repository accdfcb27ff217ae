"""The format `polonaise`: makes a reader or a writer of a query's options.

Imports are within the methods, so that each of Spark's Python processes loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from polonaise.errors import PolonaiseError
from polonaise.spark.options import read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PolonaiseSource(DataSource):
    """The data source of `spark.read.format("polonaise")`, `readStream`, `write` and `writeStream`.

    Options: `docs/spark.md` to read, `docs/spark-sink.md` to write. Example::

        spark.read.format("polonaise").option("cluster", "embedded:./bank").load()
    """

    @classmethod
    def name(cls) -> str:
        return "polonaise"

    def schema(self) -> str:
        from polonaise.spark.schemas import ddl_of

        return ddl_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from polonaise.spark.batchreader import SparkBatchReader

        return SparkBatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from polonaise.spark.streamreader import RefusedStream, StreamReader

        try:
            return StreamReader(read_options(self.options), schema)
        except PolonaiseError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from polonaise.spark.sink import BatchSink, Sink

        return BatchSink(Sink.opened(write_options(self.options, is_stream=False), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from polonaise.spark.sink import Sink, StreamSink

        return StreamSink(Sink.opened(write_options(self.options, is_stream=True), schema, overwrite=overwrite))
