"""The command `polonaise pipeline archive`: writes what is committed as fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli import inputs
from polonaise.cli.archive import Store, Until, UntilTime, say_cut, say_missing
from polonaise.cli.output import print_table, say
from polonaise.cli.pipeline import Address, Conf, Json, Master, Output, Partitions, ReportFile, run_on_spark
from polonaise.errors import BadOption
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.pipelines.archive import ArchiveReport
    from polonaise.pipelines.progress import JobProgress


def archive(
    address: Address,
    store: Store,
    partition: Partitions = "all",
    fragment_mib: Annotated[
        int, typer.Option(min=1, max=1024, help="Size of a fragment, in MiB of log; most have half of it or more.")
    ] = 256,
    rest: Annotated[bool, typer.Option("--rest", help="Also write what does not fill a fragment yet.")] = False,
    until: Until = None,
    until_time: UntilTime = None,
    delta: Annotated[bool, typer.Option("--delta", help="Also keep a Delta table of the fragments.")] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Archive what is committed and not archived yet, many fragments at a time; each is verified.

    Does on Spark what `polonaise archive run` does, but not for the partitions of topics. May be killed and run again
    at any time, also several times at once.
    """
    ends = None if until is None else inputs.ids_of(until)
    end_time = None if until_time is None else inputs.time_of(until_time)

    def work(spark: Any, progress: JobProgress) -> ArchiveReport:
        from polonaise.pipelines import archive as job

        how = job.HowToArchive(
            partitions=partition,
            fragment_bytes=fragment_mib * 1024 * 1024,
            rest=rest,
            until=ends,
            until_time=end_time,
            delta=delta,
        )
        return job.archive(spark, address, store, how, progress=progress)

    run_on_spark("archive", work, _show_archived, Output(as_json, report), master=master, conf=conf, address=address)


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


def restore() -> None:
    """Refuse, and name the command that does the same without Spark."""
    raise BadOption(
        "polonaise pipeline restore is now polonaise archive restore, which needs no Spark: run that with the same "
        "arguments, without --report"
    )
