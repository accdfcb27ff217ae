"""The `polonaise pipeline` commands: run jobs on Spark, each with progress bars, a report, and an exit status."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import adding, with_tls
from polonaise.cli.archive import Store, Until, UntilTime, say_cut, say_missing
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.openlog import AnyPartitions, LogAddress
from polonaise.cli.output import print_table, printable, say, say_json, tidy
from polonaise.errors import BadOption
from polonaise.redaction import redacted, redacted_address
from polonaise.terms import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from polonaise.pipelines.archive import ArchiveReport
    from polonaise.pipelines.audit import AuditReport
    from polonaise.pipelines.declarations import Declared
    from polonaise.pipelines.logaudit import LogAuditReport
    from polonaise.pipelines.report import LogReport
    from polonaise.pipelines.runs import JobProgress, Report, Run
    from polonaise.pipelines.source import Until as End
    from polonaise.pipelines.views import Commit, ViewReport
    from polonaise.pipelines.viewsource import Letters

    ReportT = TypeVar("ReportT", bound=Report)


class ProgressBars:
    """One bar for each step of a job: a `polonaise.pipelines.runs.JobProgress`, and a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        shown = console if console is not None else Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), console=shown, disable=not shown.is_terminal)
        self._step: TaskID | None = None
        self._total = 0

    def begin(self, what: str, total: int) -> None:
        self._end()
        self._step, self._total = self._progress.add_task(what, total=total), total

    def done(self, parts: int) -> None:
        if self._step is not None:
            self._progress.update(self._step, completed=parts)

    def _end(self) -> None:
        if self._step is not None:
            self._progress.update(self._step, completed=self._total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._end()
        self._progress.stop()


pipeline = typer.Typer(
    help="Run jobs on Spark over the whole history; each can be killed and run again.",
    no_args_is_help=True,
    epilog=EXIT_STATUS,
)

Master = Annotated[str | None, Option(help="Spark's master. Default: that of spark-submit, or else local[*].")]
Conf = Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="Setting of Spark's. May be given several times.")]
Json = Annotated[bool, Option("--json", help="Print the report of the run as one JSON object.")]
ReportFile = Annotated[
    str | None, Option("--report", metavar="FILE", help="Write the report of the run to this file, as JSON.")
]


class Output(NamedTuple):
    """How the result of a job's run is put out."""

    as_json: bool
    """Whether the report is printed as JSON, and not as tables."""
    file: str | None
    """The file that the report is also written to, or None."""


def run_job(job: str, work: Callable[[JobProgress], ReportT], show: Callable[[ReportT], None], output: Output) -> None:
    """Do the work of a job under progress bars, then print its report: by `show`, or as JSON, also of a failed run."""
    from polonaise.pipelines import runs

    report_file = None if output.file is None else runs.ReportFile(output.file)

    def finished(run: Run) -> None:
        if report_file is not None:
            report_file.write(run)
        if output.as_json:
            say_json(run.fields())

    def under_bars() -> ReportT:
        with ProgressBars() as bars:
            return work(bars)

    with tidy():
        report = runs.run(job, under_bars, finished)
        if not output.as_json:
            show(report)
    if not report.well:
        raise typer.Exit(ExitStatus.FAILED)


class SparkJob(NamedTuple):
    """A job on Spark, with what the options that all jobs share say."""

    output: Output
    master: str | None
    conf: list[str] | None

    def run(
        self,
        job: str,
        address: str,
        work: Callable[[Any, JobProgress], ReportT],
        show: Callable[[ReportT], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a job as `run_job` does, with a Spark session, after checking the log's address, and `look`."""
        settings = settings_of(self.conf or [], "--conf", "spark.driver.memory=4g")

        def with_session(progress: JobProgress) -> ReportT:
            from polonaise.pipelines.job import job_session
            from polonaise.pipelines.source import check_address

            check_address(address)
            look()
            progress.begin("starting Spark", 1)
            with job_session(self.master, f"polonaise {job}", settings) as spark:
                return work(spark, progress)

        run_job(job, with_session, show, self.output)


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: it runs with its parameter `job`, a `SparkJob`.

    It takes --master, --conf, --json, --report, and the TLS options.
    """
    options = {"master": (Master, None), "conf": (Conf, None), "as_json": (Json, False), "report": (ReportFile, None)}

    def run(given: dict[str, Any], called: Callable[..., None]) -> None:
        called(job=SparkJob(Output(given["as_json"], given["report"]), given["master"], given["conf"]))

    return with_tls(adding(command, options, run, instead_of="job"))


def settings_of(texts: list[str], option: str, example: str) -> dict[str, str]:
    """Parse the texts KEY=VALUE of an option. Raises `BadOption`; `example` is for its message."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadOption(f"invalid {option} {redacted(text)!r}: write KEY=VALUE, such as {example}")
        settings[key] = value
    return settings


@pipeline.command(epilog=EXIT_STATUS)
@on_spark
def archive(
    job: SparkJob,
    address: LogAddress,
    store: Store,
    partition: AnyPartitions = "all",
    fragment_mib: Annotated[
        int, Option(min=1, max=1024, help="Size of a fragment, in MiB of log; most have half of it or more.")
    ] = 256,
    rest: Annotated[bool, Option("--rest", help="Also write what does not fill a fragment yet.")] = False,
    until: Until = None,
    until_time: UntilTime = None,
    delta: Annotated[bool, Option("--delta", help="Also keep a Delta table of the fragments.")] = False,
) -> None:
    """Archive what is committed and not archived yet, many fragments at a time; each is verified.

    Does on Spark what `polonaise archive run` does, but not for the partitions of topics. May be killed and run again
    at any time, also several times at once.
    """
    ends = None if until is None else inputs.ids_of(until)
    end_time = None if until_time is None else inputs.time_of(until_time)

    def work(spark: Any, progress: JobProgress) -> ArchiveReport:
        from polonaise.pipelines import archive as archives

        how = archives.HowToArchive(
            partitions=partition,
            fragment_bytes=fragment_mib * 1024 * 1024,
            rest=rest,
            until=ends,
            until_time=end_time,
            delta=delta,
        )
        return archives.archive(spark, address, store, how, progress=progress)

    job.run("archive", address, work, _show_archived)


def _show_archived(report: ArchiveReport) -> None:
    for name, size in report.fragments:
        say(f"{name.path} {size:,} bytes")
    columns = ["partition", "requested up to", "archived up to", "fragments", "transactions", "bytes"]
    print_table(columns, [[f"{value:,}" for value in each[:6]] for each in report.partitions], right=range(6))
    for each in report.partitions:
        for span in each.missing:
            say_missing(each.partition, span, as_json=False)
        say_cut(each.partition, each.batch_left_out, "archives")
    if report.delta is not None:
        version, added, overlapping = report.delta
        left_out = f"{len(overlapping):,} left out because of an overlap"
        say(f"Delta table: version {version}, {counted(added, 'fragment')} added, {left_out}")


@pipeline.command(hidden=True, context_settings=inputs.ANY_ARGUMENTS)
def restore() -> None:
    """Refuse, and name the command that does the same without Spark."""
    raise BadOption(
        "polonaise pipeline restore is now polonaise archive restore, which needs no Spark: run that with the same "
        "arguments, without --report"
    )


LogOrStore = Annotated[
    str,
    Argument(metavar="LOG", help=f"Address of the log: {inputs.LOG_ADDRESSES}, or of a store alone: fragments:STORE."),
]
Fragments = Annotated[
    str | None,
    Option(metavar="STORE", help="Fragment store to read archived history from, which is much faster."),
]
OnUndecodable = Annotated[
    str | None,
    Option(
        metavar="HOW",
        help="For bodies that do not decode, and rows that a database can't hold: fail, skip or table. Default: as the "
        "view declares.",
    ),
]
TABLE: Final = "parquet:DIRECTORY, delta:DIRECTORY, or a database's URL as SQLAlchemy writes it."


@pipeline.command(epilog=EXIT_STATUS)
@on_spark
def views(
    job: SparkJob,
    address: LogOrStore,
    view: Annotated[str, Argument(metavar="VIEW", help="Declaration of the view: FILE.py:NAME or module:NAME.")],
    table: Annotated[str, Argument(help=TABLE)],
    rebuild: Annotated[bool, Option("--rebuild", help="Make the table again from the beginning of the log.")] = False,
    until: Until = None,
    until_time: UntilTime = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Continue with what is committed later.")] = False,
    transactions: Annotated[int, Option(min=1, help="Maximum number of transactions in one commit.")] = 1_000_000,
    on_undecodable: OnUndecodable = None,
    fragments: Fragments = None,
) -> None:
    """Bring a view's table up to date with the log, or with --rebuild make it again, up to any id or time.

    May be killed and run again at any time, also several times at once: each transaction counts once.
    """
    if not rebuild and (until is not None or until_time is not None):
        raise BadOption(
            "--until and --until-time need --rebuild: only a table that is made again can end before the log does"
        )
    if follow and (rebuild or job.output.file is not None):
        raise BadOption("--follow runs until it is interrupted: it can't be combined with --rebuild or --report")

    from polonaise.pipelines.declarations import Declared

    end, declared = until_of(until, until_time), Declared(view)

    def work(spark: Any, progress: JobProgress) -> ViewReport:
        from polonaise.pipelines import views

        loaded = declared.load()  # here, because a declaration may need the session
        if rebuild:
            return views.rebuild(
                spark, address, loaded, table,
                until=end, fragments=fragments, on_undecodable=on_undecodable, progress=progress,
            )  # fmt: skip
        if follow:  # without an end: it is interrupted, and nothing below is reached
            commits = views.follow(
                spark, address, loaded, table,
                fragments=fragments, transactions_max=transactions, on_undecodable=on_undecodable,
            )  # fmt: skip
            for commit in commits:
                _say_commit(commit, job.output.as_json)
        return views.update(
            spark, address, loaded, table,
            fragments=fragments, transactions_max=transactions, on_undecodable=on_undecodable, progress=progress,
        )  # fmt: skip

    job.run("views", address, work, _show_view, partial(check_view, declared, table, on_undecodable, there=False))


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


def _show_view(report: ViewReport) -> None:
    done = f"{counted(report.transactions, 'transaction')}, {counted(report.commits, 'commit')}"
    say(f"{report.view} in {report.table}: {report.how}, {done}")
    print_table(
        ["partition", "up to date with"], [[f"{value:,}" for value in each] for each in sorted(report.marks.items())]
    )
    where = "left out" if report.letters is None else f"kept in {report.letters}"
    say_undecodable(report.undecodable, where, refused=None if report.refused is None else f"kept in {report.refused}")


@pipeline.command(epilog=EXIT_STATUS)
@on_spark
def report(
    job: SparkJob,
    address: LogOrStore,
    directory: Annotated[str, Argument(help="Directory for report.html and the tables.")],
    partition: AnyPartitions = "all",
    fragments: Fragments = None,
    period: Annotated[
        str | None, Option(help="Length of a period: second, minute, hour, day or month. Default: one that fits.")
    ] = None,
    decoder: Annotated[
        str | None,
        Option(help="Decoder of bodies: json, msgpack, avro, protobuf, or module:function; see docs/spark.md."),
    ] = None,
    columns: Annotated[
        str | None, Option(metavar="DDL", help="Columns that the decoder adds: 'account long, kind string'.")
    ] = None,
    key: Annotated[
        list[str] | None, Option(help="Column whose most frequent values to report. May be given several times.")
    ] = None,
    top: Annotated[int, Option(min=1, max=1_000, help="Number of most frequent values to report.")] = 20,
    option: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="Other option of the Spark source, such as headers=1,2. May be given several times.",
        ),
    ] = None,
    sections: Annotated[
        str | None,
        Option(metavar="MODULE:FUNCTION", help="Function that makes the application's sections of the report."),
    ] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "What the log holds",
) -> None:
    """Sum up a log by partition, header and period, with charts: as one HTML page and as Parquet tables.

    All parts count the same transactions: those that were committed when the job began.
    """
    given = {"fragments": fragments, "decoder": decoder, "decoderSchema": columns, "partitions": partition}
    options = {name: value for name, value in given.items() if value is not None}
    options |= settings_of(option or [], "--option", "headers=1,2")

    def work(spark: Any, progress: JobProgress) -> LogReport:
        from polonaise.pipelines import report

        how = report.HowToReport(
            title=title,
            options=options,
            period=period,
            keys=key or (),
            top=top,
            sections=None if sections is None else report.sections_named(sections),
        )
        return report.report(spark, address, directory, how, progress=progress)

    job.run("report", address, work, _show_report)


def _show_report(report: LogReport) -> None:
    for path in (*report.tables, report.page):
        say(str(path))


@pipeline.command(epilog=EXIT_STATUS)
@on_spark
def audit(
    job: SparkJob,
    address: LogOrStore,
    view: Annotated[
        str | None,
        Argument(metavar="VIEW", help="Declaration of the view, FILE.py:NAME. Without it, audit the log."),
    ] = None,
    table: Annotated[str | None, Argument(help=TABLE)] = None,
    marks: Annotated[
        str | None, Option(metavar="TABLE", help="The database's table of high-water marks. Default: VIEW_marks.")
    ] = None,
    until: Until = None,
    until_time: UntilTime = None,
    named: Annotated[
        int, Option(min=0, max=100_000, help="Maximum number of differences to print; all are counted.")
    ] = 20,
    on_undecodable: OnUndecodable = None,
    partition: AnyPartitions = "all",
    fragments: Fragments = None,
    storage: Annotated[
        list[str] | None,
        Option(metavar="DIRECTORY", help="Storage directory to audit too. May be given several times."),
    ] = None,
) -> None:
    """Check that a table holds what follows from the log; without a view, that the log is whole and its copies equal.

    Exit status 1 if not. Changes nothing; the log and the table may be in use meanwhile.
    """
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

        job.run("audit", address, of_log, _show_log)
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

    job.run("audit", address, of_table, _show_table, partial(check_view, declared, table, on_undecodable, there=True))


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
