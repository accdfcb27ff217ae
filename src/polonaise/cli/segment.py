"""The `polonaise segment` commands: look at a storage node's files without the node, which may be running."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.log import After, Limit
from polonaise.cli.openlog import OnePartition
from polonaise.cli.output import (
    Json,
    judge,
    limited,
    print_each,
    print_table,
    say,
    say_json,
    say_row,
    shown,
    timestamp,
    transaction_fields,
)
from polonaise.errors import BadOption, UnknownPartition
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.comparison import ComparisonReport, ReplicaReport
    from polonaise.admin.segments import PartitionReport, SegmentReport
    from polonaise.errors import SegmentDamaged
    from polonaise.log.batch import Batch
    from polonaise.storage.files import ControlRecord, Files
    from polonaise.terms import PartitionId, Transaction, TransactionId

segment = typer.Typer(
    help="Examine segment files without changing them; nodes may be running.",
    no_args_is_help=True,
    epilog=EXIT_STATUS,
)

Paths = Annotated[
    list[str], Argument(metavar="PATH…", help="Storage directories, partitions in them, or segment files.")
]


async def _reports(paths: list[str]) -> list[PartitionReport]:
    from polonaise.admin import segments
    from polonaise.storage import files

    return [await segments.verify(replica) for path in paths for replica in files.find(path)]


@segment.command(epilog=EXIT_STATUS)
def verify(paths: Paths, as_json: Json = False) -> None:
    """Check that files are as they were written. If not, prints the first damaged offset and id; exit status 1.

    Checks every CRC, the chain of batches and segments, and against the control file that nothing is missing. An
    unfinished write at the end is no damage: it was never acknowledged.
    """

    async def work() -> bool:
        reports = await _reports(paths)
        columns = ["partition", "segments", "last id", "verdict"]
        print_each(reports, _verdict_fields, columns, _verdict_row, right=(0, 1, 2), as_json=as_json)
        return not any(report.damages for report in reports)

    judge(work())


def _verdict_fields(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.partition,
        "segments": len(report.segments),
        "last": report.last,
        "unsynced_bytes": sum(each.unsynced_bytes for each in report.segments),
        "damages": [damage._asdict() for damage in report.damages],
    }


def _verdict_row(report: PartitionReport) -> list[object]:
    unsynced = sum(each.unsynced_bytes for each in report.segments)
    verdict = "good" if not unsynced else f"good; {counted(unsynced, 'byte')} of an unfinished write at its end"
    if report.damages:
        damage = report.damages[0]
        verdict = (
            f"DAMAGED from transaction {damage.transaction} on: {damage.path} at offset {damage.offset}: {damage.what}"
        )
        if len(report.damages) > 1:
            verdict += f" (and {len(report.damages) - 1} more)"
    partition = "?" if report.partition is None else report.partition
    return [partition, len(report.segments), report.last, verdict]


@segment.command(epilog=EXIT_STATUS)
def statistics(paths: Paths, as_json: Json = False) -> None:
    """Print how much is in each segment. A damaged one is counted up to the damage; exit status 1."""

    async def work() -> bool:
        reports = await _reports(paths)
        segments = [segment for report in reports for segment in report.segments]
        columns = ["segment", "part.", "first", "last", "batches", "transactions", "bytes", "data", "sessions"]
        columns += ["first commit", "last commit"]
        print_each(segments, _statistics_fields, columns, _statistics_row, right=range(1, 9), as_json=as_json)
        return not any(report.damages for report in reports)

    judge(work())


def _statistics_fields(report: SegmentReport) -> dict[str, Any]:
    return asdict(report) | {"damage": report.damage._asdict() if report.damage else None}


def _statistics_row(report: SegmentReport) -> list[object]:
    partition = "?" if report.partition is None else report.partition
    times = [timestamp(us) if us else "-" for us in (report.first_commit_time_us, report.last_commit_time_us)]
    counts = [report.batches, report.transactions, report.bytes, report.data_bytes, report.sessions]
    return [report.path, partition, report.first, report.last, *counts, *times]


@segment.command(epilog=EXIT_STATUS)
def dump(
    paths: Paths,
    transactions: Annotated[bool, Option("--transactions", "-t", help="Print transactions, not batches.")] = False,
    after: After = -1,
    limit: Limit = None,
    after_damage: Annotated[
        bool, Option("--after-damage", help="Continue behind damage, with intact batches.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print every batch, or every transaction, of the files. Ends with exit status 1 at the first damage.

    With --after-damage it continues behind damage, still with exit status 1, and marks the rows between the damage and
    the end of that file: a marked row is whole by itself, but rows before it may be lost here, and the file can't prove
    that it was committed. Rows of the next file are read and checked anew, and are not marked.
    """
    damages: list[SegmentDamaged] = []

    def damaged(error: SegmentDamaged) -> None:
        damages.append(error)
        typer.echo(f"DAMAGED: {error.text}. Rows that are intact behind it follow, and are marked", err=True)

    async def work() -> bool:
        if not as_json:
            say(_TRANSACTION_HEADING if transactions else _BATCH_HEADING)
        dumped = _dumped(paths, after, transactions, damaged if after_damage else None)
        async with aclosing(limited(dumped, limit)) as rows:
            async for fields, row in rows:
                if as_json:
                    say_json(fields)
                else:
                    say_row(row)
        return not damages

    judge(work())


@segment.command(epilog=EXIT_STATUS)
def read(
    directory: Annotated[str, Argument(metavar="DIRECTORY", help="A storage directory: one replica of the log.")],
    partition: OnePartition = None,
    after: After = -1,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Print the transactions of one replica, without a cluster, to decide what can be saved.

    One replica does not know all that is committed. The column `standing` says of each transaction whether it is
    committed, unproved (written here, and perhaps never committed) or untrusted (its node would cut it); standard error
    says where these begin. Ends with exit status 1 at the first damage.
    """
    from polonaise.admin import segments
    from polonaise.storage import files, offline

    async def work() -> bool:
        replica = _one_of(files.find(directory), directory, partition)
        bounds = offline.bounds_in(replica)
        first = files.trimmed_in(replica).first
        typer.echo(offline.caution(replica.partition, directory, bounds, first), err=True)
        if not as_json:
            say(f"{'partition':>9} {'id':>12} {'standing':<9} {'commit time':<27} {'header':>11} data")
        async with aclosing(limited(segments.read(replica, after), limit)) as transactions:
            async for tx in transactions:
                standing = bounds.standing_of(tx.id).value
                if as_json:
                    say_json({**transaction_fields(tx), "standing": standing})
                else:
                    row = f"{tx.partition:>9} {tx.id:>12} {standing:<9} {timestamp(tx.commit_time_us):<27} "
                    say_row(f"{row}{tx.header:>11} {shown(tx.data)}")
        return True

    judge(work())


@segment.command(epilog=EXIT_STATUS)
def compare(
    directories: Annotated[
        list[str], Argument(metavar="DIRECTORY DIRECTORY…", help="Storage directories: replicas of one log.")
    ],
    as_json: Json = False,
) -> None:
    """Compare replicas: print up to which id they are the same, and which holds more, to decide between them.

    Exit status 1 if one is damaged, or if two know different transactions to be committed under the same ids. A replica
    may be behind, and two may differ where neither knows what is committed.
    """
    from polonaise.admin.comparison import compare as compared

    async def work() -> bool:
        reports = await compared(directories)
        for report in reports:
            if as_json:
                say_json(_comparison_fields(report))
        if not as_json:
            columns = ["partition", "replica", "node", "first", "last", "committed up to", "session", "problems"]
            rows = [_replica_row(report.partition, replica) for report in reports for replica in report.replicas]
            print_table(columns, rows, right=(0, 3, 4, 5, 6))
            for report in reports:
                say(_comparison_in_words(report))
        return all(report.well for report in reports)

    judge(work())


@segment.command(epilog=EXIT_STATUS)
def promises(paths: Paths, as_json: Json = False) -> None:
    """Print what a storage node has promised for each partition, as its control file says.

    The fence is the largest session that it was told of; it has joined a session once it was made clean for it, and
    held ids up to the prepared mark then. Up to the confirmed mark its copy is certainly the log. Exit status 1 if a
    copy may have lost ids, or holds bytes that must not be believed.
    """
    from polonaise.storage.files import find, record_in

    async def work() -> bool:
        records = [(each, record_in(each)) for path in paths for each in find(path)]
        fields = [_promise_fields(replica, record) for replica, record in records]
        print_each(fields, dict, _PROMISES, _promise_row, right=range(1, len(_PROMISES) - 1), as_json=as_json)
        return all(each["lost_above"] is None and each["untrusted_above"] is None for each in fields)

    judge(work())


_PROMISES = ["directory", "partition", "fence", "joined", "prepared", "confirmed", "synced up to", "first", "problems"]


def _promise_fields(replica: Files, record: ControlRecord) -> dict[str, Any]:
    promises, evidence = record.promises, record.evidence
    return {
        "directory": replica.directory,
        "partition": replica.partition,
        "cluster": record.cluster_key.hex(),
        "fence": promises.fence,
        "joined": promises.joined,
        "prepared": promises.prepared,
        "confirmed": promises.confirmed,
        "lost_above": promises.lost_above if promises.may_have_lost else None,
        "untrusted_above": promises.untrusted_above if promises.untrusted else None,
        "synced": evidence.last,
        "synced_segment": evidence.segment_first,
        "synced_offset": evidence.offset,
        "first": record.trimmed.first,
    }


def _promise_row(fields: dict[str, Any]) -> list[object]:
    names = ("directory", "partition", "fence", "joined", "prepared", "confirmed", "synced", "first")
    return [*(fields[name] for name in names), _doubts(fields["lost_above"], fields["untrusted_above"])]


def _doubts(lost_above: TransactionId | None, untrusted_above: TransactionId | None) -> list[str]:
    doubts = [] if lost_above is None else [f"may have lost what was above {lost_above}"]
    return doubts if untrusted_above is None else [*doubts, f"does not trust what it holds above {untrusted_above}"]


def _replica_row(partition: PartitionId, replica: ReplicaReport) -> list[object]:
    bounds = replica.bounds
    damage = [replica.damage] if replica.damage else []
    problems = [*damage, *_doubts(bounds.lost, bounds.trusted)]
    return [
        partition, replica.directory, replica.node or "-",
        replica.first, replica.last, bounds.confirmed, replica.joined, problems,
    ]  # fmt: skip


def _comparison_in_words(report: ComparisonReport) -> str:
    sentence = f"partition {report.partition}: "
    if len(report.replicas) < 2:
        return sentence + "only one of these directories holds it"
    if all(replica.last < replica.first for replica in report.replicas):
        return sentence + "none of these directories holds any transaction of it"
    if report.difference is None:
        sentence += f"the same up to {report.same}"
        for replica in report.replicas:
            if replica.last < report.same:
                sentence += f", but {replica.directory} ends at {replica.last}"
        ahead = [replica for replica in report.replicas if replica.last > report.same]
        for replica in ahead:
            sentence += f"; {'only ' if len(ahead) == 1 else ''}{replica.directory} goes on to {replica.last}"
        return sentence
    first = report.difference.first
    sides = "; ".join(" and ".join(side) for side in report.difference.sides)
    sentence += f"the same up to {first - 1}; different from {first} on: {sides}"
    return sentence + (f". CONTRADICTION: {report.contradiction}" if report.contradiction else "")


def _comparison_fields(report: ComparisonReport) -> dict[str, Any]:
    return {
        "partition": report.partition,
        "same": report.same,
        "differs_from": None if report.difference is None else report.difference.first,
        "sides": None if report.difference is None else [list(side) for side in report.difference.sides],
        "contradiction": report.contradiction,
        "replicas": [
            {
                "directory": replica.directory,
                "node": replica.node or None,
                "first": replica.first,
                "last": replica.last,
                "committed": replica.bounds.confirmed,
                "untrusted_above": replica.bounds.trusted,
                "lost_above": replica.bounds.lost,
                "joined": replica.joined,
                "damage": replica.damage,
            }
            for replica in report.replicas
        ],
    }


def _one_of(replicas: list[Files], directory: str, partition: PartitionId | None) -> Files:
    """Return the files of the partition, or of the only one. Raises `BadOption` and `UnknownPartition`."""
    if partition is None and len(replicas) == 1:
        return replicas[0]
    partitions = ", ".join(str(replica.partition) for replica in replicas) or "none"
    if partition is None:
        raise BadOption(f"which partition? {directory} has {partitions}: choose one with --partition")
    for replica in replicas:
        if replica.partition == partition:
            return replica
    raise UnknownPartition(f"no partition {partition} in {directory}: it has {partitions}")


_BATCH_HEADING = (
    f"{'partition':>9} {'offset':>12} {'first':>12} {'last':>12} {'session':>8} {'bytes':>9} {'crc':>8} commit time"
)
_TRANSACTION_HEADING = (
    f"{'partition':>9} {'id':>12} {'client':>10} {'generation':>10} {'sequence':>16} {'header':>11} data"
)


async def _dumped(
    paths: list[str], after: TransactionId, transactions: bool, damaged: Callable[[SegmentDamaged], None] | None
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield each row as JSON fields and as text. With `damaged`, which is called for each damage, go on behind it."""
    from polonaise.storage import files, offline

    for replica in (replica for path in paths for replica in files.find(path)):
        async with aclosing(offline.dump(replica, damaged)) as batches:
            async for each in batches:
                if each.batch.last <= after:
                    continue
                if transactions:
                    rows = [_transaction_row(tx) for tx in each.batch.transactions(after, own=True)]
                else:
                    rows = [_batch_row(each.path, each.offset, each.batch)]
                for fields, row in rows:
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
        "timestamp": timestamp(batch.commit_time_us),
        "bytes": batch.length,
        "data_bytes": batch.data_bytes,
        "registers_bytes": batch.registers_bytes,
        "crc": f"{batch.crc:08x}",
        "previous_crc": f"{batch.previous_crc:08x}",
    }
    row = f"{batch.partition:>9} {offset:>12} {batch.first:>12} {batch.last:>12} {batch.session:>8} {batch.length:>9} "
    return fields, row + f"{batch.crc:08x} {timestamp(batch.commit_time_us)}"


def _transaction_row(tx: Transaction) -> tuple[dict[str, Any], str]:
    generation = tx.request_id.generation
    row = f"{tx.partition:>9} {tx.id:>12} {tx.client_id:>10} {generation:>10} {tx.sequence:>16} {tx.header:>11} "
    return transaction_fields(tx), row + ("(the log's own) " if tx.own else "") + shown(tx.data)
