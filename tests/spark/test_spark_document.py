"""docs/spark.md and its example, tried literally."""

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
from pyspark.sql import SparkSession

from polonaise.spark import options
from polonaise.spark.java import find_java
from polonaise.spark.paths import read_from, written_to
from polonaise.spark.schemas import COLUMNS
from rigs.documents import said_by
from rigs.programs import run_program
from rigs.spark import Filled, filled
from rigs.sparkprocesses import SOURCE, STARTED_S

DOCUMENT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def section(title: str) -> str:
    return DOCUMENT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_table_of_options_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| (`[\w.]+`(?:, `[\w.]+`)*) \|", section("Options"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert listed == list(options._READ)
    assert re.findall(r"also as `(\w+)`", section("Options")) == [
        "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger",
    ]  # fmt: skip
    assert {name.lower() for name in re.findall(r"also as `(\w+)`", section("Options"))} == set(options.KAFKAS)


def test_defaults_are_those_of_the_code() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section("Options"), re.MULTILINE))
    assert options.read_options({"cluster": "embedded:/x", **said}) == options.read_options({"cluster": "embedded:/x"})
    assert len(said) >= 8


def test_the_table_of_columns_is_that_of_the_code() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section("Columns"), re.MULTILINE)
    assert listed == [(name, column.ddl.partition("<")[0]) for name, column in COLUMNS.items()]


@pytest.mark.exhaustive("polonaise.spark", "docs/spark.md", of="programs on Spark that pages show")
@pytest.mark.slow
def test_the_ten_minutes_do_what_they_say(tmp_path: Path) -> None:
    _, looked, first, second, archived = said_by(section("Ten minutes"), tmp_path, within_s=600)
    assert '{"account": 1, "amount": -30}' in looked
    assert "paid from the third on: 70.50" in looked
    assert "account 1 has 70.50\naccount 2 has 100.50\naccount 3 has 100.50" in first
    assert "account 3 has 107.50" in second
    assert "archived: 5" in archived


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


@pytest.mark.exhaustive(
    "polonaise.spark",
    "docs/spark.md",
    "examples/declarative/definitions/balances.py",
    of="programs on Spark that pages show",
)
@pytest.mark.slow
def test_the_example_reads_each_payment_once_run_by_run(tmp_path: Path) -> None:
    with filled(tmp_path, 0) as log:
        pay(log, 40)
        run_pipeline(tmp_path)
        assert balances(tmp_path) == {account: Decimal("0.50") for account in range(40)}
        log.append(10, body=b'{"account": 3, "amount": 1}')
        run_pipeline(tmp_path)
        assert sorted(row["transaction_id"] for row in written(tmp_path, "payments")) == list(range(50))
        assert balances(tmp_path) == {account: Decimal("0.50") + 10 * (account == 3) for account in range(40)}


@pytest.mark.exhaustive  # of names
@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "two words", "{a,b}", "50%20", "żółć", "[x]*?"])
def test_a_directory_is_written_and_read_whatever_it_is_called(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = tmp_path / name / "table"
    spark.range(5).write.parquet(written_to(table))
    assert list(table.glob("*.parquet")), "written there and nowhere else"
    assert spark.read.parquet(read_from(table)).count() == 5
