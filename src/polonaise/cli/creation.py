"""The `polonaise cluster create` command: a new cluster is made at a coordinator that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from polonaise.cli import inputs, looking, running
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import Json, say_either
from polonaise.cli.settingoptions import with_settings
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
@with_settings(
    "server",
    ("coordinator", "storage", "partitions", "fragments"),
    variables={"coordinator": "POLONAISE_COORDINATOR"},
)
def cluster_create(
    options: dict[str, Any],
    config: running.Config = None,
    timeout: looking.Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a new cluster at a coordinator that has none. Its storage nodes have to run, or start, with new directories.

    Settings that are not given here are those of a server: from the environment (POLONAISE_SERVER_…), then from the
    table `server` of the configuration file. Nothing is made while a storage node holds another cluster's data, or does
    not answer.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.node.addresses import storage_nodes_of

    given = configuration_of("server", config, options)
    nodes = storage_nodes_of(inputs.listed(",".join(given["storage"])), "--storage")
    if not nodes:
        raise BadOption(_NO_STORAGE)

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.node.processes import create_cluster

        made = await create_cluster(host, opened, nodes, given["partitions"] or 1, given["fragments"], timeout)
        key, names = made.key.hex(), ", ".join(made.storage)
        fields = {"cluster": key, "partitions": made.partitions, "storage": list(made.storage)}
        line = f"cluster {key}: {counted(made.partitions, 'partition')}, on storage nodes {names}"
        say_either(fields, line, as_json=as_json)

    looking.with_coordinator(given.required("coordinator", "server"), do)
