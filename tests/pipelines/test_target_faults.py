"""A table's directory that can't be read or written is told as that, with what to do, whatever keeps the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from polonaise.errors import DiskFailed
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.targetaddress import open_target

VIEW = TableView("rows", "SELECT transaction_id FROM {log}")


def written(table: str) -> None:
    no_spark: Any = None  # the directory is looked at before Spark is needed
    target = open_target(no_spark, table, VIEW, "cluster")
    target.prepare(StructType([]))
    target.merge(no_spark, target.marks(), {0: 1})


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_in_the_way_is_told(tmp_path: Path, kind: str, below: str) -> None:
    (tmp_path / "file").write_text("none")
    place = f"{tmp_path / 'file'}{below}"
    with pytest.raises(
        DiskFailed, match=f"the table in {place} can't be read or written: .*; correct its path"
    ) as told:
        written(f"{kind}:{place}")
    assert str(told.value).isprintable()


@pytest.mark.parametrize("damaged", ["", "{", "garbage"])
def test_a_damaged_delta_log_is_told(tmp_path: Path, damaged: str) -> None:
    import deltalake

    deltalake.write_deltalake(str(tmp_path / "lake"), pa.table({"transaction_id": [1]}))
    (commit,) = (tmp_path / "lake" / "_delta_log").glob("*.json")
    commit.write_text(damaged)
    with pytest.raises(DiskFailed, match=f"the Delta table in {tmp_path / 'lake'} .*; restore its _delta_log") as told:
        written(f"delta:{tmp_path / 'lake'}")
    assert str(told.value).isprintable()
