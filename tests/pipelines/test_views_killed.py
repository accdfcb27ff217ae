"""A driver that is killed while it brings a table up to date: the next one goes on, and each transaction counts once.

Kills between any two statements of a commit are in `tests/views/test_marked_tables.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import polonaise
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.views import update
from rigs.tableviews import COUNT, balances, bank_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

STEP = 5
FOLLOWS = f"""
import sys
from polonaise.pipelines.views import follow
from polonaise.spark.sessions import JAVA_OPTIONS, QUICK_START, session
from rigs.tableviews import balances

spark = session("local[2]", conf={{JAVA_OPTIONS: QUICK_START}})
tables = [follow(spark, sys.argv[1], balances, table, transactions_max={STEP}) for table in sys.argv[2:]]
for commits in zip(*tables):
    print("committed", flush=True)
"""
COMMITTED_S = 240.0


async def killed_after(commits: int, address: str, tables: Sequence[str]) -> None:
    """A driver that brings these up to date in turn, killed with all its processes some time after so many commits."""
    source = [str(Path(polonaise.__file__).parents[1]), str(Path(__file__).parents[1])]
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FOLLOWS, address, *tables,
        stdout=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(source)},
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        async with asyncio.timeout(COMMITTED_S):
            for _ in range(commits):
                assert await driver.stdout.readline() == b"committed\n"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        await driver.wait()


async def test_a_killed_driver_leaves_each_transaction_once(
    spark: SparkSession, tmp_path: Path, postgresql: Any
) -> None:
    tables = [postgresql.database(), f"parquet:{tmp_path / 'table'}"]
    with bank_log(tmp_path / "log"):
        address = f"embedded:{tmp_path / 'log'}"
        await killed_after(2, address, tables)
        for table in tables:
            report = await asyncio.to_thread(update, spark, address, balances, table)
            assert 0 < report.transactions <= 2 * COUNT - 2 * STEP, "it went on from where the other one was"
            found = (await asyncio.to_thread(audit_table, spark, address, balances, table)).found
            assert found.equal, found.differences
            assert found.sums["changes"] == (2 * COUNT, 2 * COUNT)
