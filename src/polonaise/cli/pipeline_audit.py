"""The command `polonaise pipeline audit`: compares a table with the log, or the copies of a log with each other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli.archive import Until, UntilTime
from polonaise.cli.output import print_table, printable, say
from polonaise.cli.pipeline import Conf, Json, Master, Output, Partitions, ReportFile, run_on_spark
from polonaise.cli.pipeline_views import (
    TABLE,
    Fragments,
    LogOrStore,
    OnUndecodable,
    check_view,
    say_undecodable,
    until_of,
)
from polonaise.errors import BadOption
from polonaise.redaction import redacted, redacted_address
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.pipelines.audit import AuditReport
    from polonaise.pipelines.logaudit import LogAuditReport
    from polonaise.pipelines.progress import JobProgress


def audit(
    address: LogOrStore,
    view: Annotated[
        str | None,
        typer.Argument(metavar="VIEW", help="Declaration of the view, FILE.py:NAME. Without it, audit the log."),
    ] = None,
    table: Annotated[str | None, typer.Argument(help=TABLE)] = None,
    marks: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The database's table of high-water marks. Default: VIEW_marks.")
    ] = None,
    until: Until = None,
    until_time: UntilTime = None,
    named: Annotated[
        int, typer.Option(min=0, max=100_000, help="Maximum number of differences to print; all are counted.")
    ] = 20,
    on_undecodable: OnUndecodable = None,
    partition: Partitions = "all",
    fragments: Fragments = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(metavar="DIRECTORY", help="Storage directory to audit too. May be given several times."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check that a table holds what follows from the log; without a view, that the log is whole and its copies equal.

    Exit status 1 if not. Changes nothing; the log and the table may be in use meanwhile.
    """
    output = Output(as_json, report)
    if view is None:
        from polonaise.spark.options import FRAGMENTS

        if address.startswith(FRAGMENTS):
            store = redacted_address(address.removeprefix(FRAGMENTS))
            raise BadOption(
                f"a store alone is compared with nothing: write polonaise pipeline audit LOG --fragments {store}, or "
                f"polonaise archive verify {store}; or name a view and its table, to compare the table with the store"
            )
        if any(option is not None for option in (marks, until, until_time, on_undecodable)):
            raise BadOption(
                "--marks, --until, --until-time and --on-undecodable are for a table: give its view and the table, too"
            )

        def of_log(spark: Any, progress: JobProgress) -> LogAuditReport:
            from polonaise.pipelines.logaudit import audit_log

            return audit_log(
                spark, address, partitions=partition, fragments=fragments, storage=storage or (), progress=progress
            )

        run_on_spark("audit", of_log, _show_log, output, master=master, conf=conf, address=address)
        return
    if table is None:
        # A URL is the table's, whose view was forgotten: a part of its password may stand where a port does.
        which = "the view" if "://" in view else f"view {redacted(view)}"
        raise BadOption(f"which table of {which}? Give it after the view: {TABLE}")
    if storage or partition != "all":
        raise BadOption(
            "--storage and --partition are for the audit of a log: leave them out; the view names its partitions"
        )

    from polonaise.pipelines.declarations import Declared
    from polonaise.pipelines.source import EVERYTHING

    end = EVERYTHING if until is None and until_time is None else until_of(until, until_time)
    declared = Declared(view)

    def of_table(spark: Any, progress: JobProgress) -> AuditReport:
        from polonaise.pipelines.audit import audit_table

        return audit_table(
            spark, address, declared.load(), table,
            marks_table=marks, until=end, fragments=fragments, named_max=named, on_undecodable=on_undecodable,
            progress=progress,
        )  # fmt: skip

    look = partial(check_view, declared, table, on_undecodable, there=True)
    run_on_spark("audit", of_table, _show_table, output, master=master, conf=conf, address=address, look=look)


def _show_table(report: AuditReport) -> None:
    comparison = report.found
    upto = ", ".join(f"{partition}={id}" for partition, id in sorted(report.marks.items()))
    say(f"{report.view} in {report.table}, up to {upto} ({counted(report.behind, 'transaction')} behind)")
    rows = [["rows", f"{comparison.rows:,}", f"{comparison.rows_expected:,}"]]
    rows += [[f"sum of {name}", str(actual), str(right)] for name, (actual, right) in comparison.sums.items()]
    print_table(["", "in the table", "according to the log"], rows, right=(1, 2))
    for each in comparison.differences:
        say(printable(str(each)))
    total = sum(comparison.totals.values())
    if total > len(comparison.differences):
        say(f"… and {total - len(comparison.differences):,} more")
    say_undecodable(report.undecodable, "and nothing of them was compared")
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in comparison.totals.items())
    say(
        "well: the table holds what follows from the log"
        if report.well
        else f"NOT WELL: {counted(total, 'key')} wrong: {by_kind}"
    )


def _show_log(report: LogAuditReport) -> None:
    rows = [
        [f"{each.partition}", copy.where, f"{copy.transactions:,}", f"{copy.last:,}", f"{copy.behind:,}",
         copy.digest[:16], list(copy.troubles) or "well"]
        for each in report.partitions
        for copy in each.copies
    ]  # fmt: skip
    print_table(["partition", "copy", "transactions", "last", "behind", "digest", "verdict"], rows, right=(0, 2, 3, 4))
    say(
        "well: every copy is whole, and none differs as far as it goes"
        if report.well
        else f"NOT WELL: {counted(len(report.troubles), 'problem')}"
    )
