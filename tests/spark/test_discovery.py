"""Spark finds the format by itself, and a Python that lacks our libraries takes no other format away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polonaise.spark.java import find_java
from rigs.programs import output_of
from rigs.sparkprocesses import SOURCE, run

pytestmark = pytest.mark.slow

PLAIN = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1").getOrCreate()
"""
FRESH = (
    PLAIN
    + """
try:
    spark.read.format("polonaise").load()
except Exception as error:
    assert "name the log, .option('cluster'" in str(error), error
    print("found")
"""
)
WITHOUT_OURS = (
    PLAIN
    + """
try:
    spark.read.format("polonaise").schema("data binary").load()
except Exception as error:
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: polonaise" in str(error), error
    print("not found")
print(spark.read.format("other").load().count(), spark.read.json("rows.json").count())
"""
)
OTHER = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)
        yield (2,)

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"

    def schema(self):
        return "id long"

    def reader(self, schema):
        return Reader()
"""


def test_a_fresh_session_finds_the_format(tmp_path: Path) -> None:
    said = output_of(run(FRESH, tmp_path, JAVA_HOME=find_java().home, PYSPARK_PYTHON=sys.executable))
    assert said.split() == ["found"]


def test_other_formats_work_where_ours_can_not_be_imported(tmp_path: Path) -> None:
    broken = tmp_path / "modules" / "polonaise"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no extras here')\n")
    (tmp_path / "modules" / "pyspark_other.py").write_text(OTHER)
    (tmp_path / "rows.json").write_text('{"id": 1}\n')
    # Before ours on the path: `pyspark_polonaise` is found, and what it needs is not.
    path = f"{tmp_path / 'modules'}:{SOURCE}"
    done = run(WITHOUT_OURS, tmp_path, JAVA_HOME=find_java().home, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)
    assert output_of(done).splitlines() == ["not found", "2 1"]
