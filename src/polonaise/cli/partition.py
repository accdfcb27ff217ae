"""The `polonaise partition` commands: list those of a cluster, describe one, change its copies, reset its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli import inputs, opencluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import agreed, or_dash, print_table, say, say_json
from polonaise.errors import BadOption, HeadNotReset, PolonaiseError, UnknownPartition
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.headresets import HeadState
    from polonaise.coordination.values import HeadReset


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
    opencluster.print_rows(partitions, opencluster.partition_rows, as_json=cluster.as_json)


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
    opencluster.print_rows([found.status], opencluster.partition_rows, as_json=False)
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
    if lost and not yes and not agreed(f"{lost}. Make the change all the same?"):
        raise BadOption(f"nothing was changed: {lost}. With --yes nobody is asked; or choose another storage node")


@partition.command("move", epilog=EXIT_STATUS)
@on_cluster(timeout_s=30.0, timeout=opencluster.TimeoutOfAll, json=False)
async def partition_move(
    cluster: OpenCluster,
    number: _Number,
    to: Annotated[str, Option("--to", help="Name, address or id of the server that is to own it.", show_default=False)],
) -> None:
    """Give a partition to another server, and wait until it serves it; clients go on meanwhile.

    Refused if the servers would give it back, because they keep the numbers of their partitions equal but for one.
    """
    from polonaise.admin.servers import move_owner

    owner = await move_owner(cluster.host, cluster.coordinator, number, to, cluster.timeout_s)
    say(f"partition {number} is served by server {owner.server} at {owner.address}, generation {owner.generation}")


@partition.command("cancel-change", epilog=EXIT_STATUS)
@on_cluster(json=False)
async def partition_cancel_change(cluster: OpenCluster, number: _Number) -> None:
    """Take back a change of a partition's copies that is pending. One that has been made by now stays made."""
    value = await (await cluster.edits()).cancel(number)
    say(f"partition {number} has copies on {', '.join(value.members)}, and no change is pending")


def _check(
    partitions: Sequence[int] | None, to: int | None, source: str | None, confirm: int | None, *, every: bool
) -> None:
    """Raise `BadOption` for options of a reset that contradict each other."""
    if every == (partitions is not None):
        raise BadOption("name a partition, or several (0-3,7); or give --all")
    if partitions is not None and len(partitions) == 1:
        if to is None and (source is not None or confirm is not None):
            raise BadOption(
                "--from and --confirm are for a reset of the head: say with --to with which id the log of partition "
                f"{partitions[0]} is to end. Nothing was changed"
            )
    elif source is None and confirm is not None:
        raise BadOption("--confirm is for a reset: name with --from the copy where each log ends. Nothing was changed")


@partition.command("reset-head", epilog=EXIT_STATUS)
@on_cluster(timeout_s=30.0, timeout=opencluster.TimeoutOfAll, check=_check)
async def partition_reset_head(
    cluster: OpenCluster,
    partitions: Annotated[
        inputs.Numbers | None,
        Argument(
            parser=inputs.partitions_of,
            metavar="PARTITION",
            help="Number of the partition; or several, as in 0-3,7.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        int | None, Option("--to", metavar="ID", help="Id with which the log is to end; -1: empty.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        Option("--from", metavar="NODE", help="Storage node whose copy counts, if not the one least in doubt."),
    ] = None,
    confirm: Annotated[
        int | None,
        Option(
            metavar="ID",
            help="In place of the question: the same id again, or the number of partitions.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, Option("--all", help="All that are not open, and of which --from has a copy.")] = False,
) -> None:
    """Decide where the log of a partition ends, when a majority of its replicas is lost for good.

    Without --to, shows what the replicas that are left hold, and changes nothing. With it, shows what would be lost,
    asks for the id once more, and has the partition's owner cut the log there. The decision becomes a transaction of
    the log. A lost replica that comes back later is cut, and not believed.

    For several partitions at once, --from names the copy that is left, instead of --to: each log ends where this copy
    ends. What would be lost is shown for each, and the number of partitions is asked for once.
    """
    from polonaise.admin.headresets import head_state, head_states, with_archived

    if to is not None or source is not None:
        await cluster.coordinator.may_change()  # before anything is asked
    one = partitions[0] if partitions is not None and len(partitions) == 1 else None
    if to is not None and one is None:
        raise BadOption("--to is for one partition: for several, --from names the copy where each log ends")
    host, opened, look_s = cluster.host, cluster.coordinator, min(cluster.timeout_s, opencluster.TIMEOUT_S)
    if one is not None:
        states = [await head_state(host, opened, one, look_s)]
    else:
        states = await head_states(host, opened, partitions, source, look_s)
    states, troubles = await with_archived(opened, states, look_s)
    _warn_of_stores(troubles)
    decided = to is not None or source is not None
    for state in states:
        if not cluster.as_json:
            _show_head(state, decided=decided)
        elif not decided:
            say_json(state.document())
    if to is not None:
        await _reset_one(cluster, states[0], to, source, confirm)
    elif source is not None:
        await _reset_several(cluster, states, source, confirm)


async def _reset_one(cluster: OpenCluster, state: HeadState, to: int, source: str | None, confirm: int | None) -> None:
    from polonaise.admin.headresets import ask_reset, await_reset, check_archived, check_end, decision

    host, opened, timeout, as_json = cluster.host, cluster.coordinator, cluster.timeout_s, cluster.as_json
    reset = decision(state, to, source, host.clock.wall_us())
    await check_end(host, opened, state, reset, min(timeout, opencluster.TIMEOUT_S))
    check_archived([(state, reset)])
    _confirm(_told(state, reset), to, confirm, as_json=as_json)
    await ask_reset(opened, state, reset, timeout)
    outcome = await await_reset(host, opened, state, reset, timeout)
    if as_json:
        say_json({"partition": state.partition, "to": to, **asdict(outcome)})
    elif outcome.carried_out:
        say(f"the head was reset to {to}; transaction {to + 1} says so")
    else:
        say(f"nothing was given up: the replicas that came back prove the log up to {outcome.committed}")


async def _reset_several(cluster: OpenCluster, states: Sequence[HeadState], source: str, confirm: int | None) -> None:
    from polonaise.admin.headresets import check_archived, decisions_from, reset_heads

    host, opened, timeout, as_json = cluster.host, cluster.coordinator, cluster.timeout_s, cluster.as_json
    decided = decisions_from(states, source, host.clock.wall_us())
    check_archived(decided)
    if not as_json:
        for state, reset in decided:
            say(f"partition {state.partition}: {_told(state, reset)}")
    summary = f"{counted(len(decided), 'partition')} would end where {source} ends"
    _confirm(summary, len(decided), confirm, as_json=as_json)
    failed: list[str] = []
    for (state, reset), outcome in zip(decided, await reset_heads(host, opened, decided, timeout), strict=True):
        number = state.partition
        if isinstance(outcome, PolonaiseError):
            failed.append(str(outcome))
        elif as_json:
            say_json({"partition": number, "to": reset.to, **asdict(outcome)})
        elif outcome.carried_out:
            say(f"partition {number}: the head was reset to {reset.to}; transaction {reset.to + 1} says so")
        else:
            say(f"partition {number}: nothing was given up; its replicas prove the log up to {outcome.committed}")
    if failed:
        raise HeadNotReset(f"{len(failed)} of {counted(len(decided), 'partition')} not reset: {'; '.join(failed)}")


def _told(state: HeadState, reset: HeadReset) -> str:
    to = reset.to
    lost = f"ids {to + 1} to {reset.known} are given up" if reset.known > to else "nobody who was asked knows of more"
    silent = f", and whatever only {', '.join(state.silent)} may hold" if state.silent else ""
    return f"the log would end at {to}, as {reset.source} holds it: {lost}{silent}"


def _warn_of_stores(troubles: Sequence[str]) -> None:
    for trouble in troubles:
        typer.echo(
            f"how far the fragments reach was not seen from here ({trouble}): the owner looks before it cuts anything, "
            "and waits if they reach above the id",
            err=True,
        )


def _confirm(told: str, wanted: int, confirm: int | None, *, as_json: bool) -> None:
    """Ask for the number once more, unless it was given. Raises `HeadNotReset` for another one."""
    if confirm is None:
        again = typer.prompt(f"{told}. Type {wanted} once more to confirm", type=int, err=True)
    else:
        again = confirm
        if not as_json:
            say(told)
    if again != wanted:
        raise HeadNotReset(f"{again} was given to confirm {wanted}: nothing was changed")


def _show_head(state: HeadState, *, decided: bool) -> None:
    """Show what the replicas hold; and what only the store has, unless a decision is given, whose refusal tells it."""
    say(f"partition {state.partition} is not open: {state.waits_for}")
    rows = [(c.name, c.last, c.proved, c.confirmed, c.joined) for c in state.copies]
    print_table(["replica", "holds", "proves", "confirmed", "session"], rows, right=(1, 2, 3, 4))
    if state.silent:
        say(f"no answer from {', '.join(state.silent)}")
    if state.only_archived and not decided:
        say(f"The fragments in {state.store} reach up to {state.archived}. {state.only_archived}.")
