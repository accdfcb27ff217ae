"""Fragments are Parquet like any other: pyarrow, DuckDB and pandas read the transactions without a line of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest

from polonaise.fragments.columns import columns_in
from polonaise.fragments.protocol.coverage import Span
from rigs.fragments import PLAN, batches_of, fragment_of, name_of, plain_batches

COLUMNS = ["partition", "transaction_id", "timestamp", "header", "data"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a store with two fragments of a partition."""
    directory = tmp_path_factory.mktemp("store")
    first = [*plain_batches([50, 1, 70]), *batches_of(PLAN, 121, plain_batches([50, 1, 70])[-1].crc)]
    for batches in (first, plain_batches([30, 30], first=first[-1].last + 1)):
        footer, raw = fragment_of(batches)
        path = directory / name_of(footer).path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)
    return directory


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    """The transactions as our own reader gives them."""
    found: list[dict[str, Any]] = []
    for path in sorted(store.glob("7/*.parquet")):
        first, last = (int(part) for part in path.name.split("-")[:2])
        footer = pq.read_metadata(path).metadata
        assert int(footer[b"polonaise.first"]) == first
        name = name_of_path(path)
        for batch in columns_in(str(path), name, Span(first, last), COLUMNS):
            found += batch.to_pylist()
    assert [row["transaction_id"] for row in found] == list(range(len(found)))
    return found


def name_of_path(path: Path) -> Any:
    from polonaise.fragments.protocol.names import FragmentName

    name = FragmentName.parse(f"{path.parent.name}/{path.name}")
    assert name is not None
    return name


def test_pyarrow(store: Path, rows: list[dict[str, Any]]) -> None:
    tables = [pq.read_table(path, columns=COLUMNS) for path in sorted(store.glob("7/*.parquet"))]
    assert [row for table in tables for row in table.to_pylist()] == rows


def test_pandas(store: Path, rows: list[dict[str, Any]]) -> None:
    frames = [pandas.read_parquet(path, columns=COLUMNS) for path in sorted(store.glob("7/*.parquet"))]
    frame = pandas.concat(frames)
    assert frame.to_dict("records") == [{**row, "timestamp": pandas.Timestamp(row["timestamp"])} for row in rows]


def test_duckdb(store: Path, rows: list[dict[str, Any]]) -> None:
    columns = COLUMNS.copy()
    columns[2] = "epoch_us(timestamp)"  # as a value of Python's, DuckDB would want pytz
    found = duckdb.sql(f"SELECT {', '.join(columns)} FROM '{store}/7/*.parquet' ORDER BY transaction_id").fetchall()
    expected = [{**row, "timestamp": round(row["timestamp"].timestamp() * 1e6)} for row in rows]
    assert found == [tuple(row[name] for name in COLUMNS) for row in expected]
    counted = f"SELECT count(*) FROM '{store}/7/*.parquet' WHERE transaction_id BETWEEN 100 AND 139 AND header = 4"
    wanted = [row for row in rows if 100 <= row["transaction_id"] <= 139 and row["header"] == 4]
    assert duckdb.sql(counted).fetchall() == [(len(wanted),)]
