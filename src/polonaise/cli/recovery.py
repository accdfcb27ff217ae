"""The commands `polonaise cluster backup` and `recover`: a coordinator's values to a file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polonaise.cli import inputs, looking
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import say, say_json
from polonaise.cli.tlsoptions import with_tls

if TYPE_CHECKING:
    from polonaise.coordination import Coordinator
    from polonaise.host import Host


@cluster.command("backup", epilog=EXIT_STATUS)
@with_tls
def cluster_backup(
    file: Annotated[Path, Argument(help="File to write; one that is there is replaced.")],
    coordinator: looking.CoordinatorOption = None,
    as_json: looking.Json = False,
) -> None:
    """Write the coordinator's values to a file, for `cluster recover`. The file holds no secrets, and not the log."""

    async def do(_: Host, opened: Coordinator) -> None:
        from polonaise.admin.coordinatorbackup import backup, write_backup

        noted = await backup(opened)
        write_backup(file, noted)
        assert noted.description is not None
        key, total = noted.description.key.hex(), noted.description.total
        if as_json:
            say_json({"cluster": key, "partitions": total, "file": str(file)})
        else:
            say(f"cluster {key}: the values of {total} partitions are in {file}")

    looking.with_coordinator(coordinator, do)


@cluster.command("recover", epilog=EXIT_STATUS)
@with_tls
def cluster_recover(
    file: Annotated[Path | None, Argument(help="File that `cluster backup` has written.", show_default=False)] = None,
    coordinator: looking.CoordinatorOption = None,
    storage: Annotated[
        str | None,
        Option(help="Storage nodes to ask, NAME=HOST:PORT,…; they tell of the others.", show_default=False),
    ] = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Make the values of a coordinator that has lost its data again, from its storage nodes and, if given, a backup.

    Stop the servers first, and let the storage nodes run. Nothing is made, and every reason is told, if it can't be
    proved that nothing committed would be lost, for instance because too few storage nodes answer. With TLS it needs a
    server's certificate.
    """
    from polonaise.admin.coordinatorbackup import read_backup
    from polonaise.node.addresses import storage_nodes_of

    known = None if file is None else read_backup(file)
    nodes = storage_nodes_of(inputs.listed(storage), "--storage") if storage else {}

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.coordinatorbackup import recover

        made = await recover(host, opened, known, nodes, timeout)
        key, total = made.description.key.hex(), made.description.total
        if as_json:
            say_json({"cluster": key, "partitions": total, "silent": dict(made.silent)})
            return
        say(f"cluster {key}: the values of {total} partitions were made again; start the servers")
        for name, why in made.silent.items():
            say(f"storage node {name} did not answer, and was not needed: {why}")

    looking.with_coordinator(coordinator, do, as_server=True)
