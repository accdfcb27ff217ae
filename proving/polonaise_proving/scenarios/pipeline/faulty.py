"""The product's source and sink, registered as the format `torture`: the real code, with places where it goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest import mock

from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from polonaise.spark import taskreader
from polonaise.spark.options import read_options, write_options
from polonaise.spark.sink import Sink
from polonaise.spark.source import PolonaiseSource
from polonaise.spark.streamreader import StreamReader
from polonaise_proving.scenarios.pipeline.faults import SparkFault
from polonaise_proving.scenarios.pipeline.faultysink import FaultySink, task_faults
from polonaise_proving.scenarios.pipeline.naive import NAIVE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "torture"
READ_ROWS = 500
"""Rows of one Arrow batch: few, so that a fault can come between two batches."""


class TortureSource(PolonaiseSource):
    """`polonaise`, with the option `fault` (a packed `Fault`) and, for writing, `sink`: real, or one of `naive`."""

    def __init__(self, options: dict[str, str]) -> None:
        ours = {"fault", "sink"}
        super().__init__({key: value for key, value in options.items() if key.lower() not in ours})
        packed = options.get("fault")
        self._fault = SparkFault(**json.loads(packed)) if packed else None
        self._sink = options.get("sink", "real")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return FaultyReader(StreamReader(read_options(self.options), schema), self._fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        sink = Sink.opened(write_options(self.options, is_stream=True), schema, overwrite=overwrite)
        return {"real": FaultySink, **NAIVE}[self._sink](sink, self._fault)


class FaultyReader(StreamReader):
    """The real stream reader, with steps."""

    def __init__(self, real: StreamReader, fault: SparkFault | None) -> None:
        self.__dict__.update(real.__dict__)
        self._fault = fault

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        faults = task_faults(self._fault)
        with mock.patch.object(taskreader, "_ROWS", READ_ROWS):
            faults.reach("read/begin")
            for batch in super().read(partition):
                yield batch
                faults.reach("read/batch")
