"""The commands `polonaise cluster backup` and `recover`: a coordinator's values to a file, and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs, looking
from polonaise.cli.addedoptions import with_tls
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import Json, say, say_json, tidy
from polonaise.errors import BadOption, CoordinatorOutdated
from polonaise.terms import counted, partition_words

if TYPE_CHECKING:
    from polonaise.admin.coordinatorbackup import RecoveredCluster
    from polonaise.coordination import Coordinator
    from polonaise.coordination.rebuilding import Lack
    from polonaise.host import Host

_STREAM: Final = Path("-")
_OUTPUT: Final = Path("/dev/stdout")
_INPUT: Final = Path("/dev/stdin")


@cluster.command("backup", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_backup(
    cluster: OpenCluster,
    file: Annotated[Path, Argument(help="File to write; one that is there is replaced. `-`: standard output.")],
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Write it although the coordinator is of an older state, or the file has later values or is of "
            "another cluster.",
        ),
    ] = False,
) -> None:
    """Write the coordinator's values to a file, for `cluster recover`. The file holds no secrets, and not the log.

    A link stays, and what it points to is replaced; into a pipe or a device it is written. Nothing is written when the
    coordinator has been put back to an older state: when the file is a backup with later values, or the coordinator
    itself or the servers, which are asked, tell of it.
    """
    from polonaise.admin.askedservers import marked_outdated, outdated_in
    from polonaise.admin.coordinatorbackup import backup, check_replaces_no_later, write_backup
    from polonaise.host.replacing import is_standard_output

    opened, path = cluster.coordinator, _OUTPUT if file == _STREAM else file
    noted = await backup(opened)
    status = await cluster.observer.look()
    older = marked_outdated(noted.partitions) or status.coordinator_disbelief
    if not force:
        check_replaces_no_later(path, noted)
        if not older and status.not_asked is not None:
            raise type(status.not_asked)(
                f"{opened}: nobody could be asked whether it holds the latest state: {status.not_asked.text}. "
                "Nothing was written: keep your earlier backups. To have these values all the same, name another "
                "file, with --force"
            )
        if older:
            raise CoordinatorOutdated(
                f"{opened}: {older}. Nothing was written: keep your earlier backups. To have these values all "
                "the same, name another file, with --force"
            )
    in_output = is_standard_output(path)
    write_backup(path, noted)
    assert noted.description is not None
    key, total, outdated = noted.description.key.hex(), noted.description.total, outdated_in(noted.partitions)
    if older:
        typer.echo(f"WARNING: {opened}: {older}. Keep your earlier backups: this one is of an older state", err=True)
    if cluster.as_json:
        told = json.dumps({"cluster": key, "partitions": total, "file": str(file), "outdated": outdated})
    else:
        told = f"cluster {key}: the values of {counted(total, 'partition')} are in {file}"
    if in_output:  # what is there is the backup, and nothing else
        typer.echo(told, err=True)
    else:
        say(told)


def lack_told(lack: Lack) -> str:
    remedies = []
    if lack.nodes:
        remedies.append(f"Add {', '.join(lack.nodes)} (polonaise storage add NAME HOST:PORT). ")
    if lack.partitions:
        words = partition_words(lack.partitions, 5)
        remedies.append(f"Nobody serves {words} any more, and what was appended there stays on the storage nodes. ")
    return (
        f"the description that was to be believed lacks something: {lack}. {''.join(remedies)}If applications need "
        "what is missing, stop and recover again with another description"
    )


@cluster.command("recover", epilog=EXIT_STATUS)
@with_tls
def cluster_recover(
    file: Annotated[
        Path | None, Argument(help="File that `cluster backup` has written. `-`: standard input.", show_default=False)
    ] = None,
    coordinator: looking.CoordinatorOption = None,
    storage: Annotated[
        str | None,
        Option(help="Storage nodes to ask, NAME=HOST:PORT,…; they tell of the others.", show_default=False),
    ] = None,
    confirm: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="The cluster's key, to go on although servers are connected to the storage nodes.",
            show_default=False,
        ),
    ] = None,
    believe: Annotated[
        str | None,
        Option(
            metavar="SOURCE",
            help="Whose description of the cluster is right, if two contradict, or the latest lacks what is in use: "
            "`backup`, or a storage node's name, as the refusal says it.",
            show_default=False,
        ),
    ] = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make the values of a coordinator that has lost its data again, from its storage nodes and, if given, a backup.

    Stop the servers first, and let the storage nodes run. It is refused while servers are connected to them, or answer
    themselves: with another coordinator than theirs these would lose their partitions. A coordinator that is only
    stopped, such as that of `cluster start`, is not noticed: this would make a second one. For an embedded log, close
    it in every process, and give --coordinator embedded:PATH. Nothing is made, and every reason is told, if it can't be
    proved that nothing committed would be lost, such as when too few storage nodes answer; or if two descriptions of
    the cluster contradict, such as by a topic's ids, or the latest lacks a storage node that has a copy, or partitions
    that are in use: then --believe chooses. With TLS it needs a server's certificate.
    """
    from polonaise.admin.coordinatorbackup import read_backup
    from polonaise.admin.embeddedrecovery import recover_embedded
    from polonaise.node.addresses import storage_nodes_of
    from polonaise.node.embedded import SCHEME

    known = None if file is None else read_backup(_INPUT if file == _STREAM else file)
    nodes = storage_nodes_of(inputs.listed(storage), "--storage") if storage else {}

    def tell(made: RecoveredCluster) -> None:
        key, total = made.description.key.hex(), made.description.total
        if as_json:
            say_json({"cluster": key, "partitions": total, "silent": dict(made.silent), "lacking": str(made.lacking)})
            return
        then = "open the log" if embedded else "start the servers"
        say(f"cluster {key}: the values of {counted(total, 'partition')} were made again; {then}")
        for name, why in made.silent.items():
            say(f"storage node {name} did not answer, and was not needed: {why}")
        if made.lacking:
            say(f"WARNING: {lack_told(made.lacking)}")

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.coordinatorbackup import recover

        tell(await recover(host, opened, known, nodes, timeout, confirm or "", believe or ""))

    address = looking.required(coordinator)
    embedded = address.startswith(SCHEME)
    if not embedded:
        looking.with_coordinator(address, do, as_server=True)
        return
    if confirm:
        raise BadOption("an embedded log that is open anywhere is refused: leave --confirm out, and close it there")
    if storage:
        raise BadOption("the storage directories of an embedded log are known: leave --storage out")
    with tidy():
        tell(asyncio.run(recover_embedded(address, known, timeout, believe or "")))
