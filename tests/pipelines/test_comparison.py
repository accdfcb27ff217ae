"""Differences as they are told: whoever reads one knows which key it is, and what its values are."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

from polonaise.pipelines.audit import DIFFERENT, EXTRA, MISSING, RowDifference, compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_names_with_blanks_are_quoted_and_nothing_is_null() -> None:
    found = RowDifference(
        DIFFERENT, {"name": "Anna Magdalena", "bank": None}, 1, 1, {"owner": (None, "J. S."), "n": (1, 2)}
    )
    assert str(found) == (
        'different: name "Anna Magdalena", bank NULL: owner is NULL instead of "J. S.", n is 1 instead of 2'
    )
    assert str(RowDifference(MISSING, {"account": 17}, 0, 1, {})) == "missing: account 17: 0 rows instead of 1"
    assert str(RowDifference(EXTRA, {"account": 17}, 1, 0, {})) == "extra: account 17: 1 row instead of 0"


def test_values_are_told_in_json() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    struct = Row(day=date(2026, 1, 31), shares=[Decimal("0.10"), math.nan], seen=at, name="x", n={1: b"\x01"})
    found = RowDifference(DIFFERENT, {"account": 1}, 1, 1, {"of": (struct, None), "rate": (math.nan, -math.inf)})
    told = json.loads(json.dumps(found.fields(), allow_nan=False))
    assert told["values"]["rate"] == {"is": "NaN", "should_be": "-Infinity"}
    assert told["values"]["of"] == {
        "is": {
            "day": "2026-01-31", "shares": ["0.10", "NaN"], "seen": "2026-01-31T12:00:00+00:00", "name": "x",
            "n": {"1": "01"},
        },
        "should_be": None,
    }  # fmt: skip


@pytest.mark.slow
def test_rows_are_compared_also_if_their_sum_has_too_many_digits(spark: SparkSession) -> None:
    largest = "9" * 38
    table, other = (
        spark.sql(f"SELECT id, cast('{value}' AS decimal(38,0)) AS d FROM range(2)") for value in (largest, largest[1:])
    )
    same, found = compare(table, table, ["id"], 3), compare(table, other, ["id"], 3)
    assert (same.equal, same.sums["d"]) == (True, (None, None))
    assert (found.totals, found.sums["d"]) == ({DIFFERENT: 2}, (None, 2 * int(largest[1:])))


@pytest.mark.exhaustive  # of types
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "values", "same"),
    [
        (("double", "bigint"), ("1.7", "1"), False),
        (("double", "bigint"), ("1", "1"), True),
        (("double", "bigint"), ("9007199254740992", "9007199254740993"), False),
        (("double", "bigint"), ("'NaN'", "0"), False),
        (("double", "decimal(10,2)"), ("1.1", "1.10"), True),
        (("decimal(10,2)", "bigint"), ("1.70", "1"), False),
        (("decimal(10,4)", "decimal(10,2)"), ("1.1004", "1.10"), False),
        (("bigint", "int"), ("4294967297", "1"), False),
        (("int", "bigint"), ("1", "1"), True),
        (("bigint", "double"), ("1", "1"), True),
        (("double", "double"), ("1.00000000001", "1"), True),
        (("double", "float"), ("1e300", "1"), False),
        (("double", "double"), ("'NaN'", "'NaN'"), True),
    ],
)
def test_numbers_of_two_types_are_equal_if_their_values_are(
    spark: SparkSession, kinds: tuple[str, str], values: tuple[str, str], same: bool
) -> None:
    table, expected = (
        spark.sql(f"SELECT 1 AS k, CAST({value} AS {kind}) AS v") for kind, value in zip(kinds, values, strict=True)
    )
    assert compare(table, expected, ["k"], 5).equal is same
    assert compare(table.select("v"), expected.select("v"), [], 5).equal is (same and values[0] != "1.00000000001")


@pytest.mark.slow
def test_only_the_columns_that_differ_are_named(spark: SparkSession) -> None:
    row = "SELECT 1 AS k, CAST({} AS double) AS sum, CAST('NaN' AS double) AS rate, {} AS rows"
    found = compare(spark.sql(row.format("0.1 + 1e-12", 2)), spark.sql(row.format("0.1", 3)), ["k"], 5)
    assert [str(each) for each in found.differences] == ["different: k 1: rows is 2 instead of 3"]
    json.dumps(found.differences[0].fields(), allow_nan=False)
