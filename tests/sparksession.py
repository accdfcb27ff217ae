"""One Spark session for all tests of a process: making it takes longer than any of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lacking import lacking
from polonaise.errors import JavaMissing
from polonaise.spark.java import find_java
from polonaise.spark.sessions import JAVA_OPTIONS, QUICK_START, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    JAVA_OPTIONS: QUICK_START,
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, four attempts at a task. Tests that set what others could notice take `spark.newSession()`."""
    try:
        find_java()
    except JavaMissing as error:
        lacking(str(error))
    places = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Spark leaves its launcher's pipes open
        made = session("local[2,4]", name="tests", conf={**CONF, **places})
    yield made
    made.stop()
