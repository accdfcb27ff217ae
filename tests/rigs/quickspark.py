"""Java options for every Spark that a test starts, itself or through a program: little data, so it may compile less."""

from __future__ import annotations

import os

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark's own: further options for the JVM of a driver, whoever starts it and whatever its settings are."""
OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As `QUICK_START` of `polonaise.spark.sessions`, which is not imported where no Spark is needed."""


def without_spark(*prefixes: str) -> dict[str, str]:
    """Return the environment without Spark's variables, and what begins with `prefixes`, but with these options."""
    left_out = ("SPARK", "PYSPARK", *prefixes)
    return {**{key: value for key, value in os.environ.items() if not key.startswith(left_out)}, VARIABLE: OPTIONS}
