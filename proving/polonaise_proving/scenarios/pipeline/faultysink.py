"""The product's sink with places where it goes wrong: before and after each request to the log or the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.protocol.group import Group
from polonaise.spark import publishing
from polonaise.spark.protocol.plans import Plan
from polonaise.spark.sink import Sink, StreamSink
from polonaise.terms import PartitionId
from polonaise_proving.scenarios.pipeline.faults import SparkFault, SparkFaults

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = "streaming.sql.batchId"


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
