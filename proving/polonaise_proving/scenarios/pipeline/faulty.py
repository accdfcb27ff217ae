"""The product's source and sink, registered as the format `torture`: the real code, with places where it goes wrong.

The sink has one before and after each request to the log or the store. Beside it are sinks as they are often written,
each wrong in its way: the comparison must find them out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.protocol.group import Group
from polonaise.spark import publishing, taskreader
from polonaise.spark.options import read_options, write_options
from polonaise.spark.protocol.plans import Plan
from polonaise.spark.sink import Sink, StreamSink, Written
from polonaise.spark.source import PolonaiseSource
from polonaise.spark.streamreader import StreamReader
from polonaise.terms import PartitionId
from polonaise_proving.scenarios.pipeline.faults import SparkFault, SparkFaults

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "torture"
READ_ROWS = 500
"""Rows of one Arrow batch: few, so that a fault can come between two batches."""
_BATCH = "streaming.sql.batchId"


class TortureSource(PolonaiseSource):
    """`polonaise`, with the option `fault` (a packed `Fault`) and, for writing, `sink`: real, or one of `NAIVE`."""

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


def task_faults(fault: SparkFault | None) -> SparkFaults:
    """Return the steps, and the fault, of the Spark task that runs in this process."""
    context = TaskContext.get()
    assert context is not None
    return SparkFaults(fault, int(context.getLocalProperty(_BATCH) or -1), context.partitionId())


def halves(batches: Iterator[pa.RecordBatch], faults: SparkFaults) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, with each batch cut in two and a step between the halves."""
    for batch in batches:
        middle = batch.num_rows // 2
        yield batch.slice(0, middle)
        faults.reach("write/half")
        yield batch.slice(middle)


class FaultySink(StreamSink):
    """The real sink, with steps."""

    def __init__(self, sink: Sink, fault: SparkFault | None) -> None:
        super().__init__(sink)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        faults = task_faults(self._fault)
        message = super().write(halves(iterator, faults))
        faults.reach("write/done")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        faults = SparkFaults(self._fault, batchId)
        faults.reach("commit/begin")
        with mock.patch.object(publishing, "RealPublicationPort", partial(FaultyPort, faults)):
            super().commit(messages, batchId)
        faults.reach("commit/done")


class FaultyPort(publishing.RealPublicationPort):
    """The real port, with a step before and after each request to the log or the staging store."""

    def __init__(self, faults: SparkFaults, *real: Any) -> None:
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


class AtOnce(FaultySink):
    """A sink whose `write` appends what it gets: a task that is tried again appends its rows twice."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        faults = task_faults(self._fault)
        staged = self._sink.stage(iter(()))
        for batch in halves(iterator, faults):
            self._sink.publish([self._sink.stage(iter([batch]))], None, 0, in_order=True)
        faults.reach("write/done")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        SparkFaults(self._fault, batchId).reach("commit/done")


class ByTask(AtOnce):
    """A sink whose `write` appends once under (application, batch, Spark partition): right, until a restart
    divides the batch in another way."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        faults = task_faults(self._fault)
        staged = self._sink.stage(halves(iterator, faults))
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert batch_id is not None
        batch = int(batch_id)
        self._sink.publish([staged], f"{staged.app}/{context.partitionId()}", batch, in_order=True)
        faults.reach("write/done")
        return Written(self._sink.stage(iter(())).staged, staged.app)


NAIVE = {"at-once": AtOnce, "by-task": ByTask}
