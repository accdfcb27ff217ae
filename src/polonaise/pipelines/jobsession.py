"""The Spark session of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from polonaise.pipelines.sparkerrors import translating
from polonaise.spark.sessions import active_session, session


@contextmanager
def job_session(master: str | None, name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give a session as `polonaise.spark.sessions.session` does, and stop it at the end unless it existed before.

    What Spark raises, also while the job runs, becomes a `PolonaiseError`.
    """
    existed = active_session() is not None
    with translating():
        spark = session(master, name=name, conf=conf)
        try:
            yield spark
        finally:
            if not existed:
                spark.stop()
