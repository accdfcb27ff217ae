"""What a job on Spark runs with: its Spark session, and its log, open in the driver and reached by its tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.client.settings import ClientSettings
from polonaise.errors import BadOption, NotInitialized
from polonaise.node.addresses import LOG_FORMS, LOG_SCHEMES, absolute_address
from polonaise.node.embedded import SCHEME, is_there
from polonaise.pipelines.sparkerrors import translating
from polonaise.redaction import redacted_address
from polonaise.spark.sessions import active_session, session


@contextmanager
def job_session(master: str | None, name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give a session as `polonaise.spark.sessions.session` does, and stop it at the end unless it existed before. What
    Spark raises, also while the job runs, becomes a `PolonaiseError`."""
    existed = active_session() is not None
    with translating():
        spark = session(master, name=name, conf=conf)
        try:
            yield spark
        except BaseException:
            if not existed:
                _quieten(spark)
            raise
        finally:
            if not existed:
                spark.stop()


def _quieten(spark: SparkSession) -> None:
    """Have a session of ours say nothing more on the console: what its job failed of is told without it.

    Tasks that are still at work while Spark stops may miss what it has taken away, of which it tells with a trace.
    """
    if "SPARK_CONF_DIR" in os.environ:  # the user's own logs: see `polonaise.spark.sessions.session`
        return
    with suppress(Exception):  # Spark Connect can't, nor can a JVM that is gone: the job's own failure is what counts
        spark.sparkContext.setLogLevel("OFF")


def full_address(address: str) -> str:
    """Return the address with absolute paths: tasks may run in other directories. Raises `BadOption` for an invalid
    address, `NotInitialized` if there is no embedded log: a job does not make one."""
    scheme, colon, rest = address.partition(":")
    shown = redacted_address(address)
    if not colon or not rest or scheme not in LOG_SCHEMES:
        raise BadOption(f"{shown!r} is no address of a log: write {LOG_FORMS}")
    if address.startswith(SCHEME) and not is_there(address):
        raise NotInitialized(f"no embedded log at {shown}: correct the path, or append to it, which makes one")
    return absolute_address(address)


def tasks_address(address: str) -> str:
    """Return the address for tasks: they leave it to the driver to host an embedded log."""
    if not address.startswith(SCHEME):
        return address
    path, _, query = address.partition("?")
    options = [option for option in query.split("&") if option and not option.startswith("host=")]
    return f"{path}?{'&'.join([*options, 'host=no'])}"


@contextmanager
def open_log(address: str) -> Iterator[Log]:
    """Open the log in the driver, until the `with` statement ends; an embedded one that nobody hosts is hosted here."""
    with polonaise.blocking.connect(address, settings=ClientSettings(name="pipeline")) as log:
        yield log
