"""The `polonaise cluster create` command: a new cluster is made at a coordinator that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from polonaise.cli import inputs, looking, running
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import say, say_json
from polonaise.cli.tlsoptions import with_tls
from polonaise.errors import BadOption
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

_TIMEOUT_S: Final = 10.0
"""The default of `--timeout`: storage nodes that were just started take seconds until they listen."""
_NO_STORAGE: Final = (
    "a new cluster needs storage nodes: give --storage NAME=HOST:PORT,NAME=HOST:PORT,…, POLONAISE_SERVER_STORAGE in "
    "the environment or, in the file that --config names, storage in [server]"
)


@cluster.command("create", epilog=EXIT_STATUS)
@with_tls
def cluster_create(
    coordinator: Annotated[
        str | None,
        Option(
            envvar="POLONAISE_COORDINATOR",
            help="Address of the coordinator: zookeeper://HOST:PORT,…/ROOT, or file:PATH, a directory of this machine.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        Option(
            help="Storage nodes: NAME=HOST:PORT,… Without NAME= a node is named by its address.", show_default=False
        ),
    ] = None,
    partitions: Annotated[
        int | None, Option(min=1, max=4096, help="Number of partitions, for good. Default: 1.")
    ] = None,
    fragments: Annotated[
        str | None, Option(help="Fragment store that the log is archived to: a directory, or s3://…, gs://…, az://….")
    ] = None,
    config: running.Config = None,
    timeout: looking.Timeout = _TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Make a new cluster at a coordinator that has none. Its storage nodes have to run, or start, with new directories.

    Settings that are not given here are those of a server: from the environment (POLONAISE_SERVER_…), then from the
    table [server] of the configuration file. Nothing is made while a storage node holds another cluster's data, or does
    not answer.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.node.addresses import storage_nodes_of

    options = {"coordinator": coordinator, "storage": storage, "partitions": partitions, "fragments": fragments}
    given = configuration_of("server", config, options)
    nodes = storage_nodes_of(inputs.listed(",".join(given["storage"])), "--storage")
    if not nodes:
        raise BadOption(_NO_STORAGE)

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.node.processes import create_cluster

        made = await create_cluster(host, opened, nodes, given["partitions"] or 1, given["fragments"], timeout)
        key, names = made.key.hex(), ", ".join(made.storage)
        if as_json:
            say_json({"cluster": key, "partitions": made.partitions, "storage": list(made.storage)})
        else:
            say(f"cluster {key}: {counted(made.partitions, 'partition')}, on storage nodes {names}")

    looking.with_coordinator(given.required("coordinator", "server"), do)
