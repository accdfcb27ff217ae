"""`polonaise archive …`: sealed history as Parquet files in an object store."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from polonaise.cli.log import EXIT_STATUS, Json, with_log
from polonaise.cli.output import judge, print_table, say, say_json

if TYPE_CHECKING:
    from polonaise.client.log import Log

archive = typer.Typer(
    help="Keep a log's history as Parquet files in an object store.", no_args_is_help=True, epilog=EXIT_STATUS
)

Store = Annotated[str, typer.Argument(metavar="STORE", help="A directory, or s3://…, gs://…, az://….")]


@archive.command(epilog=EXIT_STATUS)
def run(
    address: Annotated[str, typer.Argument(metavar="LOG", help="file:PATH or embedded:PATH.")],
    store: Store,
    partition: Annotated[str, typer.Option("--partition", "-p", help="all, 3, or 0-6,9.")] = "all",
    fragment_mib: Annotated[int, typer.Option(min=1, max=1024, help="A fragment holds so much of the log.")] = 256,
    rest: Annotated[bool, typer.Option("--rest", help="Also what does not fill a fragment yet.")] = False,
    as_json: Json = False,
) -> None:
    """Write what is committed and not archived yet; prints each fragment once it is stored and verified.

    May be killed, and run again, at any time, also by several at once: nothing is archived twice that is not the same.
    """
    from polonaise.admin import archive as archives
    from polonaise.admin import logs
    from polonaise.fragments.store import open_store

    opened = open_store(store)

    async def work(log: Log) -> None:
        for number in logs.partitions_named(partition, log.partition_count):
            writing = archives.archive(log, opened, number, fragment_bytes=fragment_mib * 1024 * 1024, rest=rest)
            async with aclosing(writing) as written:
                async for name, size in written:
                    if as_json:
                        say_json({**name._asdict(), "path": name.path, "bytes": size}, now=True)
                    else:
                        say(f"{name.path} {size:,} bytes", now=True)

    with_log(address, work)


@archive.command(epilog=EXIT_STATUS)
def trim(
    address: Annotated[str, typer.Argument(metavar="LOG", help="file:PATH or embedded:PATH.")],
    store: Store,
    partition: Annotated[str, typer.Option("--partition", "-p", help="all, 3, or 0-6,9.")] = "all",
    before: Annotated[
        int | None, typer.Option(min=1, help="Keep this transaction and all after it; without, what is not archived.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Drop archived history from the storage nodes, for good: whole segments, once every fragment is verified.

    It is read through the servers from the fragments then, so they must know the store (server run --fragments).
    """
    from polonaise.admin import logs, trimming
    from polonaise.fragments.store import open_store

    opened = open_store(store)

    async def work(log: Log) -> None:
        for number in logs.partitions_named(partition, log.partition_count):
            first = await trimming.trim(log, opened, number, before=before)
            if as_json:
                say_json({"partition": number, "first": first}, now=True)
            else:
                say(f"partition {number}: the storage nodes hold {first:,} and all after it", now=True)

    with_log(address, work)


@archive.command(epilog=EXIT_STATUS)
def verify(store: Store, as_json: Json = False) -> None:
    """Is every fragment as it was written, and is anything missing between them? Exit status 1 if it is not well."""
    from polonaise.admin import archive as archives
    from polonaise.fragments.store import open_store

    opened = open_store(store)

    async def work() -> bool:
        reports = [await archives.verify(opened, number) for number in await archives.partitions_in(opened)]
        rows = []
        for report in reports:
            fields = {
                "partition": report.partition,
                "fragments": report.fragments,
                "transactions": report.transactions,
                "bytes": report.bytes,
                "last": report.last,
            }
            if as_json:
                say_json({**fields, "wrong": report.troubles})
            else:
                rows.append([*(f"{value:,}" for value in fields.values()), "\n".join(report.troubles) or "well"])
        if not as_json:
            columns = ["partition", "fragments", "transactions", "bytes", "whole up to", "verdict"]
            print_table(columns, rows, right=(0, 1, 2, 3, 4))
        return not any(report.troubles for report in reports)

    judge(work())
