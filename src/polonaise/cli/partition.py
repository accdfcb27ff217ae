"""The `polonaise partition` commands: list those of a cluster, describe one, change its copies, reset its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli import changing, inputs, looking
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import print_table, say, say_json
from polonaise.cli.tlsoptions import with_tls
from polonaise.errors import UnknownPartition
from polonaise.redaction import redacted_address

if TYPE_CHECKING:
    from polonaise.admin.copymoves import CopyMoves
    from polonaise.admin.memberedits import MemberEdits
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

partition = typer.Typer(
    help="List the partitions of a cluster, describe one, change where its copies are, reset its head.",
    no_args_is_help=True,
)
Number = Annotated[int, Argument(parser=inputs.partition_of, metavar="PARTITION", help="Number of the partition.")]
Node = Annotated[str, Argument(metavar="NODE", help="Name of the storage node.")]


@partition.command("list", epilog=EXIT_STATUS)
@with_tls
def partition_list(
    coordinator: looking.CoordinatorOption = None,
    troubled: Annotated[bool, Option("--troubled", help="Only those that are not well.")] = False,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """List the partitions of a cluster: owner, generation, session, how far each is committed, and what is wrong."""
    from polonaise.admin.cluster import ClusterStatus, Wellness

    def show(status: ClusterStatus) -> None:
        partitions = [each for each in status.partitions if not troubled or each.wellness is not Wellness.WELL]
        looking.print_rows(partitions, looking.partition_rows, as_json=as_json)

    looking.look(coordinator, timeout, show)


@partition.command("describe", epilog=EXIT_STATUS)
@with_tls
def partition_describe(
    number: Number,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Describe one partition: what its owner says of it, and what the coordinator keeps of each of its replicas.

    A closing mark is missing while the end of that session is undecided, as that of the present one is.
    """
    from polonaise.admin.cluster import ClusterObserver
    from polonaise.admin.partitiondescription import describe_partition

    async def do(observer: ClusterObserver) -> None:
        try:
            found = await describe_partition(observer, number)
        except UnknownPartition:
            await looking.warn_of_older_state(observer)  # the latest state may have it
            raise
        looking.warn_of(redacted_address(looking.required(coordinator)), found.doubt)
        if as_json:
            say_json(found.document())
            return
        looking.print_rows([found.status], looking.partition_rows, as_json=False)
        replicas = [(each.name, each.state, _known(each.session), _known(each.closing)) for each in found.replicas]
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

    looking.with_observer(coordinator, timeout, do)


@partition.command("add-copy", epilog=EXIT_STATUS)
@with_tls
def partition_add_copy(
    number: Number,
    name: Node,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    step_timeout: changing.StepTimeout = changing.STEP_S,
) -> None:
    """Add a copy of a partition on a storage node, and wait until it is in sync; clients go on meanwhile."""

    async def add(moves: CopyMoves) -> None:
        await moves.add(number, name)
        say(f"partition {number} has a copy on {name}")

    changing.with_moves(coordinator, timeout, step_timeout, add)


@partition.command("remove-copy", epilog=EXIT_STATUS)
@with_tls
def partition_remove_copy(
    number: Number,
    name: Node,
    force: changing.Force = False,
    yes: changing.Yes = False,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    step_timeout: changing.StepTimeout = changing.STEP_S,
) -> None:
    """Remove the copy of a partition on a storage node. Refused while it is needed, and the refusal says what for.

    If the partition would have nothing to spare any more, it says so and asks first.
    """

    async def remove(moves: CopyMoves) -> None:
        changing.confirm_lost_spare(await moves.spare_lost(number, name, None), yes=yes or force)
        await moves.remove(number, name, force=force)
        say(f"partition {number} has no copy on {name} any more")

    changing.with_moves(coordinator, timeout, step_timeout, remove)


@partition.command("replace", epilog=EXIT_STATUS)
@with_tls
def partition_replace(
    number: Number,
    source: Annotated[str, Option("--from", help="Storage node that gives up its copy.", show_default=False)],
    target: Annotated[str, Option("--to", help="Storage node that gets a copy.", show_default=False)],
    yes: changing.Yes = False,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    step_timeout: changing.StepTimeout = changing.STEP_S,
) -> None:
    """Move a copy of a partition from one storage node, which may be dead, to another. May be repeated.

    If the partition would have nothing to spare any more, such as its last spare zone, it says so and asks first.
    """

    async def replace(moves: CopyMoves) -> None:
        changing.confirm_lost_spare(await moves.spare_lost(number, source, target), yes=yes)
        await moves.replace(number, source, target)
        say(f"partition {number} has a copy on {target}, and none on {source} any more")

    changing.with_moves(coordinator, timeout, step_timeout, replace)


@partition.command("move", epilog=EXIT_STATUS)
@with_tls
def partition_move(
    number: Number,
    to: Annotated[str, Option("--to", help="Name, address or id of the server that is to own it.", show_default=False)],
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.TimeoutOfAll = 30.0,
) -> None:
    """Give a partition to another server, and wait until it serves it; clients go on meanwhile.

    Refused if the servers would give it back, because they keep the numbers of their partitions equal but for one.
    """
    from polonaise.admin.ownermoves import move_owner

    async def move(host: Host, opened: Coordinator) -> None:
        owner = await move_owner(host, opened, number, to, timeout)
        say(f"partition {number} is served by server {owner.server} at {owner.address}, generation {owner.generation}")

    looking.with_coordinator(coordinator, move)


@partition.command("cancel-change", epilog=EXIT_STATUS)
@with_tls
def partition_cancel_change(
    number: Number,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
) -> None:
    """Take back a change of a partition's copies that is pending. One that has been made by now stays made."""

    async def cancel(_: Host, edits: MemberEdits) -> None:
        value = await edits.cancel(number)
        say(f"partition {number} has copies on {', '.join(value.members)}, and no change is pending")

    changing.with_edits(coordinator, timeout, cancel)


def _known(value: int | None) -> object:
    return "-" if value is None else value
