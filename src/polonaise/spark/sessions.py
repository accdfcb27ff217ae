"""Make a Spark session without set-up: find a Java, choose settings for jobs, register the format `polonaise`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.errors import PySparkImportError, PySparkRuntimeError
from pyspark.sql import SparkSession

from polonaise.errors import BadOption, ExtraMissing, fault
from polonaise.host.environment import variables
from polonaise.host.tls import VARIABLES
from polonaise.redaction import redacted_address
from polonaise.spark.java import find_java
from polonaise.spark.source import PolonaiseSource

DEFAULT_MASTER: Final = "local[*]"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java options for small amounts of data, for use as `session(conf={JAVA_OPTIONS: QUICK_START})`: a session starts in
three quarters of the time; large jobs take twice as long."""

_RUNTIME: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.pyspark.enabled": "true"}
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_STACK: Final = "-Xss8m"
"""A large stack: Spark matches Python's tracebacks with a regular expression, which overflows one of the usual size."""
_MASTER: Final = re.compile(r"yarn|(?:spark|k8s|local).*", re.DOTALL)
"""Masters that `spark-submit` accepts; for anything else it ends with a Java traceback."""
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")


def session(
    master: str | None = None, *, name: str = "polonaise", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session in which the format `polonaise` is registered: the active one, or a new one.

    `master` is any of Spark's, `local[*]` by default, or `sc://HOST:PORT` for a Spark Connect server (also taken from
    `SPARK_REMOTE`). `name` is what Spark calls an application that is launched here. In a script that `spark-submit`
    runs, its settings apply, except for `master` and `conf`. A session that already exists is left as it is, but for
    `conf`.

    `conf` overrides our settings of a new session: UTC and Arrow; unless it is one of Spark Connect, no web interface
    and only errors on the console (without `SPARK_CONF_DIR`); in local sessions, one shuffle partition per core and no
    port that other machines can reach. Java options are added to ours. TLS files that the environment names are also
    named to the executors, whose machines need them at the same paths.

    `JAVA_HOME`, `PYSPARK_PYTHON` and `PYSPARK_DRIVER_PYTHON` (this interpreter) are set only while Spark is launched,
    where the user has not set them. Workers of a cluster need the interpreter at the same path, or `PYSPARK_PYTHON` set
    to its path there.

    Raises `JavaMissing`; `ExtraMissing` for `sc://` without the client's libraries; `BadOption` for a `conf` that an
    existing session can't change; `spark_failed` for a master of a kind that Spark does not know; and what Spark
    raises. Example::

        spark = session("local[2]", conf={"spark.sql.session.timeZone": "Europe/Vienna"})
    """
    settings = dict(conf or {})
    spark = active_session()
    if spark is not None:
        _apply(spark, settings)
    elif (address := master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://"):
        spark = _connected(address, settings)
    else:
        spark = _launched(master, name, settings)
    spark.dataSource.register(PolonaiseSource)
    return spark


def active_session() -> SparkSession | None:
    """Return this thread's active session, or else the process's default one; None if there is neither."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _apply(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for key in settings:  # all of them first: a session whose conf is refused is left as it is
        if not spark.conf.isModifiable(key):
            raise BadOption(
                f"conf {key!r} can't be changed in an existing session: stop that session, or leave the setting out"
            )
    for key, value in settings.items():
        spark.conf.set(key, value)


def _connected(address: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(address)
    try:
        return builder.config(map={**_RUNTIME, **settings}).getOrCreate()
    except (PySparkImportError, ModuleNotFoundError) as error:
        raise ExtraMissing(f"Spark Connect needs more libraries: pip install 'pyspark[connect]' ({error})") from error


def _launched(master: str | None, name: str, given: Mapping[str, str]) -> SparkSession:
    settings: dict[str, str]
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has launched Spark and chosen its master
        settings = {} if master is None else {"spark.master": master}
        environment = {}
    else:
        address = master or given.get("spark.master", DEFAULT_MASTER)
        if not _MASTER.fullmatch(address):
            shown = redacted_address(address)
            raise fault(
                "spark_failed",
                f"Spark knows no master {shown!r}: write local[*], spark://HOST:PORT, yarn, k8s://…, or sc://HOST:PORT",
            )
        settings = {"spark.app.name": name, **_settings(address, given)}
        environment = {"JAVA_HOME": find_java().home} if SparkContext._gateway is None else {}
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if not os.environ.get(variable):
            environment[variable] = sys.executable
    with variables(environment):
        return SparkSession.builder.config(map={**settings, **given, **_java_options(settings, given)}).getOrCreate()


def _settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    settings = {"spark.master": master, **_RUNTIME, **_QUIET, JAVA_OPTIONS: _STACK}
    # Workers of a cluster have an environment of their own.
    settings |= {f"spark.executorEnv.{name}": os.environ[name] for name in VARIABLES.values() if name in os.environ}
    if local := _LOCAL.fullmatch(master):
        cores = local[1] or "1"
        settings |= _LOOPBACK
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1) if cores == "*" else cores
    if "SPARK_CONF_DIR" not in os.environ:  # its log4j2 file would be the user's own
        settings[JAVA_OPTIONS] += f' "-Dlog4j2.configurationFile={_LOGGING}"'
    return settings


def _java_options(settings: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    if JAVA_OPTIONS in settings and JAVA_OPTIONS in given:
        return {JAVA_OPTIONS: f"{settings[JAVA_OPTIONS]} {given[JAVA_OPTIONS]}"}
    return {}
