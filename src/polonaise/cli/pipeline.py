"""The `polonaise pipeline` commands: what all jobs on Spark share, which is session, bars, report and exit status."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from polonaise.cli.log import EXIT_STATUS
from polonaise.cli.output import say_json, tidy
from polonaise.errors import BadOption
from polonaise.redaction import redacted

if TYPE_CHECKING:
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.runs import Report, Run

    ReportT = TypeVar("ReportT", bound=Report)

pipeline = typer.Typer(
    help="Jobs on Spark over the whole history: each can be killed, and run again.",
    no_args_is_help=True,
    epilog=EXIT_STATUS,
)

Address = Annotated[str, typer.Argument(metavar="LOG", help="file:PATH or embedded:PATH.")]
Partitions = Annotated[str, typer.Option("--partition", "-p", help="all, 3, or 0-6,9.")]
Master = Annotated[str | None, typer.Option(help="Spark's master: local[*] unless said, or as spark-submit was told.")]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be said several times.")
]
Json = Annotated[bool, typer.Option("--json", help="The report of the run as one JSON object.")]
ReportFile = Annotated[
    str | None, typer.Option("--report", metavar="FILE", help="Write the report of the run to this file, as JSON.")
]


class Output(NamedTuple):
    """Where the report of a job's run goes."""

    as_json: bool
    """Whether it is printed as JSON, and not as tables."""
    file: str | None
    """The file that it is written to, too; None for none."""


def run_job(job: str, work: Callable[[JobProgress], ReportT], show: Callable[[ReportT], None], output: Output) -> None:
    """Do the work of a job under progress bars, then print its report: by `show`, or as JSON.

    Exit status 1 if the report is not well.
    """
    from polonaise.cli.progressbars import ProgressBars
    from polonaise.pipelines import runs

    file = None if output.file is None else runs.ReportFile(output.file)

    def finished(run: Run) -> None:
        if file is not None:
            file.write(run)
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
        raise typer.Exit(1)


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
    """Run a job as `run_job` does, with a Spark session.

    What can be known to be wrong without a session is told before one starts, which takes seconds: the log's address,
    and whatever `look` raises.
    """
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
    """Return the settings that an option was given as KEY=VALUE. Raises `BadOption`; `example` is for its message."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadOption(f"{option} {redacted(text)!r}: write KEY=VALUE, such as {example}")
        settings[key] = value
    return settings
