"""The Spark session of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from polonaise.pipelines.sparkerrors import SPARKS, translated
from polonaise.spark.sessions import session


@contextmanager
def job_session(master: str | None, name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give a session as `polonaise.spark.sessions.session` does, and stop it at the end unless it existed before.

    Raises the same. What Spark raises while it starts, and while the job runs, is raised as an error of ours.
    """
    before = _is_there()
    try:
        spark = session(master, name=name, conf=conf)
    except SPARKS as error:
        raise translated(error) from error
    try:
        yield spark
    except SPARKS as error:
        raise translated(error) from error
    finally:
        if not before:
            spark.stop()


def _is_there() -> bool:
    try:
        SparkSession.active()
    except PySparkRuntimeError:
        return False
    return True
