"""The job audit: compare a database's or a lake's table with what the log says it should hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import DecimalType, FractionalType, IntegralType, NumericType

from polonaise.errors import BadOption, ViewUnfit
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.formatting import quoted
from polonaise.pipelines.keptframes import kept_on_disk
from polonaise.pipelines.moments import for_python, with_times
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.source import EVERYTHING, Until
from polonaise.pipelines.targetaddress import check_target
from polonaise.pipelines.views import opened
from polonaise.pipelines.viewsource import NO_LETTERS, Letters
from polonaise.redaction import redacted_address
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


MISSING: Final = "missing"
EXTRA: Final = "extra"
REPEATED: Final = "repeated"
DIFFERENT: Final = "different"
_TOLERANCE: Final = 1e-9
"""Relative difference that floating-point values may have: their sums depend on the order of addition."""


class RowDifference(NamedTuple):
    """A key at which two tables differ."""

    kind: str
    """One of `missing` (the table lacks the key, or rows of it), `extra` (it should not have the key), `repeated` (it
    has too many rows of it) and `different` (other columns than the key's differ)."""
    key: dict[str, Any]
    rows: int
    """Number of the table's rows with this key."""
    rows_expected: int
    """Number of rows with this key that the table should have."""
    values: dict[str, tuple[Any, Any]]
    """Each column that differs, with the table's value and the right one; empty unless `kind` is `different`."""

    def __str__(self) -> str:
        key = ", ".join(f"{name} {quoted(value)}" for name, value in self.key.items())
        if self.kind == DIFFERENT:
            what = ", ".join(
                f"{name} is {quoted(actual)} instead of {quoted(right)}"
                for name, (actual, right) in self.values.items()
            )
        else:
            what = f"{self.rows} row{'' if self.rows == 1 else 's'} instead of {self.rows_expected}"
        return f"{self.kind}: {key}: {what}"

    def fields(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "key": {name: plain(value) for name, value in self.key.items()},
            "rows": self.rows,
            "rows_expected": self.rows_expected,
            "values": {
                name: {"is": plain(actual), "should_be": plain(right)} for name, (actual, right) in self.values.items()
            },
        }


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a table with what it should hold."""

    rows: int
    rows_expected: int
    sums: Mapping[str, tuple[Any, Any]]
    """Each numeric column outside the key, if there is one, with its sum in the table and the right one; None of no
    rows."""
    totals: Mapping[str, int]
    """The number of keys that differ, by kind. Kinds that don't occur are left out."""
    differences: tuple[RowDifference, ...]
    """The first differences in the order of their keys, as many as `compare` was to name."""

    @property
    def equal(self) -> bool:
        return not self.totals


def compare(table: DataFrame, expected: DataFrame, key: Sequence[str], named_max: int) -> Comparison:
    """Compare a table with what it should hold, key by key, and name up to `named_max` keys that differ. Without a
    `key`, whole rows are compared. Floating-point values outside the key may differ by a billionth of their size.
    Raises `ViewUnfit` for a table that lacks columns, or has them with other types, but for numbers, which are compared
    by their values."""
    keys = list(key) or expected.columns
    values = [name for name in expected.columns if name not in keys]
    with kept_on_disk(_fitted(table, expected.schema)) as actual, kept_on_disk(expected) as right:
        same_key = [_same(name, actual.schema[name].dataType, expected.schema[name].dataType) for name in keys]
        joined = _grouped(actual, keys, values, "t").join(
            _grouped(right, keys, values, "e"), reduce(lambda one, other: one & other, same_key), "full_outer"
        )
        differs = {
            name: _differs(name, actual.schema[name].dataType, expected.schema[name].dataType) for name in values
        }
        which = F.array_compact(F.array(*(F.when(differs[name], F.lit(name)) for name in values)))
        differing = joined.withColumns({"kind": _kind(list(differs.values())), "differing": which})
        differing = differing.where(F.col("kind").isNotNull())
        with kept_on_disk(differing) as differences:
            totals = {row["kind"]: row["count"] for row in differences.groupBy("kind").count().collect()}
            first = differences.orderBy(*(F.coalesce(f"e_{name}", f"t_{name}") for name in keys)).limit(named_max)
            told, times = for_python(first)
            named = tuple(_difference(with_times(row.asDict(), times), keys) for row in told.collect())
        summed = [
            each.name for each in expected.schema if each.name not in key and isinstance(each.dataType, NumericType)
        ]
        (rows, sums), (rows_expected, right_sums) = (_totals(frame, summed) for frame in (actual, right))
    return Comparison(
        rows,
        rows_expected,
        {name: (sums[name], right_sums[name]) for name in summed},
        dict(sorted(totals.items())),
        named,
    )


def _fitted(table: DataFrame, schema: StructType) -> DataFrame:
    types = {each.name: each.dataType for each in table.schema}
    for each in schema:
        if each.name not in types:
            raise ViewUnfit(f"the table has no column {each.name}: it has {', '.join(types)}")
        kind = types[each.name]
        if kind != each.dataType and not (isinstance(kind, NumericType) and isinstance(each.dataType, NumericType)):
            raise ViewUnfit(
                f"column {each.name} of the table is {kind.simpleString()} and has to be {each.dataType.simpleString()}"
            )
    return table.select(schema.names)


def _grouped(frame: DataFrame, keys: Sequence[str], values: Sequence[str], side: str) -> DataFrame:
    """Return a row for each key, with the number of rows that have this key, and the other columns of one of them."""
    named = frame.select([F.col(name).alias(f"{side}_{name}") for name in frame.columns])
    samples = [F.first(f"{side}_{name}").alias(f"{side}_{name}") for name in values]
    return named.groupBy(*(f"{side}_{name}" for name in keys)).agg(F.count(F.lit(1)).alias(f"rows_{side}"), *samples)


def _kind(differs: Sequence[Column]) -> Column:
    kind = F.when(F.col("rows_e").isNull(), EXTRA).when(F.col("rows_t").isNull(), MISSING)
    kind = kind.when(F.col("rows_t") > F.col("rows_e"), REPEATED).when(F.col("rows_t") < F.col("rows_e"), MISSING)
    return kind.when(reduce(lambda one, other: one | other, differs), DIFFERENT) if differs else kind


def _same(name: str, kind: DataType, expected: DataType) -> Column:
    """Compare a column of both sides, exactly, whatever types of numbers `kind` (the table's) and `expected` are."""
    actual, right = F.col(f"t_{name}"), F.col(f"e_{name}")
    same = actual.eqNullSafe(right)  # in the wider type, which has fractions if one of them has
    # Spark takes a floating-point type for wider than any other, though it rounds large integers.
    return same & actual.try_cast(expected).eqNullSafe(right) if _floats(kind) and not _floats(expected) else same


def _differs(name: str, kind: DataType, expected: DataType) -> Column:
    """Compare a column outside the key: as `_same`, but floating-point values may differ a little."""
    actual, right = F.col(f"t_{name}"), F.col(f"e_{name}")
    differs = ~_same(name, kind, expected)
    if _floats(expected):
        apart = F.abs(actual - right) > _TOLERANCE * F.greatest(F.abs(actual), F.abs(right))
        return differs & F.coalesce(apart, F.lit(True))
    return differs


def _floats(kind: DataType) -> bool:
    return isinstance(kind, FractionalType) and not isinstance(kind, DecimalType)


def _difference(row: Mapping[str, Any], keys: Sequence[str]) -> RowDifference:
    side = "t" if row["rows_e"] is None else "e"
    kind = str(row["kind"])
    differing = {name: (row[f"t_{name}"], row[f"e_{name}"]) for name in row["differing"]}
    return RowDifference(
        kind,
        {name: row[f"{side}_{name}"] for name in keys},
        row["rows_t"] or 0,
        row["rows_e"] or 0,
        differing if kind == DIFFERENT else {},
    )


def _totals(frame: DataFrame, names: Sequence[str]) -> tuple[int, dict[str, Any]]:
    # None for a sum of more digits than Spark has: the rows themselves are compared without it.
    summed = [F.try_sum(_wide(name, frame.schema[name].dataType)).alias(f"s_{name}") for name in names]
    row = frame.agg(F.count(F.lit(1)).alias("rows"), *summed).collect()[0].asDict()
    return row["rows"], {name: _number(row[f"s_{name}"]) for name in names}


def _wide(name: str, kind: DataType) -> Column:
    """Widen integers for a sum, which may not fit into 64 bits."""
    return F.col(name).cast("decimal(38,0)") if isinstance(kind, IntegralType) else F.col(name)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: times in ISO 8601, bytes in hexadecimal, decimals and the like as texts."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).hex()
        case Row():
            return {name: plain(each) for name, each in value.asDict().items()}
        case dict():
            return {str(plain(key)): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


NAMED_MAX: Final = 20
"""The most differences that a report names, by default."""


@dataclass(frozen=True)
class AuditReport:
    """The result of comparing a table with what its view makes of the log."""

    view: str
    table: str
    """The table's address, redacted: a report is printed and kept."""
    marks: dict[PartitionId, TransactionId]
    """Last id of each partition up to which the table was compared."""
    behind: int
    """Number of committed transactions above `marks`: the table need not have them yet."""
    found: Comparison
    undecodable: Letters = NO_LETTERS
    """The undecodable bodies up to `marks`, and the rows that the table can't hold, which were left out."""

    @property
    def well(self) -> bool:
        return self.found.equal

    def fields(self) -> dict[str, Any]:
        comparison = self.found
        return {
            "view": self.view,
            "table": self.table,
            "high_water_marks": {str(partition): id for partition, id in sorted(self.marks.items())},
            "behind": self.behind,
            "rows": {"are": comparison.rows, "should_be": comparison.rows_expected},
            "sums": {
                name: {"is": plain(actual), "should_be": plain(right)}
                for name, (actual, right) in comparison.sums.items()
            },
            "differences": {"total": sum(comparison.totals.values()), **comparison.totals},
            "named": [each.fields() for each in comparison.differences],
            "undecodable": self.undecodable.fields(),
            "refused": self.undecodable.refused.fields(),
        }


def audit_table(
    spark: SparkSession,
    address: str,
    view: TableView,
    table: str,
    *,
    marks_table: str | None = None,
    until: Until = EVERYTHING,
    fragments: str | None = None,
    named_max: int = NAMED_MAX,
    on_undecodable: str | None = None,
    progress: JobProgress | None = None,
) -> AuditReport:
    """Compare a table with what its view makes of the log up to the table's marks.

    The table may be made by the job `views`, or kept by an application: a SQL table beside a table of marks
    (`marks_table`, such as `polonaise_marks`). Rows and marks are read in one snapshot: the table may be written to. A
    table without marks has to be given `until`, and is compared up to there. `table` is the table's address, see
    `open_target`; in a database the table has the view's name. Undecodable bodies end the audit, or are left out and
    counted: `on_undecodable` is as in `views.rebuild`.

    Differences are in the report, which counts all and names the first `named_max`. Raises `BadOption` for invalid
    options, `NotFound` for a table whose directory or SQLite file does not exist, `ClientAhead` for one that holds more
    than the log, `ViewUnfit` for one that can't be compared, and what reading, Spark and the database raise.
    """
    if until is not EVERYTHING and marks_table is not None:
        raise BadOption("until and marks_table are both given: give one of them")
    check_target(table, there=True)
    progress = progress or Silence()
    with opened(spark, address, view, table, fragments, on_undecodable, marks_table) as (source, target):
        committed = source.marks()
        nothing = dict.fromkeys(committed, NO_TRANSACTION)
        target.expect(source.rows({}, nothing).schema)
        progress.begin("comparing", 1)
        with target.state(with_marks=until is EVERYTHING) as state:
            marks = state.marks if state.marks is not None else source.marks(until)
            source.check_not_ahead(marks)
            upto = {partition: marks[partition] for partition in committed if partition in marks}
            if not upto:
                raise ViewUnfit(
                    f"the table of view {view.name} has no marks of partitions {sorted(committed)}: bring it up to date"
                )
            comparison = compare(state.rows, source.rows({}, upto), view.key, named_max)
        with source.letters({}, upto) as letters:
            undecodable = letters.and_then(NO_LETTERS)
    behind = sum(max(last - upto.get(partition, NO_TRANSACTION), 0) for partition, last in committed.items())
    return AuditReport(view.name, redacted_address(table), upto, behind, comparison, undecodable)


if __name__ == "__main__":
    from polonaise.pipelines.runs import main

    main("audit")
