"""Sinks as they are often written, each wrong in its way: the comparison must find them out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from polonaise.spark.sink import Written
from polonaise_proving.scenarios.pipeline.faults import SparkFaults
from polonaise_proving.scenarios.pipeline.faultysink import FaultySink, halves, task_faults

if TYPE_CHECKING:
    import pyarrow as pa


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
