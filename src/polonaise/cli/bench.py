"""The `polonaise bench` commands: measure how fast clients append to a log, and follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.openlog import Address, AnyPartitions, LogOption, Timeout, check_there
from polonaise.cli.output import Json, print_table, say_json, tidy, while_read

if TYPE_CHECKING:
    from polonaise.admin.bench import Connect, Load, Measured

bench = typer.Typer(
    help="Measure how fast clients append to a log and follow it. Each appends transactions, which stay in the log.",
    no_args_is_help=True,
)

_TRANSACTIONS_MAX = 10_000_000
_CLIENTS_MAX = 1_000
Size = Annotated[int, Option("--size", "-s", min=16, help="Bytes of each body.")]
Interval = Annotated[
    float, Option(min=0.0, metavar="MILLISECONDS", help="Average pause of a producer between two appends.")
]
Outstanding = Annotated[int, Option(min=1, max=10_000, help="Appends of a producer whose fate is open at a time.")]
Seed = Annotated[int, Option(help="Seed of the locks and the pauses that are drawn.")]


@bench.command(epilog=EXIT_STATUS)
@with_tls
def producers(
    address: Address = None,
    log_option: LogOption = None,
    transactions: Annotated[
        int, Option("--transactions", "-n", min=1, max=_TRANSACTIONS_MAX, help="Transactions of each client.")
    ] = 1_000,
    clients: Annotated[int, Option("--clients", "-c", min=1, max=_CLIENTS_MAX, help="Clients that append.")] = 1,
    size: Size = 100,
    interval: Interval = 0.0,
    outstanding: Outstanding = 64,
    lock_pool: Annotated[
        int, Option(min=0, max=_TRANSACTIONS_MAX, help="Number of different locks; 0: appends without locks.")
    ] = 0,
    locks: Annotated[int, Option(min=1, max=100, help="WRITE locks of each transaction, if there is a pool.")] = 1,
    partition: AnyPartitions = "all",
    timeout: Timeout = 10.0,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Append with several clients at once: transactions a second, and the time from append to commit.

    With locks each transaction is a context, which runs again after a conflict. Exit status 1 if an append failed.
    """
    from polonaise.admin.bench import Load, bench_producers

    _measure(
        inputs.address_of(address, log_option),
        partition,
        lambda partitions: Load(
            transactions, clients, size, interval / 1000, outstanding, lock_pool, locks, partitions, timeout, seed
        ),
        bench_producers,
        as_json=as_json,
    )


@bench.command(epilog=EXIT_STATUS)
@with_tls
def consumers(
    address: Address = None,
    log_option: LogOption = None,
    transactions: Annotated[
        int, Option("--transactions", "-n", min=1, max=_TRANSACTIONS_MAX, help="Transactions that are appended.")
    ] = 1_000,
    clients: Annotated[int, Option("--clients", "-c", min=1, max=_CLIENTS_MAX, help="Clients that follow.")] = 1,
    size: Size = 100,
    interval: Interval = 0.0,
    outstanding: Outstanding = 64,
    partition: AnyPartitions = "all",
    timeout: Timeout = 10.0,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Follow the log with several clients while one appends: transactions received a second, and their delay.

    Each client receives every transaction. The delay is the time from append to receipt.
    """
    from polonaise.admin.bench import Load, bench_consumers

    _measure(
        inputs.address_of(address, log_option),
        partition,
        lambda partitions: Load(
            transactions, clients, size, interval / 1000, outstanding,
            partitions=partitions, timeout_s=timeout, seed=seed,
        ),
        bench_consumers,
        as_json=as_json,
    )  # fmt: skip


def _measure(
    address: str,
    partition: str,
    load_of: Callable[[list[int]], Load],
    measure: Callable[[Connect, Load], Awaitable[Measured]],
    *,
    as_json: bool,
) -> None:
    import polonaise
    from polonaise.client.protocol.arguments import partitions_named

    check_there(address)

    failed = False

    async def run() -> None:
        nonlocal failed
        async with polonaise.connect(address) as log:
            partitions = partitions_named(partition, log.partition_count, log.topic)
        measured = await measure(lambda: polonaise.connect(address), load_of(partitions))
        failed = bool(measured.failed)
        if as_json:
            say_json(measured.document())
        else:
            print_table(["figure", "value"], _rows(measured.document()), right=(1,))

    with tidy():
        asyncio.run(while_read(run()))
    if failed:
        raise typer.Exit(ExitStatus.FAILED)


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("transactions", f"{document['transactions']:,}"),
        ("seconds", f"{document['seconds']:.3f}"),
        ("transactions/s", f"{document['transactions_per_s']:,.0f}"),
        ("MB/s", f"{document['bytes_per_s'] / 1e6:,.3f}"),
    ]
    rows += [(f"{name} ms", f"{value:,.3f}") for name, value in document["latency_ms"].items()]
    rows += [("made again", f"{document['made_again']:,}")]
    return rows + [(f"failed: {code}", f"{count:,}") for code, count in document["failed"].items()]
