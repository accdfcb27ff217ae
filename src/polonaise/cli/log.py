"""The `polonaise log` commands: make a log, append to it, read and follow it, and print its health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.openlog import (
    Address,
    AnyPartitions,
    LogOption,
    OnePartition,
    OpenLog,
    Partitions,
    Timeout,
    on_log,
    with_log,
)
from polonaise.cli.output import (
    Json,
    data_fields,
    limited,
    print_each,
    print_table,
    say,
    say_either,
    say_json,
    say_row,
    shown,
    timestamp,
    transaction_fields,
)
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, DeadlineExceeded
from polonaise.redaction import redacted_address
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.logs import TimeLimit
    from polonaise.client.log import Log
    from polonaise.node.reasons import Condition
    from polonaise.terms import PartitionId, Transaction

log = typer.Typer(help="Append to a log, read it, and check its health.", no_args_is_help=True, epilog=EXIT_STATUS)

After = Annotated[int, Option(min=-1, help="Start after this id.")]
Limit = Annotated[int | None, Option(min=0, help="Print at most this many rows.")]
Follow = Annotated[bool, Option("--follow", "-f", help="Also print new transactions as they are committed.")]


@log.command(epilog=EXIT_STATUS)
@with_tls
def create(
    address: Annotated[str, Argument(metavar="LOG", help="embedded:PATH, for a new or an empty directory.")],
    partitions: Annotated[int | None, Option(min=1, metavar="NUMBER", help="Number of partitions. Default: 1.")] = None,
    storage: Annotated[
        int | None, Option(min=1, metavar="NUMBER", help="Storage directories (copies). Default: 1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an empty embedded log. Its numbers of partitions and of storage directories can't be changed later."""
    from polonaise.admin.logs import new_embedded_address

    async def do(log: Log) -> None:
        await log.high_water_mark(0)
        told, count = redacted_address(address), log.partition_count
        line = f"{told} is an empty log of {counted(count, 'partition')}"
        say_either({"log": told, "partitions": count}, line, as_json=as_json)

    with_log(new_embedded_address(address, partitions, storage), do, makes=True)


@log.command(epilog=EXIT_STATUS)
@with_tls
def append(
    arguments: Annotated[
        list[str] | None, Argument(metavar="[LOG] [BODY]", help="Address of the log, and the body.", show_default=False)
    ] = None,
    log_option: LogOption = None,
    partition: OnePartition = None,
    file: Annotated[str | None, Option(help="Append this file as one body; - for all of standard input.")] = None,
    header: Annotated[int, Option(help="Header of each transaction, an integer of 32 bits.")] = 0,
    write_lock: Annotated[list[str] | None, Option(metavar="NAME:ID", help="Lock to check and raise.")] = None,
    read_lock: Annotated[list[str] | None, Option(metavar="NAME:ID", help="Lock to check.")] = None,
    append_lock: Annotated[list[str] | None, Option(metavar="NAME:ID", help="Lock to raise without a check.")] = None,
    high_water_mark: Annotated[
        int | None, Option(help="Client high-water mark, which locks are judged by. Default: the committed one.")
    ] = None,
    expect: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="Refuse unless the register has this value.")
    ] = None,
    expect_absent: Annotated[list[str] | None, Option(metavar="KEY", help="Refuse if this register exists.")] = None,
    expect_position: Annotated[
        int | None, Option(min=0, max=2**63 - 1, help="Refuse unless the transaction gets this id.")
    ] = None,
    set_register: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Also set this register.")
    ] = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Append one transaction with the given body or file, or one for each line of standard input.

    Prints the partition and the id of each transaction once it is committed. A line ends with LF or CR LF, and a byte
    order mark at the beginning is no part of the first one; all other bytes are the body. Lines are sent without
    waiting; with locks or expectations each waits for the one before it. The command ends at the first append that
    fails. Lines after it may be in the log by then, unless they had to wait. An embedded log that does not exist is
    made.
    """
    from polonaise.admin import logs
    from polonaise.client.protocol.draft import Change, Expectation
    from polonaise.terms import LockMode

    address, body = inputs.address_and_data(arguments or [], log_option)
    if body is not None and file is not None:
        raise BadOption("both a body and --file: give only one of them")
    if body is not None:
        bodies = inputs.one_body(inputs.bytes_of(body))
    elif file is not None:
        bodies = inputs.whole(file)
    elif high_water_mark is not None or expect_position is not None:
        raise BadOption("--high-water-mark and --expect-position are for one transaction: give its body, or --file")
    else:
        bodies = inputs.lines()
    lock_options = ((write_lock, LockMode.WRITE), (read_lock, LockMode.READ), (append_lock, LockMode.APPEND))
    locks = [inputs.lock_of(text, mode) for texts, mode in lock_options for text in texts or ()]
    expectations = [Expectation.equals(*inputs.register_of(text)) for text in expect or ()]
    expectations += [Expectation.absent(inputs.bytes_of(key)) for key in expect_absent or ()]
    if expect_position is not None:
        expectations.append(Expectation.position(expect_position))
    changes = [Change.set(*inputs.register_of(text)) for text in set_register or ()]
    limit = logs.TimeLimit(timeout)

    async def do(log: Log) -> None:
        if partition is None and log.partition_count != 1:
            raise BadOption(f"which of {log.partition_count} partitions? Choose one with --partition")
        (chosen,) = partitions_named(str(partition or 0), log.partition_count, log.topic)
        how = logs.HowToAppend(chosen, header, locks, expectations, changes, high_water_mark, limit)
        async with aclosing(logs.append(log, bodies, how)) as receipts:
            async for receipt in receipts:
                fields = {"partition": receipt.partition, "transaction_id": receipt.id}
                say_either(fields, f"{receipt.partition} {receipt.id}", as_json=as_json, now=True)

    with_log(address, do, makes=True, limit=limit)


@log.command(epilog=EXIT_STATUS)
@with_tls
def read(
    argument: Address = None,
    log_option: LogOption = None,
    partition: Partitions = None,
    after: After = -1,
    until: Annotated[int | None, Option(min=0, help="End with this id.")] = None,
    since: Annotated[
        str | None, Option(help="Start at this commit time: 2026-01-31T12:00:00Z, or how long ago: 90s, 10m, 2h, 3d.")
    ] = None,
    limit: Limit = None,
    follow: Follow = False,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print transactions from the beginning of the log, from an id on, or from a time on.

    Prints one partition after the other; with --follow those of several partitions as they arrive. A body that is not
    text is printed in hexadecimal; with --json it is in `data_base64` instead of `data`.
    """
    from polonaise.admin import logs

    since_time = inputs.time_of(since) if since is not None else None
    if since_time is not None and (after != -1 or until is not None):
        raise BadOption("--since can't be combined with --after or --until: start at a time or at an id")
    wait = logs.TimeLimit(timeout)
    reading = partial(logs.read, after=after, until=until, since=since_time, follow=follow, limit=wait)
    _print_transactions(
        inputs.address_of(argument, log_option), partition, reading, limit, wait, now=follow, as_json=as_json
    )


@log.command(epilog=EXIT_STATUS)
@with_tls
def tail(
    argument: Address = None,
    log_option: LogOption = None,
    partition: Partitions = None,
    count: Annotated[int, Option("--count", "-n", min=0, help="Number of transactions of each partition.")] = 10,
    limit: Limit = None,
    follow: Follow = False,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the last transactions, and with --follow also new ones as they are committed."""
    from polonaise.admin import logs

    wait = logs.TimeLimit(timeout)
    reading = partial(logs.tail, count=count, follow=follow, limit=wait)
    _print_transactions(
        inputs.address_of(argument, log_option), partition, reading, limit, wait, now=follow, as_json=as_json
    )


@log.command("high-water-mark", epilog=EXIT_STATUS)
@on_log
async def high_water_mark(opened: OpenLog, partition: AnyPartitions = "all") -> None:
    """Print the committed high-water mark of each partition; -1 for an empty one."""
    marks = await opened.log.high_water_marks(opened.partitions(partition), timeout=opened.limit.left_s())
    names = ("partition", "committed_high_water_mark")
    print_each(
        marks.items(), lambda each: dict(zip(names, each, strict=True)), ["partition", "committed high-water mark"],
        right=(0, 1), as_json=opened.as_json,
    )  # fmt: skip


@log.command(epilog=EXIT_STATUS)
@on_log
async def registers(
    opened: OpenLog,
    partition: AnyPartitions = "all",
    prefix: Annotated[str, Option("--prefix", metavar="TEXT", help="Only keys that begin with this text.")] = "",
) -> None:
    """Print the registers of each partition, and who keeps each: the application, or a part of the library."""
    from polonaise.admin import logs

    partitions = opened.partitions(partition)
    if not opened.as_json:
        say(f"{'partition':>9} {'kept by':<15} key = value")
    async with aclosing(logs.registers(opened.log, partitions, inputs.bytes_of(prefix), opened.limit)) as registers:
        async for register in registers:
            if opened.as_json:
                fields = {**data_fields(register.key, "key"), **data_fields(register.value, "value")}
                say_json({"partition": register.partition, **fields, "of": register.keeper})
            else:
                keeper = register.keeper or "the application"
                say_row(f"{register.partition:>9} {keeper:<15} {shown(register.key)} = {shown(register.value)}")


@log.command(epilog=EXIT_STATUS)
@on_log
async def health(opened: OpenLog, partition: AnyPartitions = "all") -> None:
    """Print the health of each partition: whether it is ready, which storage nodes are engaged, and what is wrong.

    Below that it says what is wrong with the servers as a whole.

    Exit status 1 unless all are ready; 3 if all are ready but something is wrong: one more loss may be too many.
    """
    from polonaise.admin import logs
    from polonaise.node.condition import HealthStatus, health_status_of

    silence: list[DeadlineExceeded] = []
    conditions = await logs.conditions(
        opened.log, opened.partitions(partition), opened.limit.left_s(), lambda _, error: silence.append(error)
    )
    if opened.as_json:
        for condition in conditions:
            say_json(condition._asdict())
    elif conditions:
        _print_health(conditions)
    if silence:
        raise silence[0]
    match health_status_of(conditions):
        case HealthStatus.NOT_READY:
            raise typer.Exit(ExitStatus.FAILED)
        case HealthStatus.DEGRADED:
            raise typer.Exit(ExitStatus.DEGRADED)


def _print_health(conditions: list[Condition]) -> None:
    rows = [
        (
            each.partition,
            "ready" if each.ready else "NOT READY",
            "unknown" if each.committed_high_water_mark is None else each.committed_high_water_mark,
            ", ".join(each.engaged),
            each.troubles,
        )
        for each in conditions
    ]
    print_table(["partition", "state", "committed up to", "engaged storage nodes", "problems"], rows, right=(0, 2))
    for server, troubles in {each.server: each.server_troubles for each in conditions}.items():
        for line in troubles:
            say(f"server {server}: {line}")
    for node, scrub in {node: scrub for each in conditions for node, scrub in each.scrub.items()}.items():
        say(f"scrub of {node}: {progress_of(scrub)}")
    for server, fragments_scrub in {each.server: each.fragments_scrub for each in conditions}.items():
        if fragments_scrub is not None:
            say(f"scrub of fragments by server {server}: {progress_of(fragments_scrub, 'fragment')}")


_PROGRESS: Final = ("rounds", "started_us", "finished_us", "bytes", "found", "repaired")


def progress_of(scrub: dict[str, Any], unit: str = "partition") -> str:
    """Describe how far a scrub is, in `unit`s (partitions, or fragments), and what it has found."""
    if scrub.get("bytes_per_s") == 0:
        return f"switched off ({'server' if unit == 'fragment' else 'storage'} run --scrub-bytes)"
    if not {*_PROGRESS, f"{unit}s", f"{unit}s_of"} <= scrub.keys():
        return "not understood: the node may be of another version"
    last_round = f"last round ended {timestamp(scrub['finished_us'])}" if scrub["rounds"] else "no round has ended yet"
    current_round = ""
    if scrub["started_us"] > scrub["finished_us"]:
        bytes_read, total = counted(scrub["bytes"], "byte"), counted(scrub[f"{unit}s_of"], unit)
        current_round = f"; current round: {bytes_read} read, {scrub[f'{unit}s']:,} of {total} done"
    damages = f"; {counted(scrub['found'], 'damage')} found, {scrub['repaired']:,} repaired" if scrub["found"] else ""
    return f"{last_round}{current_round}{damages}"


def _print_transactions(
    address: str,
    partition: str | None,
    reading: Callable[[Log, list[PartitionId]], AsyncGenerator[Transaction, None]],
    limit: int | None,
    wait: TimeLimit,
    *,
    now: bool,
    as_json: bool,
) -> None:

    async def do(log: Log) -> None:
        partitions = partitions_named(partition, log.partition_count, log.topic)
        heading = f"{'partition':>9} {'id':>12} {'commit time':<27} {'header':>11} data"
        async with aclosing(limited(reading(log, partitions), limit)) as transactions:
            async for tx in transactions:
                if as_json:
                    say_json(transaction_fields(tx), now=now)
                    continue
                if heading:
                    say(heading)
                    heading = ""
                row = f"{tx.partition:>9} {tx.id:>12} {timestamp(tx.commit_time_us):<27} {tx.header:>11} "
                say_row(row + shown(tx.data), now=now)

    with_log(address, do, limit=wait)
