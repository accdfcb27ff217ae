"""The `polonaise partition` commands: list those of a cluster, describe one, change its copies, reset its head."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from polonaise.cli import inputs, looking
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import or_dash, print_table, say, say_json
from polonaise.errors import BadOption, UnknownPartition

partition = typer.Typer(
    help="List the partitions of a cluster, describe one, change where its copies are, reset its head.",
    no_args_is_help=True,
)
_Number = Annotated[int, Argument(parser=inputs.partition_of, metavar="PARTITION", help="Number of the partition.")]
_Node = Annotated[str, Argument(metavar="NODE", help="Name of the storage node.")]
_Yes = Annotated[bool, Option("--yes", help="Do not ask, although the partition will have nothing to spare.")]


@partition.command("list", epilog=EXIT_STATUS)
@on_cluster()
async def partition_list(
    cluster: OpenCluster,
    troubled: Annotated[bool, Option("--troubled", help="Only those that are not well.")] = False,
) -> None:
    """List the partitions of a cluster: owner, generation, session, how far each is committed, and what is wrong."""
    from polonaise.admin.cluster import Wellness

    status = await cluster.look()
    partitions = [each for each in status.partitions if not troubled or each.wellness is not Wellness.WELL]
    looking.print_rows(partitions, looking.partition_rows, as_json=cluster.as_json)


@partition.command("describe", epilog=EXIT_STATUS)
@on_cluster()
async def partition_describe(cluster: OpenCluster, number: _Number) -> None:
    """Describe one partition: what its owner says of it, and what the coordinator keeps of each of its replicas.

    A closing mark is missing while the end of that session is undecided, as that of the present one is.
    """
    from polonaise.admin.partitiondescription import describe_partition

    try:
        found = await describe_partition(cluster.observer, number)
    except UnknownPartition:
        await cluster.warn_of_older_state()  # the latest state may have it
        raise
    cluster.warn_of(found.doubt)
    if cluster.as_json:
        say_json(found.document())
        return
    looking.print_rows([found.status], looking.partition_rows, as_json=False)
    replicas = [(each.name, each.state, or_dash(each.session), or_dash(each.closing)) for each in found.replicas]
    say("")
    print_table(["replica", "state", "last session", "closing mark"], replicas, right=(2, 3))
    if found.required:
        say(f"commits need {found.required}")
    if found.value.next is not None:
        say(f"next members: {', '.join(found.value.next)}")
    if found.status.condition is not None and found.status.condition.change:
        say(f"pending: {found.status.condition.change}")
    if found.status.counts:
        say("")
        print_table(["figure", "value"], list(found.status.counts.items()), right=(1,))


@partition.command("add-copy", epilog=EXIT_STATUS)
@on_cluster(steps=True, json=False)
async def partition_add_copy(cluster: OpenCluster, number: _Number, name: _Node) -> None:
    """Add a copy of a partition on a storage node, and wait until it is in sync; clients go on meanwhile."""
    await (await cluster.moves()).add(number, name)
    say(f"partition {number} has a copy on {name}")


@partition.command("remove-copy", epilog=EXIT_STATUS)
@on_cluster(steps=True, json=False)
async def partition_remove_copy(
    cluster: OpenCluster,
    number: _Number,
    name: _Node,
    force: Annotated[
        bool, Option("--force", help="Even if fewer copies are left in sync than the partition is to have.")
    ] = False,
    yes: _Yes = False,
) -> None:
    """Remove the copy of a partition on a storage node. Refused while it is needed, and the refusal says what for.

    If the partition would have nothing to spare any more, it says so and asks first.
    """
    moves = await cluster.moves()
    _confirm_lost_spare(await moves.spare_lost(number, name, None), yes=yes or force)
    await moves.remove(number, name, force=force)
    say(f"partition {number} has no copy on {name} any more")


@partition.command("replace", epilog=EXIT_STATUS)
@on_cluster(steps=True, json=False)
async def partition_replace(
    cluster: OpenCluster,
    number: _Number,
    source: Annotated[str, Option("--from", help="Storage node that gives up its copy.", show_default=False)],
    target: Annotated[str, Option("--to", help="Storage node that gets a copy.", show_default=False)],
    yes: _Yes = False,
) -> None:
    """Move a copy of a partition from one storage node, which may be dead, to another. May be repeated.

    If the partition would have nothing to spare any more, such as its last spare zone, it says so and asks first.
    """
    moves = await cluster.moves()
    _confirm_lost_spare(await moves.spare_lost(number, source, target), yes=yes)
    await moves.replace(number, source, target)
    say(f"partition {number} has a copy on {target}, and none on {source} any more")


def _confirm_lost_spare(lost: str, *, yes: bool) -> None:
    """Ask whether a change is to be made that leaves a partition without `lost` to spare. Raises `BadOption` if not."""
    if not lost or yes:
        return
    try:
        wanted = typer.confirm(f"{lost}. Make the change all the same?", err=True)
    except typer.Abort:  # nobody is there to answer
        wanted = False
    if not wanted:
        raise BadOption(f"nothing was changed: {lost}. With --yes nobody is asked; or choose another storage node")


@partition.command("move", epilog=EXIT_STATUS)
@on_cluster(timeout_s=30.0, timeout=looking.TimeoutOfAll, json=False)
async def partition_move(
    cluster: OpenCluster,
    number: _Number,
    to: Annotated[str, Option("--to", help="Name, address or id of the server that is to own it.", show_default=False)],
) -> None:
    """Give a partition to another server, and wait until it serves it; clients go on meanwhile.

    Refused if the servers would give it back, because they keep the numbers of their partitions equal but for one.
    """
    from polonaise.admin.ownermoves import move_owner

    owner = await move_owner(cluster.host, cluster.coordinator, number, to, cluster.timeout_s)
    say(f"partition {number} is served by server {owner.server} at {owner.address}, generation {owner.generation}")


@partition.command("cancel-change", epilog=EXIT_STATUS)
@on_cluster(json=False)
async def partition_cancel_change(cluster: OpenCluster, number: _Number) -> None:
    """Take back a change of a partition's copies that is pending. One that has been made by now stays made."""
    value = await (await cluster.edits()).cancel(number)
    say(f"partition {number} has copies on {', '.join(value.members)}, and no change is pending")
