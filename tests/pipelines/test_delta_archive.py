"""Fragments as a Delta table: each id once, each run a version, whoever else writes at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import polonaise
from polonaise.fragments.protocol.names import FragmentName
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.deltaarchive import register, to_register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name(first: int, last: int, partition: int = 0) -> FragmentName:
    return FragmentName(partition, first, last, f"{first:032x}{last:032x}")


def test_no_id_is_added_twice() -> None:
    held = [name(0, 9), name(10, 19), name(15, 24), name(20, 29), name(0, 9, partition=1)]
    new, overlapping = to_register(held, [])
    assert (new, overlapping) == ([held[0], held[1], held[3], held[4]], (held[2],))
    assert to_register(held, [held[2]]) == ([held[0], held[4]], (held[1], held[3]))
    assert to_register(held[:2], held[:2]) == ([], ())


def test_the_larger_of_two_that_begin_together_is_taken() -> None:
    assert to_register([name(0, 9), name(0, 99), name(100, 109)], []) == (
        [name(0, 99), name(100, 109)],
        (name(0, 9),),
    )


def test_of_several_that_register_at_once_each_fragment_is_added_once(tmp_path: Path) -> None:
    url = str(tmp_path)
    register(url, {name(0, 9): 1})
    held = {name(10 * k, 10 * k + 9): 1 for k in range(8)}
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda count: register(url, dict(list(held.items())[:count])), (3, 5, 8, 8)))
    paths = DeltaTable(url).get_add_actions().column("path").to_pylist()
    assert sorted(paths) == sorted(each.path for each in held)
    assert sum(each.added for each in found) == 7


@pytest.mark.slow
def test_an_archive_is_a_delta_table_that_remembers_each_run(spark: SparkSession, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}", str(tmp_path / "store")
    how = HowToArchive(rest=True, delta=True)
    for run in range(2):
        with polonaise.blocking.connect(address) as log:
            receipts = [log.append(b"%d" % (100 * run + n), 0) for n in range(100)]
            receipts[-1].result(timeout=30)
        report = archive(spark, address, store, how)
        assert report.delta is not None
        assert (report.delta.version, report.delta.added) == (run + 1, 1)
    assert archive(spark, address, store, how).delta == (2, 0, ())
    for version, count in ((1, 100), (2, 200)):
        read = spark.read.parquet(*DeltaTable(store, version=version).file_uris())
        assert read.count() == count
    rows = DeltaTable(store).to_pyarrow_table(columns=["transaction_id", "data"]).to_pylist()
    assert sorted((row["transaction_id"], row["data"]) for row in rows) == [(n, b"%d" % n) for n in range(200)]
