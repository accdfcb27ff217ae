"""docs/spark.md, tried literally: its options are those of the code, its files are saved, its commands are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polonaise.spark import options
from polonaise.spark.schemas import COLUMNS
from rigs.documents import said_by

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


@pytest.mark.slow
def test_the_ten_minutes_do_what_they_say(tmp_path: Path) -> None:
    _, looked, first, second, archived = said_by(section("Ten minutes"), tmp_path, within_s=600)
    assert '{"account": 1, "amount": -30}' in looked
    assert "paid from the third on: 70.50" in looked
    assert "account 1 has 70.50\naccount 2 has 100.50\naccount 3 has 100.50" in first
    assert "account 3 has 107.50" in second
    assert "archived: 5" in archived
