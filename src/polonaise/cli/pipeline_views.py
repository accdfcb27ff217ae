"""`polonaise pipeline views`: tables that follow from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from polonaise.cli import inputs
from polonaise.cli.archive import Until
from polonaise.cli.output import print_table, say, say_json
from polonaise.cli.pipeline import Conf, Json, Master, Output, ReportFile, run_on_spark
from polonaise.errors import BadOption

if TYPE_CHECKING:
    from polonaise.pipelines.progress import Progress
    from polonaise.pipelines.source import Until as Place
    from polonaise.pipelines.views import Commit, ViewReport

LogOrStore = Annotated[str, typer.Argument(metavar="LOG", help="file:PATH, embedded:PATH, or fragments:STORE.")]
Fragments = Annotated[
    str | None, typer.Option(metavar="STORE", help="Where archived history may be read: much faster.")
]
UntilTime = Annotated[
    str | None, typer.Option(metavar="TIME", help="Up to this time: 2026-01-31T12:00:00Z, or 2h ago as 2h.")
]
TABLE: Final = "parquet:DIRECTORY, delta:DIRECTORY, or a database's URL as SQLAlchemy has it."


def views(
    address: LogOrStore,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="FILE.py:NAME or module:NAME of its declaration.")],
    table: Annotated[str, typer.Argument(help=TABLE)],
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the table anew.")] = False,
    until: Until = None,
    until_time: UntilTime = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is committed later.")] = False,
    transactions: Annotated[int, typer.Option(min=1, help="Of one commit, at most.")] = 1_000_000,
    fragments: Fragments = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Bring a view's table up to date with the log, from where it is, or make it anew up to any id or time.

    May be killed, and run again, at any time, also by several at once: each transaction counts once.
    """
    if not rebuild and (until is not None or until_time is not None):
        raise BadOption("--until and --until-time are of a table that is made anew: say also --rebuild")
    if follow and (rebuild or report is not None):
        raise BadOption("--follow goes on until it is interrupted: it neither rebuilds nor ends with a report")

    from polonaise.pipelines.declarations import Declared

    place, declared = place_of(until, until_time), Declared(view)

    def look() -> None:
        from polonaise.pipelines.targets import check_target

        declared.look()
        check_target(table, there=False)

    def work(spark: Any, progress: Progress) -> ViewReport:
        from polonaise.pipelines import views as job

        found = declared.load()
        if rebuild:
            return job.rebuild(spark, address, found, table, until=place, fragments=fragments, progress=progress)
        if follow:
            commits = job.follow(spark, address, found, table, fragments=fragments, transactions_max=transactions)
            for commit in commits:
                _say_commit(commit, as_json)
        return job.update(
            spark, address, found, table, fragments=fragments, transactions_max=transactions, progress=progress
        )

    output = Output(as_json, report)
    run_on_spark("views", work, _show, output, master=master, conf=conf, address=address, look=look)


def place_of(until: list[str] | None, until_time: str | None) -> Place:
    """Up to where, as a value. Raises `BadOption`."""
    from polonaise.pipelines.source import Until as Place

    return Place(
        None if until is None else inputs.ids_of(until), None if until_time is None else inputs.time_of(until_time)
    )


def _say_commit(commit: Commit, as_json: bool) -> None:
    if as_json:
        marks = {str(partition): id for partition, id in sorted(commit.after.items())}
        say_json({"transactions": commit.transactions, "high_water_marks": marks}, now=True)
    else:
        reached = ", ".join(f"{partition}={id}" for partition, id in sorted(commit.after.items()))
        say(f"{commit.transactions:,} transactions, up to {reached}", now=True)


def _show(report: ViewReport) -> None:
    say(
        f"{report.view} in {report.table}: {report.how}, {report.transactions:,} transactions, {report.commits} commits"
    )
    print_table(
        ["partition", "made up to"], [[f"{value:,}" for value in each] for each in sorted(report.marks.items())]
    )
