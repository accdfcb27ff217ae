"""examples/declarative, run by Spark's own command as docs/spark.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polonaise.spark.java import find_java
from rigs.programs import run_program
from rigs.spark import Filled, filled
from rigs.sparkprocesses import SOURCE, STARTED_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEEPS = "/tmp/polonaise-declarative"
"""Where the example has its log and what it remembers."""


def command() -> list[str]:
    """The one that the document gives, of this Python's."""
    told = re.search(r"^spark-pipelines run .*$", (ROOT / "docs" / "spark.md").read_text(), re.MULTILINE)
    assert told is not None
    program, *rest = told[0].split()
    return [str(Path(sys.executable).with_name(program)), *rest]


def run_pipeline(directory: Path) -> None:
    """In this directory, and with the example's log and memory there."""
    environment = {**os.environ, "JAVA_HOME": find_java().home, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": SOURCE,
                   "SPARK_LOCAL_IP": "127.0.0.1"}  # fmt: skip
    example = directory / "examples" / "declarative"
    if not example.exists():
        shutil.copytree(ROOT / "examples" / "declarative", example)
        settings = (example / "spark-pipeline.yml").read_text()
        assert settings.count(KEEPS) == 2
        (example / "spark-pipeline.yml").write_text(settings.replace(KEEPS, str(directory)))
    done = run_program(*command(), cwd=directory, env=environment, within_s=STARTED_S, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    assert "Run is COMPLETED" in said, said[-5000:]
    # Spark 4.3 stumbles afterwards over what its own Python workers count.
    assert done.returncode == 0 or "UNKNOWN_RESPONSE" in said, said[-5000:]


def written(directory: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(sorted((directory / "spark-warehouse" / table).glob("*.parquet"))).to_pylist()


def balances(directory: Path) -> dict[int, Decimal]:
    return {row["account"]: row["balance"] for row in written(directory, "balances")}


def pay(log: Filled, count: int) -> None:
    log.append(count, body=b'{"account": %d, "amount": 0.50}')


def test_the_example_reads_each_payment_once_run_by_run(tmp_path: Path) -> None:
    with filled(tmp_path, 0) as log:
        pay(log, 40)
        run_pipeline(tmp_path)
        assert balances(tmp_path) == {account: Decimal("0.50") for account in range(40)}
        log.append(10, body=b'{"account": 3, "amount": 1}')
        run_pipeline(tmp_path)
        assert sorted(row["transaction_id"] for row in written(tmp_path, "payments")) == list(range(50))
        assert balances(tmp_path) == {account: Decimal("0.50") + 10 * (account == 3) for account in range(40)}
