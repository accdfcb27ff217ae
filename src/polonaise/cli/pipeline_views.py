"""The command `polonaise pipeline views`: keeps tables that follow from the log up to date."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from polonaise.cli import inputs
from polonaise.cli.archive import Until, UntilTime
from polonaise.cli.output import print_table, printable, say, say_json
from polonaise.cli.pipeline import Conf, Json, Master, Output, ReportFile, run_on_spark
from polonaise.errors import BadOption
from polonaise.terms import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polonaise.pipelines.declarations import Declared
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.source import Until as End
    from polonaise.pipelines.views import Commit, ViewReport
    from polonaise.pipelines.viewsource import Letters

LogOrStore = Annotated[
    str,
    typer.Argument(
        metavar="LOG", help=f"Address of the log: {inputs.LOG_ADDRESSES}, or of a store alone: fragments:STORE."
    ),
]
Fragments = Annotated[
    str | None,
    typer.Option(metavar="STORE", help="Fragment store to read archived history from, which is much faster."),
]
OnUndecodable = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="For bodies that do not decode, and rows that a database can't hold: fail, skip or table. Default: as the "
        "view declares.",
    ),
]
TABLE: Final = "parquet:DIRECTORY, delta:DIRECTORY, or a database's URL as SQLAlchemy writes it."


def views(
    address: LogOrStore,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="Declaration of the view: FILE.py:NAME or module:NAME.")],
    table: Annotated[str, typer.Argument(help=TABLE)],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the table again from the beginning of the log.")
    ] = False,
    until: Until = None,
    until_time: UntilTime = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with what is committed later.")] = False,
    transactions: Annotated[int, typer.Option(min=1, help="Maximum number of transactions in one commit.")] = 1_000_000,
    on_undecodable: OnUndecodable = None,
    fragments: Fragments = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Bring a view's table up to date with the log, or with --rebuild make it again, up to any id or time.

    May be killed and run again at any time, also several times at once: each transaction counts once.
    """
    if not rebuild and (until is not None or until_time is not None):
        raise BadOption(
            "--until and --until-time need --rebuild: only a table that is made again can end before the log does"
        )
    if follow and (rebuild or report is not None):
        raise BadOption("--follow runs until it is interrupted: it can't be combined with --rebuild or --report")

    from polonaise.pipelines.declarations import Declared

    end, declared = until_of(until, until_time), Declared(view)

    def work(spark: Any, progress: JobProgress) -> ViewReport:
        from polonaise.pipelines import views as job

        loaded = declared.load()  # here, because a declaration may need the session
        if rebuild:
            return job.rebuild(
                spark, address, loaded, table,
                until=end, fragments=fragments, on_undecodable=on_undecodable, progress=progress,
            )  # fmt: skip
        if follow:  # without an end: it is interrupted, and nothing below is reached
            commits = job.follow(
                spark, address, loaded, table,
                fragments=fragments, transactions_max=transactions, on_undecodable=on_undecodable,
            )  # fmt: skip
            for commit in commits:
                _say_commit(commit, as_json)
        return job.update(
            spark, address, loaded, table,
            fragments=fragments, transactions_max=transactions, on_undecodable=on_undecodable, progress=progress,
        )  # fmt: skip

    output = Output(as_json, report)
    look = partial(check_view, declared, table, on_undecodable, there=False)
    run_on_spark("views", work, _show, output, master=master, conf=conf, address=address, look=look)


def check_view(declared: Declared, table: str, on_undecodable: str | None, *, there: bool) -> None:
    """Check view, table, which may have to be `there`, and policy as far as possible without a Spark session."""
    from polonaise.pipelines.targetaddress import check_target
    from polonaise.pipelines.viewsource import policy_named

    if on_undecodable is not None:
        policy_named(on_undecodable)
    declared.look()
    check_target(table, there=there)


def until_of(until: list[str] | None, until_time: str | None) -> End:
    """Return the end of what to read, by --until or --until-time; without either, everything. Raises `BadOption`."""
    from polonaise.pipelines.source import Until as End

    return End(
        None if until is None else inputs.ids_of(until), None if until_time is None else inputs.time_of(until_time)
    )


def _say_commit(commit: Commit, as_json: bool) -> None:
    if as_json:
        marks = {str(partition): id for partition, id in sorted(commit.after.items())}
        letters = commit.undecodable
        left_out = {"undecodable": letters.fields(), "refused": letters.refused.fields()}
        say_json({"transactions": commit.transactions, "high_water_marks": marks, **left_out}, now=True)
    else:
        reached = ", ".join(f"{partition}={id}" for partition, id in sorted(commit.after.items()))
        say(f"{counted(commit.transactions, 'transaction')}, up to {reached}", now=True)
        say_undecodable(commit.undecodable, "left out", now=True)


def say_undecodable(letters: Letters, where: str, *, now: bool = False, refused: str | None = None) -> None:
    """Print how many bodies did not decode, and how many rows the table can't hold, if any, and the first of them.

    `where` and `refused`, None for the same, say where these are now.
    """
    bodies = "1 body does" if letters.count == 1 else f"{letters.count:,} bodies do"
    _say_each(f"{bodies} not decode, {where}", letters.count, letters.named, now)
    rows = "1 row does" if letters.refused.count == 1 else f"{letters.refused.count:,} rows do"
    _say_each(f"{rows} not fit into the table, {refused or where}", letters.refused.count, letters.refused.named, now)


def _say_each(what: str, count: int, named: Sequence[object], now: bool) -> None:
    if count:
        say(f"{what}:", now=now)
        for each in named:
            say(f"  {printable(str(each))}", now=now)
        if count > len(named):
            say(f"  … and {count - len(named):,} more", now=now)


def _show(report: ViewReport) -> None:
    done = f"{counted(report.transactions, 'transaction')}, {counted(report.commits, 'commit')}"
    say(f"{report.view} in {report.table}: {report.how}, {done}")
    print_table(
        ["partition", "up to date with"], [[f"{value:,}" for value in each] for each in sorted(report.marks.items())]
    )
    where = "left out" if report.letters is None else f"kept in {report.letters}"
    say_undecodable(report.undecodable, where, refused=None if report.refused is None else f"kept in {report.refused}")
