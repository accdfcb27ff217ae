"""The commands `polonaise pipeline archive` and `restore`: write fragments from a log, and a log from fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli import inputs
from polonaise.cli.archive import (
    NewDirectory,
    NewKey,
    Nodes,
    PartitionCount,
    SameKey,
    StorageCount,
    Store,
    Until,
    UntilTime,
    how_to_restore,
    say_cut,
    say_left_out,
    say_missing,
    warn_of_key,
)
from polonaise.cli.output import print_table, say
from polonaise.cli.pipeline import Address, Conf, Json, Master, Output, Partitions, ReportFile, run_job, run_on_spark

if TYPE_CHECKING:
    from polonaise.pipelines.archive import ArchiveReport
    from polonaise.pipelines.progress import JobProgress
    from polonaise.pipelines.restore import RestoreReport


def archive(
    address: Address,
    store: Store,
    partition: Partitions = "all",
    fragment_mib: Annotated[
        int, typer.Option(min=1, max=1024, help="Maximum size of a fragment, in MiB of log.")
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

    Does the same as `polonaise archive run`, on Spark. May be killed and run again at any time, also several times at
    once.
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
        say(
            f"Delta table: version {version}, {added} fragments added, {len(overlapping)} left out because they overlap"
        )


def restore(
    store: Store,
    directory: NewDirectory,
    storage: StorageCount = 1,
    nodes: Nodes = None,
    partitions: PartitionCount = None,
    until: Until = None,
    until_time: UntilTime = None,
    new_key: NewKey = False,
    same_key: SameKey = False,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Make a log again from its fragments, byte for byte: `polonaise archive restore`, with a report of the run.

    Needs no Spark. The directory holds no log until this has ended; if it is killed on the way, run it again.
    """
    how = how_to_restore(storage, nodes, partitions, until, until_time, new_key=new_key, same_key=same_key)

    def work(progress: JobProgress) -> RestoreReport:
        from polonaise.pipelines import restore as job

        return job.restore(store, directory, how, progress=progress)

    run_job("restore", work, _show_restored, Output(as_json, report))
    warn_of_key(how)


def _show_restored(report: RestoreReport) -> None:
    columns = ["partition", "restored up to", "in the store up to", "batches", "bytes"]
    rows = [
        [f"{value:,}" for value in (each.partition, each.last, each.in_store_up_to, each.batches, each.bytes)]
        for each in report.restored.partitions
    ]
    print_table(columns, rows, right=range(5))
    for each in report.restored.partitions:
        say_left_out(each)
