"""Divide work among Spark's tasks: call a function for each of many items, by DataFrames, which any master has."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from polonaise.pipelines.runs import JobProgress
from polonaise.pipelines.sparkerrors import SPARKS, translating

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_S: Final = 0.25


def run_tasks(
    spark: SparkSession, function: Callable[[Item], Result], items: Sequence[Item], progress: JobProgress, what: str
) -> list[Result]:
    """Return the results of `function(item)`, in the order of the items. Each call is a task of the step `what`.
    `progress` counts ended tasks, with Spark Connect only at the end. If a task or its machine fails, Spark repeats the
    call, perhaps while another one for the same item still runs: the function must leave the same behind however often
    it runs. If the last attempt fails, so does this: a `PolonaiseError` comes back as what it was, others as
    `spark_failed`. Function, items and results are pickled."""
    progress.begin(what, len(items))
    if not items:
        return []
    calls: Any = partial(_call, function, items)
    group = f"polonaise-{uuid.uuid4()}"
    with translating(), ThreadPoolExecutor(1, "polonaise job") as thread:
        frame = spark.range(0, len(items), 1, len(items)).mapInArrow(calls, "item long, result binary")
        collecting = thread.submit(_collected, spark, group, frame)
        try:
            while not wait([collecting], _LOOK_S).done:
                progress.done(_tasks_done(spark, group))
        except BaseException:
            with suppress(*SPARKS):  # a driver that is gone has nothing left to cancel, and is no reason to hide why
                _cancel(spark, group)
            raise
        rows = collecting.result()
    progress.done(len(items))
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.item)]


def _call(
    function: Callable[[Any], Any], items: Sequence[Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Call the function for the items whose indexes a task gets, one in practice. This is the code of a task."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            result = pickle.dumps(function(items[index]))
            yield pa.RecordBatch.from_pydict({"item": pa.array([index], pa.int64()), "result": [result]})


def _collected(spark: SparkSession, group: str, frame: Any) -> list[Any]:
    if _is_classic(spark):
        spark.sparkContext.setJobGroup(group, "polonaise", interruptOnCancel=True)
    else:
        spark.addTag(group)
    return list(frame.collect())


def _tasks_done(spark: SparkSession, group: str) -> int:
    if not _is_classic(spark):
        return 0
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _cancel(spark: SparkSession, group: str) -> None:
    if _is_classic(spark):
        spark.sparkContext.cancelJobGroup(group)
    else:
        spark.interruptTag(group)


def _is_classic(spark: SparkSession) -> bool:
    """Whether this process has Spark's driver, and not a connection to it (Spark Connect)."""
    return hasattr(spark, "_jsparkSession")
