"""Paths of this machine as Spark takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polonaise.spark.paths import read_from, written_to


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "two words", "{a,b}", "50%20", "żółć", "[x]*?"])
def test_a_directory_is_written_and_read_whatever_it_is_called(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = tmp_path / name / "table"
    spark.range(5).write.parquet(written_to(table))
    assert list(table.glob("*.parquet")), "written there and nowhere else"
    assert spark.read.parquet(read_from(table)).count() == 5
