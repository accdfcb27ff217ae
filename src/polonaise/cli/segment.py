"""The `polonaise segment` commands: look at a storage node's files without the node.

They change nothing and take no lock, so the node may be running.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
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
from polonaise.errors import BadOption, UnknownPartition

if TYPE_CHECKING:
    from polonaise.admin.comparison import ComparisonReport, ReplicaReport
    from polonaise.admin.segments import PartitionReport, SegmentDamage, SegmentReport
    from polonaise.errors import SegmentDamaged
    from polonaise.log.batch import Batch
    from polonaise.storage.files import Files
    from polonaise.terms import PartitionId, Transaction, TransactionId

segment = typer.Typer(
    help="Look at segment files. Nothing is changed; nodes may be running.", no_args_is_help=True, epilog=EXIT_STATUS
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH…", help="A storage directory, one partition's directory in it, or segment files."),
]


async def _reports(paths: list[str]) -> list[PartitionReport]:
    from polonaise.admin import segments
    from polonaise.storage import files

    return [await segments.verify(found) for path in paths for found in files.find(path)]


@segment.command(epilog=EXIT_STATUS)
def verify(paths: Paths, as_json: Json = False) -> None:
    """Check that everything is as it was written. Exit status 1, and the first damaged offset and id, if it is not.

    Checks every CRC, the chain of batches and segments, and against the control file that nothing is missing. An
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


def _told(damage: SegmentDamage) -> str:
    return f"DAMAGED from transaction {damage.transaction} on: {damage.path} at offset {damage.offset}: {damage.what}"


@segment.command(epilog=EXIT_STATUS)
def statistics(paths: Paths, as_json: Json = False) -> None:
    """Print how much is in each segment. Exit status 1 if one is damaged: that one is counted up to the damage."""

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
    after_damage: Annotated[
        bool, typer.Option("--after-damage", help="Go on behind damage, with what is intact by itself.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print every batch, or every transaction, as it lies in the files. Ends with exit status 1 at the first damage.

    With --after-damage it goes on behind damage, still with exit status 1, and marks each row from there on. Such a row
    is whole by itself. What lay between is lost here, and this file can't prove that the row was committed.
    """
    damages: list[SegmentDamaged] = []

    def damaged(error: SegmentDamaged) -> None:
        damages.append(error)
        typer.echo(f"DAMAGED: {error.text}. What is intact behind it follows, marked", err=True)

    async def work() -> bool:
        width, left = line_width(), limit
        if not as_json:
            say(_TRANSACTION_HEADING if transactions else _BATCH_HEADING)
        async with aclosing(_dumped(paths, after, transactions, damaged if after_damage else None)) as rows:
            async for fields, row in rows:
                if left == 0:
                    break
                if left is not None:
                    left -= 1
                if as_json:
                    say_json(fields)
                else:
                    say(fitted(row, width))
        return not damages

    judge(work())


@segment.command(epilog=EXIT_STATUS)
def read(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="A storage directory: one replica of the log.")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Needed unless there is only one.")
    ] = None,
    after: Annotated[int, typer.Option(min=-1, help="Begin after this id.")] = -1,
    limit: Annotated[int | None, typer.Option(min=0, help="End after so many transactions.")] = None,
    as_json: Json = False,
) -> None:
    """Print the transactions of one replica, without a cluster, to decide what can be saved.

    One replica does not know all that is committed. Each transaction is marked as committed, unproved (it was written
    here, and may never have been committed) or untrusted (its node would cut it); standard error says where these
    begin. Ends with exit status 1 at the first damage.
    """
    from polonaise.admin import segments
    from polonaise.storage import files, offline

    async def work() -> bool:
        found = _one_of(files.find(directory), directory, partition)
        bounds = offline.bounds_in(found)
        begin = files.trimmed_in(found).first
        typer.echo(offline.caution(found.partition, directory, bounds, begin), err=True)
        width, left = line_width(), limit
        if not as_json:
            say(f"{'partition':>9} {'id':>12} {'standing':<9} {'commit time':<27} {'header':>11} data")
        async with aclosing(segments.read(found, after)) as transactions:
            async for tx in transactions:
                if left == 0:
                    break
                left = None if left is None else left - 1
                standing = bounds.standing_of(tx.id).value
                if as_json:
                    say_json({**transaction_fields(tx), "standing": standing})
                else:
                    row = f"{tx.partition:>9} {tx.id:>12} {standing:<9} {when(tx.commit_time_us):<27} {tx.header:>11} "
                    say(fitted(row + shown(tx.data), width))
        return True

    judge(work())


@segment.command(epilog=EXIT_STATUS)
def compare(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIRECTORY DIRECTORY…", help="Storage directories: replicas of one log.")
    ],
    as_json: Json = False,
) -> None:
    """Print up to where replicas are the same and which holds more, to decide between them.

    Exit status 1 if one is damaged, or if two know different transactions to be committed under the same ids. It is no
    fault if one is behind, or if two differ where neither knows what is committed.
    """
    from polonaise.admin.comparison import compare as compared

    async def work() -> bool:
        reports = await compared(directories)
        for report in reports:
            if as_json:
                say_json(_comparison_fields(report))
        if not as_json:
            columns = ["partition", "replica", "first", "last", "committed", "session", "what it says"]
            rows = [_replica_row(report.partition, each) for report in reports for each in report.replicas]
            print_table(columns, rows, right=(0, 2, 3, 4, 5))
            for report in reports:
                say(_told_of(report))
        return all(report.well for report in reports)

    judge(work())


def _replica_row(partition: PartitionId, each: ReplicaReport) -> list[object]:
    said = [each.damage] if each.damage else []
    if each.bounds.lost is not None:
        said.append(f"it may have lost what was above {each.bounds.lost}")
    if each.bounds.trusted is not None:
        said.append(f"it does not trust what it holds above {each.bounds.trusted}")
    return [
        partition, each.directory, each.first, each.last, each.bounds.confirmed, each.joined, "; ".join(said),
    ]  # fmt: skip


def _told_of(report: ComparisonReport) -> str:
    """Describe what the replicas of a partition have in common, in one line for people."""
    told = f"partition {report.partition}: "
    if len(report.replicas) < 2:
        return told + "only one of these holds it"
    if all(each.last < each.first for each in report.replicas):
        return told + "none of these holds anything of it"
    if report.difference is None:
        told += f"the same up to {report.same}"
        for each in report.replicas:
            if each.last < report.same:
                told += f", of which {each.directory} has only what is up to {each.last}"
        ahead = [each for each in report.replicas if each.last > report.same]
        for each in ahead:
            told += f"; {each.directory}{' alone' if len(ahead) == 1 else ''} goes on to {each.last}"
        return told
    sides = "; ".join(" and ".join(side) for side in report.difference.sides)
    told += f"the same up to {report.difference.first - 1}; from {report.difference.first} on they differ: {sides}"
    return told + (f". CONTRADICTION: {report.contradiction}" if report.contradiction else "")


def _comparison_fields(report: ComparisonReport) -> dict[str, Any]:
    return {
        "partition": report.partition,
        "same": report.same,
        "differs_from": None if report.difference is None else report.difference.first,
        "sides": None if report.difference is None else [list(side) for side in report.difference.sides],
        "contradiction": report.contradiction,
        "replicas": [
            {
                "directory": each.directory,
                "first": each.first,
                "last": each.last,
                "committed": each.bounds.confirmed,
                "untrusted_above": each.bounds.trusted,
                "lost_above": each.bounds.lost,
                "joined": each.joined,
                "damage": each.damage,
            }
            for each in report.replicas
        ],
    }


def _one_of(found: list[Files], directory: str, partition: PartitionId | None) -> Files:
    if partition is None and len(found) == 1:
        return found[0]
    there = ", ".join(str(each.partition) for each in found) or "none"
    if partition is None:
        raise BadOption(f"which partition? {directory} has {there}: say --partition with one of them")
    for each in found:
        if each.partition == partition:
            return each
    raise UnknownPartition(f"partition {partition}: {directory} has {there}")


_BATCH_HEADING = (
    f"{'partition':>9} {'offset':>12} {'first':>12} {'last':>12} {'session':>8} {'bytes':>9} {'crc':>8} commit time"
)
_TRANSACTION_HEADING = (
    f"{'partition':>9} {'id':>12} {'client':>10} {'generation':>10} {'sequence':>9} {'header':>11} data"
)


async def _dumped(
    paths: list[str], after: TransactionId, transactions: bool, damaged: Callable[[SegmentDamaged], None] | None
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield each row as JSON fields and as text. With `damaged`, which is called for each damage, go on behind it."""
    from polonaise.storage import files, offline

    for path in paths:
        for found in files.find(path):
            async with aclosing(offline.dump(found, damaged)) as batches:
                async for each in batches:
                    if each.batch.last <= after:
                        continue
                    made = [_batch_row(each.path, each.offset, each.batch)]
                    if transactions:
                        made = [_transaction_row(tx) for tx in each.batch.transactions(after, own=True)]
                    for fields, row in made:
                        if each.behind_damage:
                            yield {**fields, "behind_damage": True}, f"{row} BEHIND DAMAGE"
                        else:
                            yield fields, row


def _batch_row(path: str, offset: int, batch: Batch) -> tuple[dict[str, Any], str]:
    fields = {
        "segment": path,
        "offset": offset,
        "partition": batch.partition,
        "first": batch.first,
        "last": batch.last,
        "session": batch.session,
        "generation": batch.generation,
        "timestamp": when(batch.commit_time_us),
        "bytes": batch.length,
        "data_bytes": batch.data_bytes,
        "registers_bytes": batch.registers_bytes,
        "crc": f"{batch.crc:08x}",
        "previous_crc": f"{batch.previous_crc:08x}",
    }
    row = f"{batch.partition:>9} {offset:>12} {batch.first:>12} {batch.last:>12} {batch.session:>8} {batch.length:>9} "
    return fields, row + f"{batch.crc:08x} {when(batch.commit_time_us)}"


def _transaction_row(tx: Transaction) -> tuple[dict[str, Any], str]:
    generation = tx.request_id.generation
    row = f"{tx.partition:>9} {tx.id:>12} {tx.client_id:>10} {generation:>10} {tx.sequence:>9} {tx.header:>11} "
    return transaction_fields(tx), row + ("(the log's own) " if tx.own else "") + shown(tx.data)
