"""The command `polonaise pipeline report`: sums up what a log holds, as a page and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli.output import say
from polonaise.cli.pipeline import Conf, Json, Master, Output, Partitions, ReportFile, run_on_spark, settings_of
from polonaise.cli.pipeline_views import Fragments, LogOrStore

if TYPE_CHECKING:
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.report import LogReport


def report(
    address: LogOrStore,
    directory: Annotated[str, typer.Argument(help="Directory for report.html and the tables.")],
    partition: Partitions = "all",
    fragments: Fragments = None,
    period: Annotated[
        str | None, typer.Option(help="Length of a period: second, minute, hour, day or month. Default: one that fits.")
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(help="Decoder of bodies: json, msgpack, avro, protobuf, or module:function; see docs/spark.md."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns that the decoder adds: 'account long, kind string'.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Column whose most frequent values to report. May be given several times.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1_000, help="Number of most frequent values to report.")] = 20,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Other option of the Spark source, such as headers=1,2. May be given several times.",
        ),
    ] = None,
    sections: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Function that makes the application's sections of the report."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "What the log holds",
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Sum up a log by partition, header and period, with charts: as one HTML page and as Parquet tables.

    All parts count the same transactions: those that were committed when the job began.
    """
    given = {"fragments": fragments, "decoder": decoder, "decoderSchema": columns, "partitions": partition}
    options = {name: value for name, value in given.items() if value is not None}
    options |= settings_of(option or [], "--option", "headers=1,2")

    def work(spark: Any, progress: JobProgress) -> LogReport:
        from polonaise.pipelines import report as job

        how = job.HowToReport(
            title=title,
            options=options,
            period=period,
            keys=key or (),
            top=top,
            sections=None if sections is None else job.sections_named(sections),
        )
        return job.report(spark, address, directory, how, progress=progress)

    run_on_spark("report", work, _show, Output(as_json, report), master=master, conf=conf, address=address)


def _show(report: LogReport) -> None:
    for path in (*report.tables, report.page):
        say(str(path))
