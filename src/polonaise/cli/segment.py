"""`polonaise segment …`: a storage node's files, looked at offline. Nothing is changed, and a node may be running."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli.log import EXIT_STATUS, Json
from polonaise.cli.output import (
    fitted,
    judge,
    line_width,
    print_table,
    say,
    say_json,
    shown,
    transaction_fields,
    when,
)

if TYPE_CHECKING:
    from polonaise.admin.segments import Damage, PartitionReport, SegmentReport
    from polonaise.log.batch import Batch
    from polonaise.terms import Transaction, TransactionId

segment = typer.Typer(
    help="Look at segment files. Nothing is changed; nodes may be running.", no_args_is_help=True, epilog=EXIT_STATUS
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH…", help="A storage directory, one partition's directory in it, or segment files."),
]


async def _reports(paths: list[str]) -> list[PartitionReport]:
    from polonaise.admin import files, segments

    return [await segments.verify(found) for path in paths for found in files.find(path)]


@segment.command(epilog=EXIT_STATUS)
def verify(paths: Paths, as_json: Json = False) -> None:
    """Is everything as it was written? Exit status 1, and the first damaged offset and id, if it is not.

    Every CRC is checked, the chain of batches and segments, and against the control file that nothing is missing. An
    unfinished write at the end is no damage: nobody was told of it.
    """

    async def work() -> bool:
        reports = await _reports(paths)
        if as_json:
            for report in reports:
                say_json(_verdict(report))
        else:
            rows = [_verdict_row(report) for report in reports]
            print_table(["partition", "segments", "last id", "verdict"], rows, right=(0, 1, 2))
        return not any(report.damages for report in reports)

    judge(work())


def _verdict(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.partition,
        "segments": len(report.segments),
        "last": report.last,
        "unsynced_bytes": sum(each.unsynced_bytes for each in report.segments),
        "damages": [damage._asdict() for damage in report.damages],
    }


def _verdict_row(report: PartitionReport) -> list[object]:
    unsynced = sum(each.unsynced_bytes for each in report.segments)
    verdict = "good" if not unsynced else f"good; {unsynced} bytes of an unfinished write at its end"
    if report.damages:
        verdict = _told(report.damages[0])
        if len(report.damages) > 1:
            verdict += f" (and {len(report.damages) - 1} more)"
    partition = "?" if report.partition is None else report.partition
    return [partition, len(report.segments), report.last, verdict]


def _told(damage: Damage) -> str:
    return f"DAMAGED from transaction {damage.transaction} on: {damage.path} at offset {damage.offset}: {damage.what}"


@segment.command(epilog=EXIT_STATUS)
def statistics(paths: Paths, as_json: Json = False) -> None:
    """How much is in each segment. Exit status 1 if one of them is damaged; then it is counted up to there."""

    async def work() -> bool:
        reports = await _reports(paths)
        segments = [each for report in reports for each in report.segments]
        if as_json:
            for each in segments:
                say_json(asdict(each) | {"damage": each.damage._asdict() if each.damage else None})
        else:
            columns = ["segment", "part.", "first", "last", "batches", "transactions", "bytes", "data", "sessions"]
            columns += ["first commit", "last commit"]
            rows = [_statistics_row(each) for each in segments]
            print_table(columns, rows, right=range(1, 9))
        return not any(report.damages for report in reports)

    judge(work())


def _statistics_row(each: SegmentReport) -> list[object]:
    partition = "?" if each.partition is None else each.partition
    times = [when(us) if us else "-" for us in (each.first_commit_time_us, each.last_commit_time_us)]
    counts = [each.batches, each.transactions, each.bytes, each.data_bytes, each.sessions]
    return [each.path, partition, each.first, each.last, *counts, *times]


@segment.command(epilog=EXIT_STATUS)
def dump(
    paths: Paths,
    transactions: Annotated[
        bool, typer.Option("--transactions", "-t", help="Each transaction, not each batch.")
    ] = False,
    after: Annotated[int, typer.Option(min=-1, help="Begin after this id.")] = -1,
    limit: Annotated[int | None, typer.Option(min=0, help="End after so many rows.")] = None,
    as_json: Json = False,
) -> None:
    """Print every batch, or every transaction, as it lies in the files."""

    async def work() -> bool:
        width, left = line_width(), limit
        if not as_json:
            say(_TRANSACTION_HEADING if transactions else _BATCH_HEADING)
        async with aclosing(_dumped(paths, after, transactions)) as rows:
            async for fields, row in rows:
                if left == 0:
                    break
                if left is not None:
                    left -= 1
                if as_json:
                    say_json(fields)
                else:
                    say(fitted(row, width))
        return True

    judge(work())


_BATCH_HEADING = (
    f"{'partition':>9} {'offset':>12} {'first':>12} {'last':>12} {'session':>8} {'bytes':>9} {'crc':>8} commit time"
)
_TRANSACTION_HEADING = (
    f"{'partition':>9} {'id':>12} {'client':>10} {'generation':>10} {'sequence':>9} {'header':>11} data"
)


async def _dumped(
    paths: list[str], after: TransactionId, transactions: bool
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Each row, for machines and for people."""
    from polonaise.admin import files, segments

    for path in paths:
        for found in files.find(path):
            async with aclosing(segments.dump(found)) as batches:
                async for segment, offset, batch in batches:
                    if batch.last <= after:
                        continue
                    if not transactions:
                        yield _batch_row(segment, offset, batch)
                        continue
                    for tx in batch.transactions(after):
                        yield _transaction_row(tx)


def _batch_row(path: str, offset: int, batch: Batch) -> tuple[dict[str, Any], str]:
    fields = {
        "segment": path,
        "offset": offset,
        "partition": batch.partition,
        "first": batch.first,
        "last": batch.last,
        "session": batch.session,
        "generation": batch.generation,
        "commit_time": when(batch.commit_time_us),
        "bytes": batch.length,
        "data_bytes": batch.data_bytes,
        "registers_bytes": batch.registers_bytes,
        "crc": f"{batch.crc:08x}",
        "previous_crc": f"{batch.previous_crc:08x}",
    }
    row = f"{batch.partition:>9} {offset:>12} {batch.first:>12} {batch.last:>12} {batch.session:>8} {batch.length:>9} "
    return fields, row + f"{batch.crc:08x} {when(batch.commit_time_us)}"


def _transaction_row(tx: Transaction) -> tuple[dict[str, Any], str]:
    row = f"{tx.partition:>9} {tx.id:>12} {tx.client_id:>10} {tx.generation:>10} {tx.sequence:>9} {tx.header:>11} "
    return transaction_fields(tx), row + shown(tx.data)
