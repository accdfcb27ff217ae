"""One Spark session for all tests of a process: making it takes longer than any of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from polonaise.errors import JavaMissing
from polonaise.spark.java import find_java
from polonaise.spark.sessions import JAVA_OPTIONS, QUICK_START, session
from rigs.lacking import lacking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    JAVA_OPTIONS: QUICK_START,
}


def begun(places: pytest.TempPathFactory) -> SparkSession:
    """Return the session; skip the test if the machine has no Java."""
    try:
        find_java()
    except JavaMissing as error:
        lacking(str(error))
    directories = {
        "spark.local.dir": str(places.mktemp("spark")),
        "spark.sql.warehouse.dir": str(places.mktemp("warehouse")),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Spark leaves its launcher's pipes open
        return session("local[2,4]", name="tests", conf={**CONF, **directories})
