"""The `polonaise group` commands: list and describe groups of workers, and say where one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.log import Address, AnyPartitions, Json, LogOption, Timeout, with_log
from polonaise.cli.output import print_table, say, say_json
from polonaise.cli.tlsoptions import with_tls
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption

if TYPE_CHECKING:
    from polonaise.client.log import Log

group = typer.Typer(
    help="List and describe groups of workers, which share a log's partitions; say where one goes on.",
    no_args_is_help=True,
)

_Name = Annotated[str, Argument(metavar="NAME", help="Name of the group.")]


@group.command("list", epilog=EXIT_STATUS)
@with_tls
def group_list(
    argument: Address = None, log_option: LogOption = None, timeout: Timeout = 10.0, as_json: Json = False
) -> None:
    """List the groups of a log: their members at present, how many partitions these work on, and their lag."""
    from polonaise.admin.logs import TimeLimit
    from polonaise.admin.workergroups import list_groups

    limit = TimeLimit(timeout)

    async def do(log: Log) -> None:
        groups = await list_groups(log, limit.left_s())
        if as_json:
            for each in groups:
                say_json(each._asdict())
            return
        rows = [(each.name, each.members, each.partitions, _or_dash(each.lag)) for each in groups]
        print_table(["group", "members", "partitions", "lag"], rows, right=(1, 2, 3))

    with_log(inputs.address_of(argument, log_option), do, limit=limit)


@group.command("describe", epilog=EXIT_STATUS)
@with_tls
def group_describe(
    name: _Name,
    argument: Address = None,
    log_option: LogOption = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Describe a group: for each partition who works on it, how far it is, its lag, and what keeps it from going on."""
    from polonaise.admin.logs import TimeLimit
    from polonaise.admin.workergroups import describe_group

    limit = TimeLimit(timeout)

    async def do(log: Log) -> None:
        found = await describe_group(log, name, limit.left_s())
        if as_json:
            say_json({**found._asdict(), "partitions": [each._asdict() for each in found.partitions]})
            return
        say(f"{len(found.members)} members by {found.by or 'nobody'}: {', '.join(map(str, found.members)) or '-'}")
        rows = [
            (
                each.partition, each.member or "-", each.state or "-", _or_dash(each.epoch), _or_dash(each.position),
                _or_dash(each.committed), _or_dash(each.lag), each.trouble or "-",
            )
            for each in found.partitions
        ]  # fmt: skip
        columns = ["partition", "member", "state", "epoch", "position", "committed", "lag", "trouble"]
        print_table(columns, rows, right=(0, 1, 3, 4, 5, 6))

    with_log(inputs.address_of(argument, log_option), do, limit=limit)


@group.command("reset", epilog=EXIT_STATUS)
@with_tls
def group_reset(
    name: _Name,
    to: Annotated[
        str, Option("--to", metavar="ID", help="The id behind which it goes on; 'beginning', or 'end' of the log.")
    ],
    argument: Address = None,
    log_option: LogOption = None,
    partition: AnyPartitions = "all",
    new: Annotated[bool, Option("--new", help="The group has not joined yet, and is to begin there.")] = False,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Have a group of handlers go on from elsewhere: transactions come again, or are passed over.

    A group with a view keeps its position in the view's database, and is refused.
    """
    from polonaise.admin.logs import TimeLimit
    from polonaise.admin.workergroups import reset_group

    limit = TimeLimit(timeout)

    async def do(log: Log) -> None:
        partitions = partitions_named(partition, log.partition_count, log.topic)
        done = await reset_group(log, name, partitions, _position(to), limit.left_s(), new=new)
        for number, position in done.items():
            if as_json:
                say_json({"partition": number, "position": position})
            else:
                say(f"partition {number}: goes on behind {position}")

    with_log(inputs.address_of(argument, log_option), do, limit=limit)


def _position(text: str) -> int | None:
    """Return the id that `--to` names; None for the log's end. Raises `BadOption`."""
    if text == "end":
        return None
    if text == "beginning":
        return -1
    try:
        return int(text)
    except ValueError:
        raise BadOption(f"--to {text}: give an id from -1 on, 'beginning' or 'end'") from None


def _or_dash(number: int | None) -> object:
    return "-" if number is None else number
