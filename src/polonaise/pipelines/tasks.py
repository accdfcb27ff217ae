"""Work divided among Spark's tasks: a function, called once for each of many items, somewhere.

Only DataFrames are used, so it works on any master, Spark Connect's too.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from polonaise.pipelines.progress import JobProgress
from polonaise.pipelines.sparkerrors import translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_S: Final = 0.25
"""How often Spark is asked how far it is."""


def run_tasks(
    spark: SparkSession,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    progress: JobProgress,
    what: str,
) -> list[Result]:
    """The results of `function(item)`, in the order of the items; each call is a task, and `progress` counts them.

    Spark calls it again where a task or its machine failed, also beside another call for the same item: it has to
    leave the same behind however often it runs. What the last attempt raised ends all: a `PolonaiseError` comes back
    as what it was, others as `SparkFailed`. Functions, items and results are pickled.
    """
    progress.begin(what, len(items))
    if not items:
        return []
    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(_Calls(function, items), "place long, result binary")
    group = f"polonaise-{uuid.uuid4()}"
    with ThreadPoolExecutor(1, "polonaise job") as thread:
        collecting = thread.submit(_collected, spark, group, frame)
        try:
            while not wait([collecting], _LOOK_S).done:
                progress.done(_tasks_done(spark, group))
        except BaseException:
            _cancel(spark, group)
            raise
    try:
        rows = collecting.result()
    except PySparkException as error:
        raise translated(error) from error
    progress.done(len(items))
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.place)]


class _Calls:
    """What a task does: the calls for the items at the places that it is given, one in fact."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._function = function
        self._items = items

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                result = pickle.dumps(self._function(self._items[place]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([place], pa.int64()), pa.array([result], pa.binary())], names=["place", "result"]
                )


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
    """Whether this process has Spark's driver, rather than a connection to it."""
    return hasattr(spark, "_jsparkSession")
