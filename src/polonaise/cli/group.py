"""The `polonaise group` commands: list and describe groups of workers, and say where one goes on."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.openlog import AnyPartitions, OpenLog, on_log
from polonaise.cli.output import or_dash, print_each, print_table, say, say_either, say_json
from polonaise.errors import BadOption

group = typer.Typer(
    help="List and describe groups of workers, which share a log's partitions; say where one goes on.",
    no_args_is_help=True,
)

_Name = Annotated[str, Argument(metavar="NAME", help="Name of the group.")]


@group.command("list", epilog=EXIT_STATUS)
@on_log
async def group_list(opened: OpenLog) -> None:
    """List the groups of a log: their members at present, how many partitions these work on, and their lag."""
    from polonaise.admin.workergroups import list_groups

    print_each(
        await list_groups(opened.log, opened.limit.left_s()),
        lambda each: each._asdict(),
        ["group", "members", "partitions", "lag"],
        lambda each: (each.name, each.members, each.partitions, or_dash(each.lag)),
        right=(1, 2, 3),
        as_json=opened.as_json,
    )


@group.command("describe", epilog=EXIT_STATUS)
@on_log
async def group_describe(opened: OpenLog, name: _Name) -> None:
    """Describe a group: for each partition who works on it, how far it is, its lag, and what keeps it from going on."""
    from polonaise.admin.workergroups import describe_group

    found = await describe_group(opened.log, name, opened.limit.left_s())
    if opened.as_json:
        say_json({**found._asdict(), "partitions": [each._asdict() for each in found.partitions]})
        return
    say(f"{len(found.members)} members by {found.by or 'nobody'}: {', '.join(map(str, found.members)) or '-'}")
    rows = [
        (
            each.partition, each.member or "-", each.state or "-", or_dash(each.epoch), or_dash(each.position),
            or_dash(each.committed), or_dash(each.lag), each.trouble or "-",
        )
        for each in found.partitions
    ]  # fmt: skip
    columns = ["partition", "member", "state", "epoch", "position", "committed", "lag", "trouble"]
    print_table(columns, rows, right=(0, 1, 3, 4, 5, 6))


@group.command("reset", epilog=EXIT_STATUS)
@on_log
async def group_reset(
    opened: OpenLog,
    name: _Name,
    to: Annotated[
        str, Option("--to", metavar="ID", help="The id behind which it goes on; 'beginning', or 'end' of the log.")
    ],
    partition: AnyPartitions = "all",
    new: Annotated[bool, Option("--new", help="The group has not joined yet, and is to begin there.")] = False,
) -> None:
    """Have a group of handlers go on from elsewhere: transactions come again, or are passed over.

    A group with a view keeps its position in the view's database, and is refused.
    """
    from polonaise.admin.workergroups import reset_group

    partitions = opened.partitions(partition)
    done = await reset_group(opened.log, name, partitions, _position(to), opened.limit.left_s(), new=new)
    for number, position in done.items():
        fields = {"partition": number, "position": position}
        say_either(fields, f"partition {number}: goes on behind {position}", as_json=opened.as_json)


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
