"""The group `polonaise pipeline`, and what its commands share: Spark session, progress bars, report, exit status."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer
from typer import Option

from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.openlog import AnyPartitions, LogAddress
from polonaise.cli.output import say_json, tidy
from polonaise.errors import BadOption
from polonaise.redaction import redacted

if TYPE_CHECKING:
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.runs import Report, Run

    ReportT = TypeVar("ReportT", bound=Report)

pipeline = typer.Typer(
    help="Run jobs on Spark over the whole history; each can be killed and run again.",
    no_args_is_help=True,
    epilog=EXIT_STATUS,
)

Address = LogAddress
Partitions = AnyPartitions
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
    from polonaise.cli.progressbars import ProgressBars
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


def run_on_spark(
    job: str,
    work: Callable[[Any, JobProgress], ReportT],
    show: Callable[[ReportT], None],
    output: Output,
    *,
    master: str | None,
    conf: list[str] | None,
    address: str,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Run a job as `run_job` does, with a Spark session, after checking the log's address, and `look`."""
    settings = settings_of(conf or [], "--conf", "spark.driver.memory=4g")

    def with_session(progress: JobProgress) -> ReportT:
        from polonaise.pipelines.jobsession import job_session
        from polonaise.pipelines.source import check_address

        check_address(address)
        look()
        progress.begin("starting Spark", 1)
        with job_session(master, f"polonaise {job}", settings) as spark:
            return work(spark, progress)

    run_job(job, with_session, show, output)


def settings_of(texts: list[str], option: str, example: str) -> dict[str, str]:
    """Parse the texts KEY=VALUE of an option. Raises `BadOption`; `example` is for its message."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadOption(f"invalid {option} {redacted(text)!r}: write KEY=VALUE, such as {example}")
        settings[key] = value
    return settings
