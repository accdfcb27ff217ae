"""The command `polonaise pipeline report`: sums up what a log holds, as a page and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli.output import say
from polonaise.cli.pipeline import Conf, Json, Master, Output, Partitions, ReportFile, run_on_spark, settings_of

if TYPE_CHECKING:
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.report import LogReport


def report(
    address: Annotated[str, typer.Argument(metavar="LOG", help="file:PATH, embedded:PATH, or fragments:STORE.")],
    directory: Annotated[str, typer.Argument(help="Where report.html and the tables are written.")],
    partition: Partitions = "all",
    fragments: Annotated[
        str | None, typer.Option(metavar="STORE", help="Where archived history may be read: much faster.")
    ] = None,
    period: Annotated[
        str | None, typer.Option(help="second, minute, hour, day or month; one that fits, unless said.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="json, msgpack, avro, protobuf, or module:function; see docs/spark.md.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="DDL", help="The columns that the decoder adds: 'account long, kind string'.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="A column whose most frequent values are told; may be said several times.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1_000, help="How many of them.")] = 20,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Any other option of the source, such as headers=1,2.")
    ] = None,
    sections: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What the application adds to the report.")
    ] = None,
    title: Annotated[str, typer.Option(help="Of the page.")] = "What the log holds",
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Sum up a log by partition, header and period, with charts: as one HTML page and as Parquet tables.

    All of it counts the same transactions: those that were committed when the job began.
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
