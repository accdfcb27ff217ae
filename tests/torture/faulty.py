"""The product's source and sink, registered as the format `torture`: the real code, with places where it goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage

from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.protocol.group import Group
from polonaise.spark import publishing, taskreader
from polonaise.spark.options import read_options, write_options
from polonaise.spark.protocol.plans import Plan
from polonaise.spark.sink import Sink, StreamSink
from polonaise.spark.source import PolonaiseSource
from polonaise.spark.streamreader import StreamReader
from polonaise.terms import PartitionId

from .faults import Fault, Faults

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "torture"
_BATCH = "streaming.sql.batchId"
READ_ROWS = 500
"""Rows of one Arrow batch: few, so that a fault can come between two batches."""


def task_faults(fault: Fault | None) -> Faults:
    """Return the steps, and the fault, of the Spark task that runs in this process."""
    context = TaskContext.get()
    assert context is not None
    return Faults(fault, int(context.getLocalProperty(_BATCH) or -1), context.partitionId())


def halves(batches: Iterator[pa.RecordBatch], faults: Faults) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, with each batch cut in two and a step between the halves."""
    for batch in batches:
        middle = batch.num_rows // 2
        yield batch.slice(0, middle)
        faults.reach("write/half")
        yield batch.slice(middle)


class TortureSource(PolonaiseSource):
    """`polonaise`, with the option `fault` (a packed `Fault`) and, for writing, `sink`: real, or one of `naive`."""

    def __init__(self, options: dict[str, str]) -> None:
        ours = {"fault", "sink"}
        super().__init__({key: value for key, value in options.items() if key.lower() not in ours})
        packed = options.get("fault")
        self._fault = Fault(**json.loads(packed)) if packed else None
        self._sink = options.get("sink", "real")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return FaultyReader(StreamReader(read_options(self.options), schema), self._fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from .naive import NAIVE

        sink = Sink.opened(write_options(self.options, is_stream=True), schema, overwrite=overwrite)
        return {"real": FaultySink, **NAIVE}[self._sink](sink, self._fault)


class FaultyReader(StreamReader):
    """The real stream reader, with steps."""

    def __init__(self, real: StreamReader, fault: Fault | None) -> None:
        self.__dict__.update(real.__dict__)
        self._fault = fault

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        faults = task_faults(self._fault)
        with mock.patch.object(taskreader, "_ROWS", READ_ROWS):
            faults.reach("read/begin")
            for batch in super().read(partition):
                yield batch
                faults.reach("read/batch")


class FaultySink(StreamSink):
    """The real sink, with steps."""

    def __init__(self, sink: Sink, fault: Fault | None) -> None:
        super().__init__(sink)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        faults = task_faults(self._fault)
        message = super().write(halves(iterator, faults))
        faults.reach("write/done")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        faults = Faults(self._fault, batchId)
        faults.reach("commit/begin")
        with mock.patch.object(publishing, "RealPublicationPort", partial(FaultyPort, faults)):
            super().commit(messages, batchId)
        faults.reach("commit/done")


class FaultyPort(publishing.RealPublicationPort):
    """The real port, with a step before and after each request to the log or the staging store."""

    def __init__(self, faults: Faults, *real: Any) -> None:
        super().__init__(*real)
        self._faults = faults

    def _reach(self, step: str) -> None:
        self._faults.reach(step)
        self._faults.reach("port")

    async def register(self, key: bytes, partition: PartitionId) -> bytes | None:
        self._reach("register/before")
        value = await super().register(key, partition)
        self._reach("register/after")
        return value

    async def append(
        self, partition: PartitionId, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        self._reach("append/before")
        appending = asyncio.ensure_future(super().append(partition, group, expectations, changes))
        for _ in range(5):  # turns of the loop: the group goes out
            await asyncio.sleep(0)
        self._reach("append/sent")
        await appending
        self._reach("append/after")

    async def store_plan(self, plan: Plan) -> str:
        self._reach("plan/before")
        name = await super().store_plan(plan)
        self._reach("plan/after")
        return name

    async def load_plan(self, name: str) -> Plan:
        self._reach("load/before")
        return await super().load_plan(name)
