"""The job audit: compare a database's or a lake's table with what the log says it should hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from polonaise.errors import BadOption, ViewUnfit
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.progress import JobProgress, Silence
from polonaise.pipelines.source import EVERYTHING, Until
from polonaise.pipelines.tablecomparison import Comparison, compare, plain
from polonaise.pipelines.targetaddress import check_target
from polonaise.pipelines.views import opened
from polonaise.pipelines.viewsource import NO_LETTERS, Letters
from polonaise.redaction import redacted_address
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    from polonaise.pipelines.program import main

    main("audit")
