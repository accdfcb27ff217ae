"""The `polonaise log` commands: make a log, append to it, read and follow it, and ask how it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polonaise.cli import inputs
from polonaise.cli.output import (
    counted,
    data_fields,
    fitted,
    line_width,
    print_table,
    say,
    say_json,
    shown,
    tidy,
    transaction_fields,
    when,
    while_read,
)
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, DeadlineExceeded, NotInitialized
from polonaise.redaction import redacted

if TYPE_CHECKING:
    from polonaise.client.log import Log
    from polonaise.terms import PartitionId, Transaction

_DEGRADED = 3
"""Exit status of `health` when every partition is ready but something is wrong all the same."""
EXIT_STATUS = (
    "Exit status: 0 done, 1 a fault (one line on standard error), 2 a command line that does not parse, "
    "3 health that is not whole, 130 interrupted, 141 the reader of the output went away."
)

log = typer.Typer(help="Look at a log, and append to it.", no_args_is_help=True, epilog=EXIT_STATUS)

Address = Annotated[
    str | None,
    typer.Argument(metavar="[LOG]", help="file:PATH or embedded:PATH; or --log, or POLONAISE_LOG.", show_default=False),
]
LogOption = Annotated[
    str | None, typer.Option("--log", envvar="POLONAISE_LOG", help="The log, where no argument names it.")
]
Partitions = Annotated[
    str | None, typer.Option("--partition", "-p", help="all, 3, or 0-6,9. Needed unless there is only one.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Timeout = Annotated[
    float, typer.Option(parser=inputs.seconds_of, metavar="SECONDS", help="How long to wait for an answer.")
]


def check_there(address: str) -> None:
    """Raise `NotInitialized` if the address is of an embedded log that does not exist: connecting would make it."""
    from polonaise.node.embedded import SCHEME, is_there

    if address.startswith(SCHEME) and not is_there(address):
        shown = redacted(address)
        raise NotInitialized(f"no embedded log at {shown}: correct the path, or make one: polonaise log create")


def with_log(
    address: str, do: Callable[[Log], Coroutine[Any, Any, None]], *, makes: bool = False, timeout_s: float | None = None
) -> None:
    """Connect to a log, run `do` with it, and close it.

    An embedded log that does not exist is made only if `makes` is true; else `NotInitialized` is raised. `timeout_s`
    is the value of the command's --timeout, in seconds, for the message of a deadline that passed.
    """
    import polonaise

    if not makes:
        check_there(address)

    async def connected() -> None:
        async with polonaise.connect(address) as found:
            try:
                await do(found)
            except DeadlineExceeded as error:
                if timeout_s is None:
                    raise
                raise DeadlineExceeded(
                    f"{error.text}. A server that has many partitions to start may need longer than {timeout_s:g} s: "
                    "--timeout says how long to wait"
                ) from error

    with tidy():
        asyncio.run(while_read(connected()))


@log.command(epilog=EXIT_STATUS)
def create(
    place: Annotated[str, typer.Argument(metavar="LOG", help="embedded:PATH, of a new or an empty directory.")],
    partitions: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="1 unless said.")] = None,
    storage: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Storage directories, 1 unless said.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an empty embedded log. Its numbers of partitions and of storage directories are chosen here for good."""
    from polonaise.admin.logs import new_embedded_address

    address = new_embedded_address(place, partitions, storage)

    async def do(found: Log) -> None:
        await found.high_water_mark(0)
        if as_json:
            say_json({"log": redacted(place), "partitions": found.partition_count})
        else:
            say(f"{redacted(place)} is an empty log of {counted(found.partition_count, 'partition')}")

    with_log(address, do, makes=True)


@log.command(epilog=EXIT_STATUS)
def append(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LOG] [BODY]", help="The log, and the body of one transaction.", show_default=False),
    ] = None,
    address: LogOption = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", parser=inputs.partition_of, metavar="NUMBER", help="Needed unless there is only one."
        ),
    ] = None,
    file: Annotated[str | None, typer.Option(help="Append this file as one body; - for all of standard input.")] = None,
    header: Annotated[int, typer.Option(help="The header of each transaction, 32 bits.")] = 0,
    write_lock: Annotated[list[str] | None, typer.Option(metavar="NAME:ID", help="Checked and raised.")] = None,
    read_lock: Annotated[list[str] | None, typer.Option(metavar="NAME:ID", help="Checked.")] = None,
    append_lock: Annotated[list[str] | None, typer.Option(metavar="NAME:ID", help="Raised, not checked.")] = None,
    high_water_mark: Annotated[
        int | None, typer.Option(help="What the transaction was built on; what is committed now, unless said.")
    ] = None,
    expect: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Refused unless the register has this value.")
    ] = None,
    expect_absent: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Refused unless there is no such register.")
    ] = None,
    expect_position: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Refused unless it gets this id.")
    ] = None,
    set_register: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a register in one step with it.")
    ] = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Append transactions: the given body, a file, or else each line of standard input.

    Prints the partition and id of each once it is committed. Lines are sent together; with locks or expectations each
    waits for the one before it. The first that fails ends the command.
    """
    from polonaise.admin import logs
    from polonaise.client.protocol.draft import Expectation
    from polonaise.terms import LockMode

    place, body = inputs.address_and_data(arguments or [], address)
    if body is not None and file is not None:
        raise BadOption("a body and --file: only one of them can be appended")
    if body is not None:
        bodies = inputs.one(inputs.bytes_of(body))
    elif file is not None:
        bodies = inputs.whole(file)
    elif high_water_mark is not None or expect_position is not None:
        raise BadOption("--high-water-mark and --expect-position are said of one transaction: give its body, or --file")
    else:
        bodies = inputs.lines()
    modes = ((write_lock, LockMode.WRITE), (read_lock, LockMode.READ), (append_lock, LockMode.APPEND))
    locks = [inputs.lock_of(text, mode) for given, mode in modes for text in given or ()]
    expectations = [inputs.expectation_of(text) for text in expect or ()]
    expectations += [Expectation.absent(inputs.bytes_of(key)) for key in expect_absent or ()]
    if expect_position is not None:
        expectations.append(Expectation.position(expect_position))
    changes = [inputs.change_of(text) for text in set_register or ()]

    async def do(found: Log) -> None:
        if partition is None and found.partition_count != 1:
            raise BadOption(f"which of {found.partition_count} partitions? Say --partition with one of them")
        (chosen,) = partitions_named(str(partition or 0), found.partition_count)
        how = logs.HowToAppend(chosen, header, locks, expectations, changes, high_water_mark, timeout)
        async with aclosing(logs.append(found, bodies, how)) as receipts:
            async for receipt in receipts:
                if as_json:
                    say_json({"partition": receipt.partition, "transaction_id": receipt.id}, now=True)
                else:
                    say(f"{receipt.partition} {receipt.id}", now=True)

    with_log(place, do, makes=True, timeout_s=timeout)


@log.command(epilog=EXIT_STATUS)
def read(
    argument: Address = None,
    address: LogOption = None,
    partition: Partitions = None,
    after: Annotated[int, typer.Option(min=-1, help="Begin after this id.")] = -1,
    until: Annotated[int | None, typer.Option(min=0, help="End with this id.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Begin at this commit time: ISO 8601 with a zone, or 90s, 10m, 2h, 3d ago.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="End after so many transactions.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and wait for more.")] = False,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print transactions from the beginning of the log, from an id on, or from a time on.

    A body that is not text is printed in hexadecimal; with --json it is in `data_base64` instead of `data`.
    """
    from polonaise.admin import logs

    begin = inputs.time_of(since) if since is not None else None
    if begin is not None and (after != -1 or until is not None):
        raise BadOption("--since and --after or --until: a reading begins at a time or at an id")

    def found_in(found: Log, partitions: list[PartitionId]) -> AsyncGenerator[Transaction, None]:
        return logs.read(found, partitions, after=after, until=until, since=begin, follow=follow, timeout_s=timeout)

    _print_transactions(
        inputs.address_of(argument, address), partition, found_in, limit, timeout, now=follow, as_json=as_json
    )


@log.command(epilog=EXIT_STATUS)
def tail(
    argument: Address = None,
    address: LogOption = None,
    partition: Partitions = None,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="So many of each partition.")] = 10,
    limit: Annotated[int | None, typer.Option(min=0, help="End after so many transactions.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and wait for more.")] = False,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the last transactions, and with --follow also new ones as they are committed."""
    from polonaise.admin import logs

    def found_in(found: Log, partitions: list[PartitionId]) -> AsyncGenerator[Transaction, None]:
        return logs.tail(found, partitions, count=count, follow=follow, timeout_s=timeout)

    _print_transactions(
        inputs.address_of(argument, address), partition, found_in, limit, timeout, now=follow, as_json=as_json
    )


@log.command("high-water-mark", epilog=EXIT_STATUS)
def high_water_mark(
    argument: Address = None,
    address: LogOption = None,
    partition: Partitions = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the committed high-water mark of each partition; -1 for an empty one."""
    from polonaise.admin import logs

    async def do(found: Log) -> None:
        partitions = partitions_named(partition or "all", found.partition_count)
        marks = await logs.high_water_marks(found, partitions, timeout)
        if as_json:
            for mark in marks:
                say_json(mark._asdict())
        else:
            print_table(["partition", "committed high-water mark"], marks, right=(0, 1))

    with_log(inputs.address_of(argument, address), do, timeout_s=timeout)


@log.command(epilog=EXIT_STATUS)
def registers(
    argument: Address = None,
    address: LogOption = None,
    partition: Partitions = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so.")] = "",
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the registers of each partition, and whether the application or a part of the library keeps each."""
    from polonaise.admin import logs

    async def do(found: Log) -> None:
        partitions = partitions_named(partition or "all", found.partition_count)
        width = line_width()
        if not as_json:
            say(f"{'partition':>9} {'of':<14} key = value")
        async with aclosing(logs.registers(found, partitions, inputs.bytes_of(prefix), timeout)) as listed:
            async for each in listed:
                if as_json:
                    fields = {**data_fields(each.key, "key"), **data_fields(each.value, "value")}
                    say_json({"partition": each.partition, **fields, "of": each.of})
                else:
                    row = f"{each.partition:>9} {each.of:<14} {shown(each.key)} = {shown(each.value)}"
                    say(fitted(row, width))

    with_log(inputs.address_of(argument, address), do, timeout_s=timeout)


@log.command(epilog=EXIT_STATUS)
def health(
    argument: Address = None,
    address: LogOption = None,
    partition: Partitions = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print the health of each partition: whether it is ready, which storage nodes take part, and what is wrong.

    Exit status 1 unless all are ready, and 3 if all are ready but something is wrong: one more loss may be too many.
    """
    from polonaise.admin import logs

    async def do(found: Log) -> None:
        partitions = partitions_named(partition or "all", found.partition_count)
        silence: list[DeadlineExceeded] = []
        told = await logs.conditions(found, partitions, timeout, lambda _, error: silence.append(error))
        if as_json:
            for each in told:
                say_json(each._asdict())
        elif told:
            rows = [
                (
                    each.partition,
                    "ready" if each.ready else "NOT READY",
                    "unknown" if each.committed_high_water_mark is None else each.committed_high_water_mark,
                    ", ".join(each.engaged),
                    each.troubles,
                )
                for each in told
            ]
            print_table(["partition", "", "committed", "storage nodes", "what is the matter"], rows, right=(0, 2))
            for name, scrub in {name: scrub for each in told for name, scrub in each.scrub.items()}.items():
                say(f"scrub of {name}: {progress_of(scrub)}")
            for server, fragments in {each.server: each.fragments_scrub for each in told}.items():
                if fragments is not None:
                    say(f"scrub of fragments by server {server}: {progress_of(fragments, 'fragment')}")
        if silence:
            raise silence[0]
        if not all(each.ready for each in told):
            raise typer.Exit(1)
        if any(each.troubles for each in told):
            raise typer.Exit(_DEGRADED)

    with_log(inputs.address_of(argument, address), do, timeout_s=timeout)


def progress_of(scrub: dict[str, Any], unit: str = "partition") -> str:
    """Describe how far a scrub is, counted in units, and what it has found since its process started."""
    if not scrub["bytes_per_s"]:
        return "switched off (storage run --scrub-bytes)"
    whole = f"the last round ended {when(scrub['finished_us'])}" if scrub["rounds"] else "no round has ended yet"
    under_way = ""
    if scrub["started_us"] > scrub["finished_us"]:
        read, of = counted(scrub["bytes"], "byte"), counted(scrub[f"{unit}s_of"], unit)
        under_way = f"; the present one has read {read}, and {scrub[f'{unit}s']:,} of {of} to the end"
    found = f"; found {counted(scrub['found'], 'damage')}, repaired {scrub['repaired']:,}" if scrub["found"] else ""
    return f"{whole}{under_way}{found}"


Reading = Callable[["Log", "list[PartitionId]"], "AsyncGenerator[Transaction, None]"]


def _print_transactions(
    place: str,
    partition: str | None,
    reading: Reading,
    limit: int | None,
    timeout_s: float,
    *,
    now: bool,
    as_json: bool,
) -> None:

    async def do(found: Log) -> None:
        partitions = partitions_named(partition, found.partition_count)
        left = limit
        if left == 0:
            return
        show = _show_json if as_json else _PrintedRows()
        async with aclosing(reading(found, partitions)) as transactions:
            async for tx in transactions:
                show(tx, now)
                if left is not None:
                    left -= 1
                    if not left:
                        return

    with_log(place, do, timeout_s=timeout_s)


def _show_json(tx: Transaction, now: bool) -> None:
    say_json(transaction_fields(tx), now=now)


class _PrintedRows:
    """Prints transactions as rows under a heading, each as it comes."""

    def __init__(self) -> None:
        self._width = line_width()
        self._begun = False

    def __call__(self, tx: Transaction, now: bool) -> None:
        if not self._begun:
            self._begun = True
            say(f"{'partition':>9} {'id':>12} {'commit time':<27} {'header':>11} data")
        row = f"{tx.partition:>9} {tx.id:>12} {when(tx.commit_time_us):<27} {tx.header:>11} {shown(tx.data)}"
        say(fitted(row, self._width), now=now)
