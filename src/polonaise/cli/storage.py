"""The `polonaise storage` commands: run a storage node, list those of a cluster, and move copies between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polonaise.cli import opencluster, running
from polonaise.cli.addedoptions import with_settings, with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import Json, say, say_either, say_json, tidy, while_read
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.storagenodes import Cleaned
    from polonaise.coordination.memberchanges import Move

storage = typer.Typer(
    help="Run storage nodes, which keep the log's files; list them, add and drain them, and tell where they are.",
    no_args_is_help=True,
)


_Name = Annotated[str, Argument(help="Name of the storage node.")]
_ShownName = Annotated[str, Argument(help="Name of the storage node, as `polonaise storage list` shows it.")]


@storage.command("run")
@with_tls
@with_settings("storage")
def storage_run(
    options: dict[str, Any],
    config: running.Config = None,
    verbose: running.Verbose = False,
    until_stdin_ends: running.UntilStdinEnds = False,
) -> None:
    """Run one storage node until it is interrupted.

    Settings that are not given here come from the environment (POLONAISE_STORAGE_…), then from the table `storage` of
    the configuration file; `polonaise config show storage` lists them.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.host.address import parse_address
    from polonaise.host.real import run
    from polonaise.host.tls import STORAGE, tls_identity
    from polonaise.node.processes import run_storage
    from polonaise.storage.settings import STOP_S_MAX

    if until_stdin_ends:
        running.stop_when_stdin_ends()
    with running.reading_settings():
        given = configuration_of("storage", config, options)
        running.start_logging(given["log_format"], verbose=verbose)
        settings, served = given.storage_settings(), running.http_at(given["http"])
        parse_address(settings.listen)
        identity = tls_identity(STORAGE)
    with running.telling_its_end(given["log_format"]):
        run(
            lambda host: run_storage(host, settings, running.say_ready, served),
            syncs_in_loop=True,
            tls=identity,
            stop_s_max=STOP_S_MAX,
        )


@storage.command("recover", epilog=EXIT_STATUS)
def storage_recover(
    directory: Annotated[str, Argument(help="The storage directory to make; it must be missing or empty.")],
    source: Annotated[str, Option("--from", metavar="DIRECTORY", help="Storage directory of another node.")],
    name: Annotated[str, Option(help="Name of the storage node that is to have the new directory.")],
    as_json: Json = False,
) -> None:
    """Make a storage directory from another node's, while the node that is to have it is stopped.

    What the other node knows to be committed is copied and verified; the new directory appears in one step, when all of
    it is there. The node then counts as late, has no vote on what it did not copy, and is brought up to date.
    """
    from polonaise.admin.storagerecovery import RecoveredCopy, recover_storage

    def tell(copy: RecoveredCopy) -> None:
        say_either(copy._asdict(), f"partition {copy.partition}: up to {copy.last}", as_json=as_json)

    with tidy():
        asyncio.run(while_read(recover_storage(directory, source, name, tell)))
        if not as_json:
            say(f"{directory} is whole: start storage node {name} with it")


@storage.command("zone", epilog=EXIT_STATUS)
@on_cluster(timeout_s=10.0, timeout=opencluster.TimeoutOfAll)
async def storage_zone(
    cluster: OpenCluster,
    name: _ShownName,
    zone: Annotated[str, Argument(help="Its zone: nodes of one zone may be lost together. Empty: none.")],
) -> None:
    """Tell a cluster in which zone a storage node is, for commits that need copies in several zones."""
    from polonaise.admin.requiring import set_zone
    from polonaise.cli.requirement import show_waiting

    change = await set_zone(cluster.host, cluster.coordinator, name, zone, cluster.timeout_s)
    required = None if change is None else change.document()
    cluster.tell(
        {"name": name, "zone": zone, "required": required},
        f"storage node {name}: {f'zone {zone}' if zone else 'no zone'}",
    )
    if change is not None:
        show_waiting(change, as_json=cluster.as_json)


@storage.command("move", epilog=EXIT_STATUS)
@on_cluster()
async def storage_move(
    cluster: OpenCluster,
    name: _ShownName,
    address: Annotated[str, Argument(metavar="HOST:PORT", help="The address at which it is reached from now on.")],
) -> None:
    """Tell a cluster that a storage node is reached at another address: a new machine with the old disk, or a new port.

    Servers that lose or lack their connection to the node look there next; a connection that stands is left alone. The
    order does not matter: the node may be moved before or after. What answers at the address is asked for its name
    first, and refused if it is another node. One with an empty disk is warned of if the cluster has copies on the node.
    """
    from polonaise.admin.storagenodes import move_storage

    moved = await move_storage(cluster.host, cluster.coordinator, name, address, cluster.timeout_s)
    was = f", was {moved.before}" if moved.changed else " already: nothing was changed"
    cluster.tell(moved.document(), f"storage node {moved.name}: {moved.after}{was}")
    if cluster.as_json:
        return
    if moved.copies_missing:
        held = counted(moved.copies_missing, "partition")
        say(
            f"WARNING: it answers there with an empty disk, while the cluster has copies of {held} on it. If its "
            f"disk is elsewhere, stop what answers, and move {moved.name} to where it runs with that disk. If that "
            "is lost, this disk takes its place, and servers copy to it what the others have"
        )
    else:
        say(f"it was not found there yet: {moved.trouble}" if moved.trouble else "it answers there")


@storage.command("list", epilog=EXIT_STATUS)
@on_cluster()
async def storage_list(cluster: OpenCluster) -> None:
    """List the storage nodes of a cluster: name, address, whether each answers, partitions, room on its disk."""
    opencluster.print_rows((await cluster.look()).storage, opencluster.storage_rows, as_json=cluster.as_json)


@storage.command("add", epilog=EXIT_STATUS)
@on_cluster()
async def storage_add(
    cluster: OpenCluster,
    name: _Name,
    address: Annotated[
        str | None, Argument(metavar="HOST:PORT", help="The address at which it is reached. Default: its name.")
    ] = None,
    zone: Annotated[str, Option(help="Zone of the node: nodes of one zone may be lost together.")] = "",
) -> None:
    """Add a storage node to a running cluster, or stop draining one. It has no copies until it is given some.

    Give it copies with `polonaise storage balance` or `polonaise partition add-copy`.
    """
    from polonaise.admin.storagenodes import add_storage

    added = await add_storage(cluster.host, await cluster.edits(), name, address or name, zone, cluster.timeout_s)
    done = "added" if added.changed else "already one of the cluster: nothing changed"
    there = f"it was not found there yet: {added.trouble}" if added.trouble else "it answers there"
    cluster.tell(added.document(), f"storage node {added.name}: {done}\n{there}")


@storage.command("drain", epilog=EXIT_STATUS)
@on_cluster(steps=True)
async def storage_drain(cluster: OpenCluster, name: _Name) -> None:
    """Move every copy off a storage node, which may be dead, and give it no more. May be broken off and repeated.

    Each partition gets a copy elsewhere first, and gives up the one on the node once that is in sync; clients go on
    meanwhile. Then the node may be removed.
    """
    moved = await (await cluster.moves()).drain(name)
    cluster.tell({"name": name, "moved": moved}, f"storage node {name} holds no copies any more: {moved} were moved")


@storage.command("clean", epilog=EXIT_STATUS)
@on_cluster(steps=True, as_server=True)
async def storage_clean(cluster: OpenCluster, name: _Name) -> None:
    """Free the room of copies that a storage node gave up: after a balance, a replacement, or a copy removed.

    A copy is kept, and the exit status is 1, where fewer others are in sync than the partition is to have, or its
    members are being changed. With TLS it takes the certificate of a server, because it deletes data.
    """
    from polonaise.admin.storagenodes import clean_storage

    seen: list[Cleaned] = []

    def report(cleaned: Cleaned) -> None:
        seen.append(cleaned)
        if cluster.as_json:
            say_json(cleaned.document())
        elif cleaned.trouble:
            say(f"partition {cleaned.partition}: {cleaned.trouble}")
        elif cleaned.bytes:
            say(f"partition {cleaned.partition}: {opencluster.size(cleaned.bytes)} freed")

    await clean_storage(cluster.host, await cluster.edits(), name, cluster.timeout_s, cluster.step_s, report)
    if not cluster.as_json:
        emptied = [each.bytes for each in seen if each.bytes]
        say(f"storage node {name}: {opencluster.size(sum(emptied))} of {len(emptied)} copies freed")
    if any(each.trouble for each in seen):
        raise typer.Exit(ExitStatus.FAILED)


@storage.command("remove", epilog=EXIT_STATUS)
@on_cluster(json=False)
async def storage_remove(cluster: OpenCluster, name: _Name) -> None:
    """Take a storage node without copies out of a cluster. It may be stopped then: its directory is not needed."""
    from polonaise.admin.storagenodes import remove_storage

    await remove_storage(await cluster.edits(), name)
    say(f"storage node {name} was removed: it may be stopped, and this cluster needs nothing of its directory")


def _moved(move: Move) -> str:
    if not move.source:
        return f"another copy, on {move.target}"
    return f"from {move.source} to {move.target}" if move.target else f"one copy less, without the one on {move.source}"


@storage.command("balance", epilog=EXIT_STATUS)
@on_cluster(steps=True)
async def storage_balance(
    cluster: OpenCluster,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be moved.")] = False,
) -> None:
    """Spread the copies of all partitions evenly over the storage nodes and their zones, moving as few as it takes."""

    def told(move: Move) -> None:
        cluster.tell(move._asdict(), f"partition {move.partition}: {_moved(move)}")

    moves = await cluster.moves()
    if dry_run:
        planned = await moves.balance()
        for move in planned:
            told(move)
        count = len(planned)
    else:
        count = await moves.spread(told)
    if not count and not cluster.as_json:
        say("the copies are spread evenly")
